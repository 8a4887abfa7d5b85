"""POST /v1/exports: the files equal those of the writers, and bad lines are named."""

import io
import json
import time
import zipfile

import numpy as np
import pytest
from PIL import Image
from support.rectangles import mask
from support.running_service import service_without_triton

from triton_sam.masks.rle import mask_to_rle, rle_to_mask
from triton_sam.service.exports import Export

SIZE = (40, 30)
LARGE = mask((2, 3, 22, 23), size=SIZE[::-1])
SMALL = mask((10, 10, 14, 13), size=SIZE[::-1])


def line(name="one.jpg", objects=(("cat", LARGE), ("ant", SMALL)), **changes):
    members = [
        {"label": label, "name": f"my {label}", "score": 0.5, "rle": mask_to_rle(each)} for label, each in objects
    ]
    return {"name": name, "width": SIZE[0], "height": SIZE[1], "objects": members, **changes}


@pytest.fixture(scope="module")
def http():
    with service_without_triton() as http:
        yield http


@pytest.fixture
def export(http):
    def ask(form, *lines):
        content = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
        return http.post(f"/v1/exports?format={form}", files={"images": ("images.jsonl", content)})

    return ask


def unpacked(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_part_needs_no_name_of_a_file(http):
    """`curl -F images=<lines` sends a field, and `curl -F images=@lines` a file."""
    noise = np.random.default_rng(1).random((300, 400)) < 0.5
    lines = [line(f"{number}.jpg", [("dust", noise)], width=400, height=300) for number in range(20)]
    content = "\n".join(map(json.dumps, lines))
    assert len(content) > 1 << 20  # more than a form's field may have by default
    answer = http.post("/v1/exports?format=coco", files={"images": (None, content)})
    assert len(json.loads(unpacked(answer)["coco.json"])["images"]) == 20


def test_coco_holds_all_images_labels_and_names(export):
    files = unpacked(export("coco", line(), line("two.png", [("cat", SMALL)])))
    coco = json.loads(files["coco.json"])
    assert [each["file_name"] for each in coco["images"]] == ["one.jpg", "two.png"]
    assert [each["name"] for each in coco["categories"]] == ["ant", "cat"]
    found = [(each["image_id"], each["category_id"], each["name"], each["bbox"]) for each in coco["annotations"]]
    assert found == [
        (1, 2, "my cat", [2, 3, 20, 20]),
        (1, 1, "my ant", [10, 10, 4, 3]),
        (2, 2, "my cat", [10, 10, 4, 3]),
    ]
    for each, expected in zip(coco["annotations"], (LARGE, SMALL, SMALL), strict=True):
        np.testing.assert_array_equal(rle_to_mask(each["segmentation"]), expected)


def test_the_other_formats(export):
    pytest.importorskip("contourpy")
    one = line()
    names = {form: sorted(unpacked(export(form, one))) for form in ("yolo", "voc", "labelme", "geojson", "labels")}
    assert names == {
        "yolo": ["yolo/data.yaml", "yolo/labels/one.txt"],
        "voc": [
            "voc/Annotations/one.xml",
            "voc/SegmentationClass/one.png",
            "voc/SegmentationObject/one.png",
            "voc/classes.txt",
        ],
        "labelme": ["labelme/one.json"],
        "geojson": ["geojson/one.geojson"],
        "labels": ["labels/one.jpg.png"],
    }
    labels = np.asarray(Image.open(io.BytesIO(unpacked(export("labels", one))["labels/one.jpg.png"])))
    np.testing.assert_array_equal(labels, np.where(SMALL, 2, LARGE))  # the smaller object lies on the larger one
    assert unpacked(export("yolo", one))["yolo/data.yaml"] == (
        b'train: images\nval: images\nnames:\n  0: "ant"\n  1: "cat"\n'
    )


def test_images_of_equal_names_in_folders_keep_their_folders(export):
    lines = line("a/one.jpg"), line("b/c/one.jpg")
    coco = json.loads(unpacked(export("coco", *lines))["coco.json"])
    assert [each["file_name"] for each in coco["images"]] == ["a/one.jpg", "b/c/one.jpg"]
    assert sorted(unpacked(export("labels", *lines))) == ["labels/a/one.jpg.png", "labels/b/c/one.jpg.png"]
    for names in (("a", "a.png/b"), ("a.png/b", "a")):
        refused = export("labels", *map(line, names))
        assert (refused.status_code, "rename it" in refused.json()["detail"]) == (422, True)


def test_a_large_data_set_may_take_longer_than_other_requests(monkeypatch):
    """Twenty photographs of 12 megapixels with twenty objects each take a minute."""
    timeout = 0.5

    def write(*_):
        time.sleep(2 * timeout)
        return b"files"

    monkeypatch.setattr(Export, "to_zip", write)
    with service_without_triton(timeout=timeout) as http:
        answer = http.post("/v1/exports?format=coco", files={"images": ("images.jsonl", json.dumps(line()))})
    assert answer.content == b"files"


DAMAGED = line()
DAMAGED["objects"][0]["rle"]["counts"] = "00"
BAD_LINES = (
    ((DAMAGED,), 422, "damaged COCO RLE"),
    ((), 422, "there is no image"),
    (("nonsense",), 422, "line 1"),
    ((line(), line(name="../two.jpg")), 422, "line 2: name"),
    ((line(name=".."),), 422, "line 1: name"),
    ((line(name="/one.jpg"),), 422, "line 1: name"),
    ((line(name="a/../one.jpg"),), 422, "line 1: name"),
    ((line(name=f"{'a/' * 17}one.jpg"),), 422, "line 1: name"),
    ((line(colour="red"),), 422, "there is no member 'colour'"),
    ((line(objects=[("two\nlines", LARGE)]),), 422, "objects.0.label"),
    ((line(width=41),), 422, "a mask of 40 x 30 pixels in an image of 41 x 30"),
    ((line(objects=(), width=100_000, height=100_000),), 413, "million pixels"),
    ((line(objects=[("a", LARGE)] * 7, width=8000, height=8000),), 422, "export fewer objects of it, or save COCO"),
    ((line(objects=(), name="x" * (3 << 20)),), 413, "line 1: a line"),
    ((line(), line(name="one.png")), 422, "one.jpg has the same file one"),
)


def test_bad_lines_are_named(export):
    for lines, status, words in BAD_LINES:
        answer = export("yolo", *lines)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
        assert words in answer.json()["detail"]
