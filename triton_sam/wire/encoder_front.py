"""The contract of the front ends of encoders, which serve both generations of Paintera's client (sam-link).

The released clients send raw RGB in 0..1. Newer clients send normalised tensors or one JPEG, and request FP16 with a
parameter. docs/how-to/paintera.md explains it. The names and shapes are those of the guide for newer clients ("Encoder
endpoints: gRPC client guide").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import ConfigurationError, InputError
from ..families.base import Family
from ..repository.config import ALIAS_KEY
from .contract import Parameter, WireTensor

JPEG_IMAGE = "jpeg_image"
VALID_SIZE = "valid_size"
REQUEST_FP16 = "request_fp16"
PIXELS = "pixels"

Pixels = Literal["auto", "unit", "normalised"]
PIXEL_MODES: tuple[Pixels, ...] = get_args(Pixels)
"""The contents of raw tensors: RGB in 0..1 (unit), normalised RGB, or either, detected from the values (auto)."""

PRIORITY_LEVELS = 2
"""Priority 1 is served first. All others are the default, 2; released clients send 5, which Triton reads as 2."""

_SWITCH: Mapping[Any, bool] = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class FrontOptions:
    """The parameters of one request.

    Args:
        fp16: whether the embeddings are FP16 instead of FP32.
    """

    fp16: bool
    pixels: Pixels


def front_inputs(family: Family, shape: tuple[int | str, ...]) -> tuple[WireTensor, ...]:
    """Return the inputs of a front end.

    Args:
        shape: shape of the encoder's input, (images, 3, side, side).
    """
    (raw,) = family.encoder.inputs
    side = shape[-1]
    # Triton checks the number of dimensions before the model receives the request, so [1] cannot be accepted.
    inputs = [
        WireTensor(raw.name, raw.dtype, shape, True, heading="Exactly one of these two."),
        WireTensor(JPEG_IMAGE, "BYTES", (1, 1), True, f"one JPEG of {side} x {side} pixels"),
    ]
    if family.keep_aspect:
        inputs.append(
            WireTensor(
                VALID_SIZE, "INT32", (2,), True, "width, height of the image inside the square; the rest is padding"
            )
        )
    return tuple(inputs)


def front_parameters(family: Family, encoder: str, pixels: Pixels) -> tuple[Parameter, ...]:
    return (
        Parameter("family", family.name.upper()),
        Parameter(ALIAS_KEY, encoder),
        Parameter(PIXELS, pixels, f"What raw tensors hold: {', '.join(PIXEL_MODES[:-1])} or {PIXEL_MODES[-1]}."),
    )


def check_pixels(value: Any) -> Pixels:
    for mode in PIXEL_MODES:
        if value == mode:
            return mode
    raise ConfigurationError(f"{PIXELS} must be one of {', '.join(PIXEL_MODES)}, not {value!r}")


def read_options(text: str, pixels: Pixels) -> FrontOptions:
    """Read the parameters of a request. Parameters with other names are ignored, as in Triton.

    Args:
        text: the parameters as a JSON object, as Triton passes them to a Python model; empty for none.
    """
    parameters: dict[str, Any] = json.loads(text or "{}")
    switch = parameters.get(REQUEST_FP16, False)
    fp16 = _SWITCH.get(str(switch).lower())
    if fp16 is None:
        raise InputError(f"{REQUEST_FP16} must be true or false, not {switch!r}")
    try:
        return FrontOptions(fp16, check_pixels(parameters.get(PIXELS, pixels)))
    except ConfigurationError as error:
        raise InputError(str(error)) from None
