"""The command `annotate` on a real Triton: its masks are those of the client, and other tools read its files."""

import json
from pathlib import Path

import numpy as np
import pytest
import supervision
from PIL import Image
from support.annotated import SIDE, write_scenes

from triton_sam import SAM2TritonClient
from triton_sam.cli import main
from triton_sam.masks import rle_to_mask

SCENES = 4


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes") / "in", SCENES)


@pytest.fixture(scope="module")
def annotated(scenes, service_triton, tmp_path_factory):
    out = tmp_path_factory.mktemp("annotated") / "out"
    urls = ["--url", service_triton.http_url, "--url", service_triton.grpc_url]
    assert main(["annotate", str(scenes), "--with", "boxes", "--out", str(out), "-q", *urls]) == 0
    return out


def annotations(path: Path) -> list[dict]:
    return json.loads(path.read_text())["annotations"]


def test_masks_equal_those_of_the_client(scenes, annotated, service_triton):
    wanted, found = annotations(scenes), annotations(annotated / "coco.json")
    assert [(each["image_id"], each["category_id"]) for each in found] == [
        (each["image_id"], each["category_id"]) for each in wanted
    ]
    with SAM2TritonClient(service_triton.http_url) as client:
        for number in range(1, SCENES + 1):
            image = client.encode(scenes.parent / f"{number:04}.png")
            for before, after in zip(wanted, found, strict=True):
                if before["image_id"] == number:
                    x, y, width, height = before["bbox"]
                    (segment,) = client.segment(box=[x, y, x + width, y + height], image=image)
                    np.testing.assert_array_equal(rle_to_mask(after["segmentation"]), segment.mask)
                    assert after["score"] == pytest.approx(segment.score, abs=1e-5)


def test_supervision_loads_the_results(scenes, annotated):
    data = supervision.DetectionDataset.from_coco(str(scenes.parent), str(annotated / "coco.json"), force_masks=True)
    assert len(data) == SCENES
    assert sum(len(found) for _, _, found in data) == len(annotations(scenes))


def test_the_manifest_names_the_weights(annotated):
    models = json.loads((annotated / "manifest.json").read_text())["models"]
    assert models.keys() == {"sam2_encoder", "sam2_decoder", "weights"}
    assert len(models["weights"]) == 32


def test_boxes_of_a_large_image(scenes, service_triton, tmp_path):
    """The masks of a tile are those of the client, at their place in the image."""
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("zarr")
    with Image.open(scenes.parent / "0001.png") as scene:
        pixels = np.asarray(scene.convert("RGB"))
    tifffile.imwrite(tmp_path / "map.tif", np.tile(pixels, (1, 2, 1)), photometric="rgb", tile=(256, 256))
    source = json.loads(scenes.read_text())
    wanted = [each for each in source["annotations"] if each["image_id"] == 1][:2]
    for each in wanted:
        each["bbox"][0] += SIDE
    document = {
        "images": [{"id": 1, "file_name": "map.tif"}],
        "annotations": wanted,
        "categories": source["categories"],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(document))
    options = [
        "--tile",
        str(SIDE),
        "--overlap",
        "0",
        "--format",
        "coco-polygons",
        "-q",
        "--url",
        service_triton.grpc_url,
    ]
    out = tmp_path / "out"
    assert (
        main(["annotate", str(tmp_path / "boxes.json"), "--large", "--with", "boxes", "--out", str(out), *options]) == 0
    )
    found = annotations(out / "coco_polygons.json")
    with SAM2TritonClient(service_triton.http_url) as client:
        image = client.encode(pixels)
        for before, after in zip(wanted, found, strict=True):
            x, y, width, height = before["bbox"]
            (segment,) = client.segment(box=[x - SIDE, y, x - SIDE + width, y + height], image=image)
            assert after["area"] == segment.area
            left, top, right, bottom = segment.box
            assert after["bbox"] == [left + SIDE, top, right - left, bottom - top]
