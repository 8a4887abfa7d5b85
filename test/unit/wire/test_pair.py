"""Requests and answers of a model pair, in numbers, and errors by their codes; the clients' tests have the rest."""

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from triton_sam import Cleanup
from triton_sam.errors import (
    ImageError,
    InferenceError,
    InputError,
    ModelNotReadyError,
    PromptError,
    ServerBusyError,
    ServerUnreachableError,
    UnknownImageError,
)
from triton_sam.families import get_family
from triton_sam.inputs.prompts import check_prompts
from triton_sam.transport.failures import map_error
from triton_sam.transport.url import parse_url
from triton_sam.wire.contract import CODES, code_of, read_error
from triton_sam.wire.pair import ModelPair, Prediction

SAM2, SAM3 = (ModelPair(get_family(name)) for name in ("sam2", "sam3"))


def prompts(*points):
    """Return prompts of one point for each object."""
    return check_prompts([[point] for point in points], None, None, None, image_size=(60, 40), mask_size=256)


def test_what_is_no_embedding_is_named():
    with pytest.raises(InputError, match="not str: or call set_image"):
        SAM2.check_origin("image")


def prediction(pair):
    logits = np.full((2, 3, 8, 8), -100, np.float32)
    logits[..., 2:6, 2:6] = 100
    return Prediction(logits, np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3), prompts([3, 4], [5, 6]))


@pytest.mark.parametrize(("pair", "limits"), [(SAM2, (-32, 32)), (SAM3, (-100, 100))], ids=["sam2", "sam3"])
def test_logits_are_clamped_on_both_sides_as_the_official_predictor_does(pair, limits):
    logits, _ = pair.low_res(prediction(pair))
    assert (logits.min(), logits.max()) == limits


def test_the_clean_up_gets_the_clicks_of_each_object():
    logits = np.full((2, 1, 8, 8), -100, np.float32)
    logits[..., :2] = logits[..., 6:] = 100
    clicked = Prediction(logits, np.ones((2, 1), np.float32), prompts([3, 20], [57, 20]))
    found = SAM2.segments(clicked, Cleanup(keep_clicked=True))
    left, right = (each.mask.any(axis=0) for each in found)
    assert (left[0], left[-1], right[0], right[-1]) == (True, False, False, True)


# Errors are told apart by their codes, whatever their words are


@pytest.mark.parametrize("code", CODES)
def test_every_code_comes_back_as_the_error_that_was_sent(code):
    sent = CODES[code]("the words: 3 of 4")
    read = read_error(InferenceError(f"sam2 failed: {code_of(sent)}: {sent}"))
    assert (type(read), str(read)) == (CODES[code], "the words: 3 of 4")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("BAD_PROMPT: prompt_json has no 'BUSY: x'", PromptError),
        ("BAD_PROMPT: there is no model 'x' ready, unknown model", PromptError),
        ("BAD_IMAGE: the file 'UNKNOWN_IMAGE_ID: 1' is not an image", ImageError),
        ("BAD_REQUEST: there is no parameter 'BUSY: '", InferenceError),
        ("INTERNAL: sam2_encoder failed: BUSY: this is a text", InferenceError),
        ("INTERNAL: sam2_decoder failed: Stub process 'sam2_decoder_0_0' is not healthy.", ServerUnreachableError),
        ("BUSY: too many requests wait here already", ServerBusyError),
        ("MODEL_NOT_READY: this server does not have sam3_detector", ModelNotReadyError),
        ("UNKNOWN_IMAGE_ID: no image 'is not healthy' here", UnknownImageError),
        ("UNKNOWN_FRAME 12 UNKNOWN_IMAGE_ID: frame 12 is unknown or expired: send it again", UnknownImageError),
        ("in ensemble 'sam2_encoder_jpeg', BAD_IMAGE: the content is not an image", ImageError),
        ("onnx runtime error 2: not enough memory", InferenceError),
    ],
)
def test_words_that_look_like_another_error_change_nothing(message, kind):
    error = map_error(InferenceServerException(message, status="400"), parse_url("http://host"), "sam2")
    read = read_error(error) if type(error) is InferenceError else error
    assert type(read) is kind
    assert getattr(read, "frame", None) == (12 if "UNKNOWN_FRAME" in message else None)
