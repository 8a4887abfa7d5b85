"""The table of formats: every interface reads it, so that a new format is one row and one function."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from triton_sam.errors import InputError
from triton_sam.masks import Segment
from triton_sam.masks.segment import FORMATS, find_format, formats_of
from triton_sam.wire import contract

NEW_FORMAT = """
import json
import numpy as np
from triton_sam.masks import Segment
from triton_sam.masks import segment as formats

def box(segment, tolerance):
    return list(segment.box)

formats.FORMATS["box"] = formats.Format(
    "box", media_type="application/x-box", meaning="x1, y1, x2, y2", value=list[int], encode=box
)

from triton_sam.inputs.prompts import check_prompts
from triton_sam.families import get_family
from triton_sam.sessions.image.messages import write_masks
from triton_sam.sessions.image.messages import read_request
from triton_sam.wire import contract
from triton_sam.wire.pair import ModelPair, Prediction

segment = Segment(np.ones((2, 3), bool), 0.5, None)
print(segment.encode("box").decode())

tensors = {"image_id": np.array([b"a"], object), "output_format": np.array([b"box"], object)}
request = read_request(tensors)
prompts = check_prompts([[1, 1]], None, None, None, image_size=(3, 2), mask_size=256)
prediction = Prediction(np.ones((1, 1, 256, 256), np.float32), np.ones((1, 1), np.float32), prompts)
print(write_masks(ModelPair(get_family("sam2")), prediction, request)["encoded_masks"].item().decode())

try:
    import fastapi
except ImportError:
    raise SystemExit("without the service")
from triton_sam.service import answers, schemas
form, as_file = answers.choose_format("box", "*/*")
request = schemas.SegmentRequest(points=[[1, 1]], format="box")
answer = schemas.SegmentAnswer(image="a", model="sam2", width=3, height=2, masks=[], milliseconds=0)
(mask,) = json.loads(answers.write_answer(answer, [segment], form, request, 0.0))["masks"]
print(mask["box"], "box" in json.dumps(schemas.SegmentRequest.model_json_schema()))
"""


def segment(index: int = 0, candidate: int = 0, score: float = 0.5) -> Segment:
    mask = np.zeros((6, 8), np.bool_)
    mask[2:5, 1 : 4 + index] = True
    return Segment(mask, score, None, index, candidate)


def test_a_new_format_is_offered_at_every_interface() -> None:
    command = [sys.executable, "-c", NEW_FORMAT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["[0,0,3,2]", "[0,0,3,2]"]
    assert lines[2:] == ["[0, 0, 3, 2] True"] or "without the service" in done.stderr


def test_interfaces() -> None:
    assert tuple(formats_of("session model")) == ("rle", "png", "png_base64")
    assert tuple(formats_of("service")) == tuple(formats_of("client")) == ("rle", "polygons", "geojson", "png")
    assert contract.output_formats() == ("logits", "rle", "png", "png_base64")
    with pytest.raises(InputError, match="'polygons' here: give one of rle, png"):
        find_format("polygons", "session model")


def test_masks_come_back_from_what_a_client_asks_for() -> None:
    rle = FORMATS["rle"]
    np.testing.assert_array_equal(rle.to_mask(segment().encode("rle")), segment().mask)
    for damaged in (b"no JSON", b"[]", b'{"size": [2, 2], "counts": "x"}'):
        with pytest.raises(InputError, match="RLE"):
            rle.to_mask(damaged)
    with pytest.raises(InputError, match="png cannot be decoded"):
        FORMATS["png"].to_mask(b"")


def test_a_file_of_one_mask_and_of_all() -> None:
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


def test_what_a_format_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match="rle has no file for several masks"):
        FORMATS["rle"].to_document([segment()])
    with pytest.raises(InputError, match="geojson cannot represent a single mask"):
        FORMATS["geojson"].to_json(segment())
    with pytest.raises(InputError, match="there is no object"):
        FORMATS["png"].to_document([])
    with pytest.raises(InputError, match="65535 objects, not 70001"):
        FORMATS["png"].to_document([segment(0), Segment(segment().mask, 0.5, None, 70_000)])
    with pytest.raises(InputError, match="no format 'svg' here: give one of rle, polygons, geojson, png"):
        segment().encode("svg")
