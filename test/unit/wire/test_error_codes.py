"""Errors are told apart by their codes, whatever their words are."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from triton_sam.errors import (
    ImageError,
    InferenceError,
    ModelNotReadyError,
    PromptError,
    SamError,
    ServerBusyError,
    ServerUnreachableError,
    UnknownImageError,
)
from triton_sam.transport.failures import map_error
from triton_sam.transport.url import parse_url
from triton_sam.wire.contract import CODES, code_of, read_error


@pytest.mark.parametrize("code", CODES)
def test_every_code_comes_back_as_the_error_that_was_sent(code: str) -> None:
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
        ("UNKNOWN_FRAME 12 UNKNOWN_IMAGE_ID: frame 12 is not here (any more): send it again", UnknownImageError),
        ("in ensemble 'sam2_encoder_jpeg', BAD_IMAGE: the content is not an image", ImageError),
        ("onnx runtime error 2: not enough memory", InferenceError),
    ],
)
def test_words_that_look_like_another_error_change_nothing(message: str, kind: type[SamError]) -> None:
    error = map_error(InferenceServerException(message, status="400"), parse_url("http://host"), "sam2")
    read = read_error(error) if type(error) is InferenceError else error
    assert type(read) is kind
    assert getattr(read, "frame", None) == (12 if "UNKNOWN_FRAME" in message else None)
