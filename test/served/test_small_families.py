"""EdgeTAM and SAM-HQ on a real Triton: the commands' masks are those of the official models with the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.export, pytest.mark.slow]  # the exports and the server take a minute
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytest.importorskip("segment_anything_hq")
pytest.importorskip("onnxruntime")
local_server = pytest.importorskip("triton_sam.local_server")

from support.family_exports import FamilyExport, edgetam_micro, samhq_micro  # noqa: E402

from triton_sam import SamTritonClient  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.client.mask_generator import SamAutomaticMaskGenerator  # noqa: E402
from triton_sam.export import registry  # noqa: E402
from triton_sam.export.reference import Reference  # noqa: E402
from triton_sam.families import get_family  # noqa: E402
from triton_sam.inputs.images import open_image  # noqa: E402
from triton_sam.masks.compare import intersection_over_union  # noqa: E402
from triton_sam.masks.rle import rle_to_mask  # noqa: E402
from triton_sam.sessions.configs import write_programs  # noqa: E402
from triton_sam.verify import THRESHOLDS  # noqa: E402
from triton_sam.verify.compare import format_table, verify  # noqa: E402

BOX = [180, 60, 420, 330]
GRID = {"points_per_side": 3, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "box_nms_thresh": 1.0}
"""Random weights rate their masks low, and most of these cover the whole image."""


def exported(family: str) -> FamilyExport:
    return {"edgetam": edgetam_micro, "samhq": samhq_micro}[family]()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    repository = tmp_path_factory.mktemp("small")
    for family in ("edgetam", "samhq"):
        write_programs(repository, get_family(family), video=False)
        for role in ("encoder", "decoder"):
            shutil.copytree(exported(family).repository / f"{family}_{role}", repository / f"{family}_{role}")
    with local_server.LocalServer(repository) as running:
        yield running


@pytest.fixture(params=["edgetam", "samhq"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def photo(images: Path) -> Path:
    return images / "coffee.jpg"


@pytest.fixture
def official(family: str, photo: Path) -> Reference:
    reference = registry.exporter(family).reference(exported(family).model)
    reference.set_image(open_image(photo))
    return reference


def same(mask: np.ndarray, expected: np.ndarray) -> bool:
    return intersection_over_union(mask, expected) > THRESHOLDS["fp32"].iou or np.count_nonzero(mask != expected) <= 1


def test_clicks_boxes_and_masks(server: Any, photo: Path, family: str, official: Reference) -> None:
    with (
        SamTritonClient(server.grpc_url, family) as session,
        SamTritonClient(server.http_url, family, embeddings="client") as pair,
    ):
        rows = verify(official, photo, {"session": session, "pair": pair})
    assert all(row.passes(THRESHOLDS["fp32"]) for row in rows), format_table(rows, THRESHOLDS["fp32"])


def test_predict(server: Any, photo: Path, family: str, official: Reference, tmp_path: Path) -> None:
    command = ["predict", str(photo), "--model", family, "--url", server.http_url, "--point", "300,200", "-q"]
    assert main([*command, "--all-candidates", "--out", str(tmp_path / "mask.png")]) == 0
    expected = official.answer({"point_coords": np.array([[300, 200]]), "point_labels": np.array([1])}, multimask=True)
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(expected.masks) == {"edgetam": 3, "samhq": 1}[family]
    masks = [np.asarray(Image.open(file)) > 0 for file in files]
    for mask in expected.masks:
        assert any(same(found, mask) for found in masks)


def test_annotate(server: Any, photo: Path, family: str, official: Reference, tmp_path: Path) -> None:
    width, height = BOX[2] - BOX[0], BOX[3] - BOX[1]
    given = {
        "images": [{"id": 1, "file_name": photo.name, "width": 600, "height": 400}],
        "categories": [{"id": 1, "name": "cup"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [*BOX[:2], width, height]}],
    }
    shutil.copy(photo, tmp_path)
    (tmp_path / "boxes.json").write_text(json.dumps(given))
    words = ["annotate", str(tmp_path / "boxes.json"), "--with", "boxes", "--out", str(tmp_path / "out"), "-q"]
    assert main([*words, "--model", family, "--url", server.http_url]) == 0
    (found,) = json.loads((tmp_path / "out" / "coco.json").read_text())["annotations"]
    (expected,) = official.answer({"box": np.array(BOX, np.float32)}, multimask=False).masks
    assert same(rle_to_mask(found["segmentation"]), expected)


def test_everything(server: Any, photo: Path, family: str, official: Reference, tmp_path: Path) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in GRID.items()]
    command = ["everything", str(photo), "--model", family, "--url", server.http_url, "-q", *options]
    assert main([*command, "--out", str(tmp_path / "found.jsonl")]) == 0
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert len({tuple(each["point"]) for each in found}) > 1
    for each in found:  # each is the answer to its click
        prompt = {"point_coords": np.array([each["point"]]), "point_labels": np.array([1])}
        answers = official.answer(prompt, multimask=True)
        mask = rle_to_mask(each["segmentation"])
        assert any(same(mask, answer) for answer in answers.masks)


def test_automatic_masks_equal_those_of_the_official_generator(server: Any, photo: Path) -> None:
    """SAM-HQ's generator takes the best mask of each point; it has no counterpart for EdgeTAM."""
    pixels = np.asarray(open_image(photo))
    expected = registry.exporter("samhq").everything_reference(samhq_micro().model).generate(pixels, **GRID)
    with SamTritonClient(server.http_url, "samhq") as client:
        found = SamAutomaticMaskGenerator(client, **GRID).generate(pixels)
    assert len(found) == len(expected) > 1
    for mine, theirs in zip(found, expected, strict=True):
        assert same(mine["segmentation"], theirs["segmentation"])
        assert mine["predicted_iou"] == pytest.approx(theirs["predicted_iou"], abs=1e-3)
