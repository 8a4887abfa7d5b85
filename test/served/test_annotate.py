"""The command `annotate` on a real Triton: its masks are those of the client, and its manifest names the weights."""

import json

import numpy as np
import pytest

from triton_sam import SAM2TritonClient
from triton_sam.cli import main
from triton_sam.masks import rle_to_mask

BOXES = {"shapes.jpg": [[120, 100, 180, 170], [560, 360, 140, 130]], "coffee.jpg": [[100, 80, 200, 150]]}
"""Boxes [x, y, width, height] by image."""


@pytest.fixture(scope="module")
def annotated(images, service_triton, tmp_path_factory):
    """The folder of results, which has the images, too."""
    folder = tmp_path_factory.mktemp("annotated")
    wanted = []
    for number, (name, boxes) in enumerate(BOXES.items(), 1):
        (folder / name).write_bytes((images / name).read_bytes())
        wanted += [
            {"id": len(wanted) + i, "image_id": number, "category_id": 1, "bbox": box} for i, box in enumerate(boxes)
        ]
    named = [{"id": number, "file_name": name} for number, name in enumerate(BOXES, 1)]
    document = {"images": named, "annotations": wanted, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "boxes.json").write_text(json.dumps(document))
    urls = ["--url", service_triton.http_url, "--url", service_triton.grpc_url]
    assert (
        main(["annotate", str(folder / "boxes.json"), "--with", "boxes", "--out", str(folder / "out"), "-q", *urls])
        == 0
    )
    return folder


def test_masks_equal_those_of_the_client(annotated, service_triton):
    found = json.loads((annotated / "out/coco.json").read_text())["annotations"]
    masks = iter(found)
    with SAM2TritonClient(service_triton.http_url) as client:
        for name, boxes in BOXES.items():
            image = client.encode(annotated / name)
            for x, y, width, height in boxes:
                (segment,) = client.segment(box=[x, y, x + width, y + height], image=image)
                mask = next(masks)
                np.testing.assert_array_equal(rle_to_mask(mask["segmentation"]), segment.mask)
                assert mask["score"] == pytest.approx(segment.score, abs=1e-5)
    assert next(masks, None) is None


def test_the_manifest_names_the_weights(annotated):
    models = json.loads((annotated / "out/manifest.json").read_text())["models"]
    assert models.keys() == {"sam2_encoder", "sam2_decoder", "weights"}
    assert len(models["weights"]) == 32
