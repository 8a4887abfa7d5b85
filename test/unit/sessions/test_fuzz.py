"""The Python models under random requests: each is answered, or refused with a code that is documented."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.fuzzing import REFUSALS, code, image_file, once, session, text
from support.pb_utils import Request, Triton
from support.strategies import anything, damaged_images

from triton_sam.masks import Cleanup
from triton_sam.wire import contract

MODEL = session()
GOOD = image_file()
images = damaged_images | st.binary(max_size=64) | st.just(GOOD)
names = st.text(max_size=20).map(str.encode) | st.binary(max_size=20)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.bool_, np.uint8]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


@given(st.binary(max_size=200))
@example(b"\1" + b"[" * 100_000)
@example(b'\1{"points": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'\1{"points": [[1e999, 0]]}')
@settings(max_examples=300)
def test_any_bytes_are_answered_or_refused(data):
    once(data, MODEL)


@given(images)
@settings(max_examples=300)
def test_any_image_is_encoded_or_refused(content):
    assert code(MODEL.answer({"image": text(content)})) in ("", "BAD_IMAGE")
    encoded = {"image_b64": text(base64.encodebytes(content))}
    assert code(MODEL.answer(encoded)) in ("", "BAD_IMAGE")
    assert code(MODEL.answer({"image_b64": text(content)})) == "BAD_IMAGE"


numbers = st.floats(-5, 25) | st.floats() | st.integers(-(10**30), 10**30)
cleanups = st.dictionaries(st.sampled_from([*Cleanup.__dataclass_fields__, "other"]), numbers | st.booleans())
prompts = st.fixed_dictionaries(
    {},
    optional={
        "points": st.lists(st.lists(numbers, max_size=3), max_size=5)
        | st.lists(st.lists(st.lists(numbers)))
        | anything,
        "labels": st.lists(st.integers(-3, 4), max_size=5) | anything,
        "boxes": st.lists(st.lists(numbers, min_size=4, max_size=4), max_size=3) | anything,
        "multimask": st.booleans() | anything,
        "rle": st.booleans() | anything,
        "cleanup": cleanups | anything,
        "image_id": st.text(max_size=5) | anything,
    },
)


@given(prompts)
@settings(max_examples=300)
def test_any_prompt_json_is_answered_or_refused(prompt):
    reply = MODEL.answer({"prompt_json": text(json.dumps(prompt).encode()), "image_b64": text(base64.b64encode(GOOD))})
    refused = code(reply)
    answer = json.loads(reply.tensors["result_json"][0])
    if not refused:
        assert answer["image_size"] == [16, 12]
        assert all((mask["width"], mask["height"]) == (16, 12) for mask in answer["masks"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "image": images.map(text),
            "image_id": names.map(text),
            "point_coords": arrays | hnp.arrays(np.float32, (1, 2, 2), elements=st.floats(0, 12, width=32)),
            "point_labels": arrays | hnp.arrays(np.float32, (1, 2), elements=st.sampled_from([0.0, 1.0, -2.0, 3.0])),
            "boxes": arrays | st.just(np.float32([[1, 1, 9, 9]])),
            "mask_input": arrays | st.just(np.zeros((1, 1, 256, 256), np.float32)),
            "multimask_output": st.booleans().map(lambda value: np.array([value])),
            "output_format": (st.sampled_from([b"logits", b"png", b"rle"]) | names).map(text),
            "cleanup": (names | cleanups.map(lambda each: json.dumps(each).encode())).map(text),
        },
    )
)
@settings(max_examples=400)
def test_any_tensors_are_answered_or_refused(tensors):
    code(MODEL.answer(tensors))


@given(names)
@settings(max_examples=200)
def test_any_id_is_unknown_or_no_text(name):
    assert code(MODEL.answer({"image_id": text(name)})) in ("UNKNOWN_IMAGE_ID", contract.BAD_REQUEST)


def test_no_request_has_touched_the_next():
    """After all of that the model holds what it may, and answers as before."""
    assert MODEL.images.cache.nbytes <= MODEL.images.cache.limit
    reply = MODEL.answer({"image": text(GOOD), "point_coords": np.float32([[[3, 3]]])})
    assert code(reply) == ""
    assert reply.tensors["masks"].shape == (1, 1, 256, 256)


# The model that only opens images


@pytest.fixture(scope="module")
def preprocess():
    """The model, inside of what it takes for Triton."""
    model = Triton(lambda *_: {}).load("image.preprocess_model").TritonPythonModel()
    output = [{"name": "image", "dims": [1, 3, 1024, 1024]}]
    config = {"parameters": {"family": {"string_value": "SAM2"}}, "output": output}
    model.initialize({"model_config": json.dumps(config)})
    return model


@given(content=images)
@settings(max_examples=100)
def test_the_model_that_opens_images_answers_or_refuses(preprocess, content):
    (response,) = preprocess.execute([Request(["image", "image_size"], {"encoded_image": text(content)})])
    if response.has_error():
        assert response.error().code() == "INVALID_ARG", response.error().message()
        assert response.error().message().partition(": ")[0] in REFUSALS
    else:
        shapes = {tensor.name(): tensor.shape() for tensor in response.output_tensors()}
        assert shapes == {"image": [1, 3, 1024, 1024], "image_size": [2]}
