"""The forms of one object: the table of formats, which every interface reads, cut-outs, and other libraries."""

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.rectangles import mask

from triton_sam.errors import InputError, MissingDependencyError
from triton_sam.masks import Segment, to_supervision
from triton_sam.masks.segment import FORMATS, find_format, formats_of
from triton_sam.wire import contract

DAMAGED = (b"no JSON", b"[]", b'{"size": [2, 2], "counts": "x"}')
IMAGE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
OBJECT = Segment(mask((31, 10, 50, 11), (30, 11, 50, 20), size=(40, 60)), 0.75, None, object_index=2, candidate=1)
NOTHING = Segment(mask(size=(40, 60)), 0.1, None)


def segment(index=0, candidate=0, score=0.5):
    return Segment(mask((1, 2, 4 + index, 5), size=(6, 8)), score, None, index, candidate)


def test_interfaces():
    assert tuple(formats_of("session model")) == ("rle", "png", "png_base64")
    assert tuple(formats_of("service")) == tuple(formats_of("client")) == ("rle", "polygons", "geojson", "png")
    assert contract.output_formats() == ("logits", "rle", "png", "png_base64")
    np.testing.assert_array_equal(FORMATS["rle"].to_mask(segment().encode("rle")), segment().mask)


def test_a_file_of_one_mask_and_of_all():
    pytest.importorskip("contourpy")
    both = [segment(0), segment(1, 0, 0.2), segment(1, 1, 0.9)]
    for name, form in formats_of("client").items():
        content = both[0].encode(name)
        assert content == form.to_bytes(both[0])
        if not form.is_binary:
            json.loads(content)
    image = np.asarray(Image.open(io.BytesIO(FORMATS["png"].to_document(both))))
    np.testing.assert_array_equal(image, np.where(both[0].mask, 1, np.where(both[1].mask, 2, 0)))  # small ones win
    features = json.loads(FORMATS["geojson"].to_document(both))["features"]
    assert [feature["properties"]["candidate"] for feature in features] == [0, 0, 1]
    assert [len(feature["geometry"]["coordinates"]) for feature in features] == [1, 1, 1]


@pytest.mark.parametrize(
    ("convert", "words"),
    [
        (lambda: find_format("polygons", "session model"), "'polygons' here: give one of rle, png"),
        (lambda: FORMATS["rle"].to_document([segment()]), "rle has no file for several masks"),
        (
            lambda: FORMATS["png"].to_document([segment(), replace(segment(), object_index=70_000)]),
            "65535 .* not 70001",
        ),
        (lambda: segment().encode("svg"), "no format 'svg' here: give one of rle, polygons, geojson, png"),
        (lambda: OBJECT.crop(IMAGE, -1), "at least 0"),
        (lambda: OBJECT.cutout(IMAGE[:30]), "shape"),
        (lambda: NOTHING.cutout(IMAGE), "empty"),
        *((lambda content=content: FORMATS["rle"].to_mask(content), "RLE") for content in DAMAGED),
    ],
)
def test_what_cannot_be_converted_is_said(convert, words):
    with pytest.raises(InputError, match=words):
        convert()


# One object, cut out and for other libraries


def test_a_cutout_is_transparent_around_the_object():
    cut = np.asarray(OBJECT.cutout(IMAGE))
    assert cut.shape == (10, 20, 4)
    assert cut[0, 0].tolist() == [0, 0, 0, 0]
    inside = cut[..., 3] == 255
    assert inside.sum() == OBJECT.area
    np.testing.assert_array_equal(cut[inside][:, :3], IMAGE[10:20, 30:50][inside])


def test_a_crop_keeps_a_margin_as_far_as_the_image_reaches():
    np.testing.assert_array_equal(np.asarray(OBJECT.crop(IMAGE)), IMAGE[10:20, 30:50])
    np.testing.assert_array_equal(np.asarray(OBJECT.crop(IMAGE, 15)), IMAGE[:35, 15:])


def test_notebooks_and_pycocotools_read_the_mask():
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(OBJECT._repr_png_()))) > 0, OBJECT.mask)
    coco = pytest.importorskip("pycocotools.mask")
    np.testing.assert_array_equal(coco.decode(OBJECT.to_pycocotools()), OBJECT.mask)
    assert coco.area(OBJECT.to_pycocotools()) == OBJECT.area


@pytest.mark.filterwarnings("ignore:OpenCV:UserWarning")
def test_detections_of_supervision():
    pytest.importorskip("supervision")
    found = to_supervision([OBJECT, NOTHING])
    assert found.xyxy.tolist() == [[30, 10, 50, 20]]
    assert (found.confidence.tolist(), found.class_id.tolist()) == ([0.75], [0])
    assert (found.data["object_index"].tolist(), found.data["candidate"].tolist()) == ([2], [1])
    assert found["class_name"].tolist() == ["object"]
    np.testing.assert_array_equal(found.mask[0], OBJECT.mask)
    several = to_supervision([replace(OBJECT, label=label) for label in ("bus", "cat", "bus", "")])
    assert several["class_name"].tolist() == ["bus", "cat", "bus", "object"]
    assert several.class_id.tolist() == [0, 1, 0, 2]
    assert len(to_supervision([NOTHING])) == 0
    assert len(OBJECT.to_supervision()) == 1


def test_without_supervision_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match=r"\[supervision\]"):
        OBJECT.to_supervision()
