"""Prompts and clean-up as JSON, as programs in other languages send them to a session model."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.fuzzing import image_file, session, text
from support.image_server import ImageServer

from triton_sam import Cleanup, SAM2TritonClient
from triton_sam.errors import InputError

POINT = [[3, 4]]


def test_the_mask_of_a_prompt_in_json_is_that_of_the_client() -> None:
    cleanup = Cleanup(max_sprinkle_area=9, keep_clicked=True)
    prompt = {"points": POINT, "cleanup": cleanup.to_json()}
    with ImageServer() as server, SAM2TritonClient(server.url) as client:
        client.set_image(image_file())
        (expected,) = client.segment(POINT, cleanup=cleanup)
        inputs = {"image_b64": text(base64.b64encode(image_file())), "prompt_json": text(json.dumps(prompt).encode())}
        reply = server.program._model.answer(inputs)
    content = base64.b64decode(json.loads(reply.tensors["result_json"][0])["mask"]["data"])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))) > 0, expected.mask)


@pytest.mark.parametrize(
    ("form", "cleanup", "message"),
    [
        (b"rle", b"{", "cleanup: invalid JSON"),
        (b"rle", b"[]", 'cleanup must be an object such as {"keep_clicked": true}, not a list'),
        (b"png", b'{"smooth": 1e9}', "smooth must be a number within 0..100"),
        (b"logits", b"{}", "not logits: request output_format rle or png"),
    ],
)
def test_a_bad_clean_up_is_refused(form: bytes, cleanup: bytes, message: str) -> None:
    inputs = {"image": text(image_file()), "point_coords": np.array([POINT], np.float32)}
    reply = session().answer({**inputs, "output_format": text(form), "cleanup": text(cleanup)})
    assert isinstance(reply.error, InputError)
    assert message in str(reply.error)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"points": {}}, "prompt_json: points must be a list of [x, y], not an object"),
        ({"multimask": 1.5}, "prompt_json: multimask must be true or false, not a number"),
        ({"image_id": True}, "prompt_json: image_id must be text, not true"),
        (None, 'prompt_json must be an object such as {"points": [[x, y]]}, not null'),
    ],
)
def test_wrong_kinds_of_values_are_told_in_words_of_json(prompt: Any, message: str) -> None:
    reply = session().answer({"prompt_json": text(json.dumps(prompt).encode())})
    assert json.loads(reply.tensors["result_json"][0])["error"]["message"] == message
