"""`annotate` of drawn scenes on a real Triton: masks of the client, which pycocotools and supervision load."""

import numpy as np
import pytest
from PIL import Image
from pycocotools import coco
from support.annotated import write_scenes
from support.uv_environment import make_environment, run_script

from triton_sam import SAM2TritonClient
from triton_sam.cli import main

pytestmark = pytest.mark.nightly

SCENES = 12
SUPERVISION = """
import json, pathlib, sys
import numpy as np
import supervision

images, out = map(pathlib.Path, json.loads(sys.argv[1]))
data = {
    "coco": supervision.DetectionDataset.from_coco(str(images), str(out / "coco.json"), force_masks=True),
    "polygons": supervision.DetectionDataset.from_coco(str(images), str(out / "coco_polygons.json"), force_masks=True),
    "yolo": supervision.DetectionDataset.from_yolo(
        str(images), str(out / "yolo/labels"), str(out / "yolo/data.yaml"), force_masks=True
    ),
    "voc": supervision.DetectionDataset.from_pascal_voc(str(images), str(out / "voc/Annotations")),
}
counts = {kind: {pathlib.Path(path).name: len(found) for path, _, found in each} for kind, each in data.items()}
masks = {pathlib.Path(path).name: np.packbits(found.mask) for path, _, found in data["coco"] if len(found)}
np.savez(out / "masks.npz", **masks)
print(json.dumps(counts))
"""


@pytest.mark.timeout(3600)
def test_all_tools_load_the_masks_of_the_client(service_triton, tmp_path):
    python = make_environment(tmp_path / "venv", ["supervision>=0.25"])
    scenes, out = write_scenes(tmp_path / "in", SCENES), tmp_path / "out"
    formats = ["--format", "coco", "coco-polygons", "yolo", "voc"]
    command = ["annotate", str(scenes), "--with", "boxes", "--out", str(out), "-q", *formats]
    assert main([*command, "--url", service_triton.grpc_url]) == 0
    data = coco.COCO(str(out / "coco.json"))
    wanted = coco.COCO(str(scenes))
    assert [each["image_id"] for each in data.dataset["annotations"]] == [
        each["image_id"] for each in wanted.dataset["annotations"]
    ]
    masks: dict[str, np.ndarray] = {}
    with SAM2TritonClient(service_triton.http_url) as client:
        for image in data.dataset["images"]:
            found = data.loadAnns(data.getAnnIds(image["id"]))
            boxes = [each["bbox"] for each in wanted.loadAnns(wanted.getAnnIds(image["id"]))]
            shown = client.encode(scenes.parent / image["file_name"])
            corners = [[x, y, x + width, y + height] for x, y, width, height in boxes]
            segments = client.segment(box=corners, image=shown) if corners else []
            assert len(segments) == len(found)
            for segment, each in zip(segments, found, strict=True):
                np.testing.assert_array_equal(data.annToMask(each).astype(bool), segment.mask)
                assert each["area"] == segment.area
            masks[image["file_name"]] = np.array([segment.mask for segment in segments])
    counts = run_script(python, SUPERVISION, str(scenes.parent), str(out))
    expected = {name: len(each) for name, each in masks.items()}
    assert counts["coco"] == counts["polygons"] == counts["voc"] == counts["yolo"] == expected
    with np.load(out / "masks.npz") as packed:
        for name, each in masks.items():
            with Image.open(scenes.parent / name) as scene:
                assert each.shape[1:] == scene.size[::-1]
            np.testing.assert_array_equal(packed[name], np.packbits(each))
    assert len(masks) == SCENES
    print(f"{SCENES} scenes, {sum(expected.values())} masks equal those of the client, in pycocotools and supervision")
