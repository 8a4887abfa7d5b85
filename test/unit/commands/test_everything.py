"""The command `everything` with the real client and the real session model: files, lines, options, errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.commands import call
from support.in_process import ImageServer, discs

from triton_sam import SAM2TritonClient
from triton_sam.everything.search import FoundObjects
from triton_sam.masks.cleanup import Cleanup
from triton_sam.masks.label_map import label_map_of
from triton_sam.masks.rle import rle_to_mask
from triton_sam.wire import contract

SIZE = (80, 60)
LOW: dict[str, Any] = {"points_per_side": 2, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.0}
OPTIONS = ["--points-per-side", "2", "--pred-iou-thresh", "0.2", "--stability-score-thresh", "0"]


@pytest.fixture
def server():
    with ImageServer() as server:
        yield server


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "photo.png"
    Image.new("RGB", SIZE, (90, 90, 90)).save(path)
    return path


def everything(server: ImageServer, *options: object) -> int:
    return call(f"everything --url {server.url}", *options)


def expected(server: ImageServer, image: Path, **parameters: Any) -> FoundObjects:
    with SAM2TritonClient(server.url) as client:
        return client.everything(image, **{**LOW, **parameters})


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened)


def parameters_of(server: ImageServer) -> dict[str, Any]:
    """Return the parameters of the first part of a search."""
    part = next(each.inputs for each in server.requests if contract.EVERYTHING_PART in each.inputs)
    parameters: dict[str, Any] = json.loads(part[contract.EVERYTHING_PART][0])["parameters"]
    return parameters


def test_lines_and_files(server, image, tmp_path, capsys):
    overlay, labels, coco = tmp_path / "overlay.png", tmp_path / "labels.png", tmp_path / "coco.json"
    files = ["--overlay", overlay, "--label-image", labels, "--coco", coco]
    assert everything(server, image, *OPTIONS, *files, "-q") == 0
    found = expected(server, image)
    assert len(found) > 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["object"], line["area"], line["point"]) for line in lines] == [
        (number, each.area, list(each.point)) for number, each in enumerate(found, 1)
    ]
    for line, each in zip(lines, found, strict=True):
        x1, y1, x2, y2 = each.box or ()
        assert line["bbox"] == [x1, y1, x2 - x1, y2 - y1]
        assert line["predicted_iou"] == pytest.approx(each.score, abs=1e-5)
        np.testing.assert_array_equal(rle_to_mask(line["segmentation"]), each.mask)
    np.testing.assert_array_equal(pixels(labels), label_map_of([each.mask for each in found]))
    assert pixels(overlay).shape == (60, 80, 3)
    assert len(np.unique(pixels(overlay).reshape(-1, 3), axis=0)) > len(found)
    document = json.loads(coco.read_text())
    assert document["images"] == [{"id": 1, "file_name": "photo.png", "width": 80, "height": 60}]
    assert [(each["id"], each["image_id"], each["segmentation"]) for each in document["annotations"]] == [
        (number, 1, line["segmentation"]) for number, line in enumerate(lines, 1)
    ]


def test_an_empty_mask_is_left_out_of_coco_and_counted(image, tmp_path, capsys):
    def empty(model: str, inputs: Any, wanted: Any) -> Any:
        tensors = discs(model, inputs, wanted)
        return {name: array - 99 if array.ndim == 4 and "masks" in name else array for name, array in tensors.items()}

    target = tmp_path / "coco.json"
    with ImageServer(empty) as server:
        assert everything(server, image, *OPTIONS[2:], "--points-per-side", 1, "--single-mask", "--coco", target) == 0
    assert f"{target}: 1 empty mask is left out" in capsys.readouterr().err
    assert json.loads(target.read_text())["annotations"] == []


def test_only_given_parameters_are_sent(server, image, capsys):
    assert everything(server, image, "--points-per-side", 1, "--pred-iou-thresh", 0.5, "--single-mask", "-q") == 0
    sent = parameters_of(server)
    assert (sent["points_per_side"], sent["pred_iou_thresh"], sent["multimask_output"]) == (1, 0.5, False)
    assert "stability_score_thresh" not in sent


def test_masks_are_cleaned_on_demand(server, image, capsys):
    options = ["--max-hole-area", 4, "--max-sprinkle-area", 5, "--smooth", 2, "--keep-clicked"]
    assert everything(server, image, *OPTIONS, *options, "--min-mask-region-area", 7, "-q") == 0
    cleanup = Cleanup(max_hole_area=4, max_sprinkle_area=5, smooth=2, keep_clicked=True)
    assert parameters_of(server)["cleanup"] == cleanup.to_json()
    found = expected(server, image, cleanup=cleanup, min_mask_region_area=7)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["segmentation"] for line in lines] == [each.to_rle() for each in found]


def test_several_images_have_files_of_their_own(server, image, tmp_path, capsys):
    other = tmp_path / "other.png"
    other.write_bytes(image.read_bytes())
    files = ["--overlay", tmp_path / "drawn.png", "--out", tmp_path / "lines.jsonl", "-q"]
    assert everything(server, image, other, *OPTIONS, *files) == 0
    assert (tmp_path / "drawn_photo.png").exists()
    assert (tmp_path / "drawn_other.png").exists()
    lines = [json.loads(line)["image"] for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert lines == [str(image)] * (len(lines) // 2) + [str(other)] * (len(lines) // 2)
    assert capsys.readouterr().out == ""


def test_an_empty_answer_says_why(server, image, tmp_path, capsys):
    labels, overlay = tmp_path / "labels.png", tmp_path / "overlay.png"
    files = ["--label-image", labels, "--overlay", overlay]
    assert everything(server, image, "--points-per-side", 2, "--pred-iou-thresh", 1, *files) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "no mask is left. Of 12 masks, pred_iou_thresh dropped 12" in told.err
    assert not pixels(labels).any()
    assert pixels(overlay).shape == (60, 80, 3)


def test_an_interrupt_leaves_no_file(server, image, tmp_path, capsys):
    server.failures = [KeyboardInterrupt()]
    assert everything(server, image, *OPTIONS, "--overlay", tmp_path / "overlay.png", "-q") == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.png"]
    assert capsys.readouterr().err.strip().endswith("interrupted")
