"""The wire contract of the session models ``sam1``, ``sam2``, ``sam3``: tensors, parameters, formats, errors.

The clients, the session models and the writer of their config.pbtxt (triton_sam.sessions.configs) all use it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from ..errors import (
    ImageError,
    InferenceError,
    ModelNotReadyError,
    PromptError,
    SamError,
    ServerBusyError,
    UnknownImageError,
    UnknownSessionError,
    VideoError,
)
from ..families.base import Family
from ..families.tables import DECODER, ENCODER, MAX_PROMPTS, Tensor
from ..masks.segment import formats_of

IMAGE = "image"
IMAGE_ID = "image_id"
POINT_COORDS = "point_coords"
POINT_LABELS = "point_labels"
BOXES = "boxes"
MASK_INPUT = "mask_input"
MULTIMASK_OUTPUT = "multimask_output"
OUTPUT_FORMAT = "output_format"
CLEANUP = "cleanup"
EVERYTHING = "everything"
EVERYTHING_PART = "everything_part"
FIND = "find"
FIND_LOGITS = "find_logits"
EXAMPLE_IMAGE = "example_image"
IMAGE_B64 = "image_b64"
PROMPT_JSON = "prompt_json"

IMAGE_SIZE = "image_size"
MASKS = "masks"
ENCODED_MASKS = "encoded_masks"
IOU_PREDICTIONS = "iou_predictions"
RESULT_JSON = "result_json"
ENCODED_IMAGE = "encoded_image"
"""The input of ``*_preprocess`` and ``*_encoder_jpeg``, the models that only encode images."""

LOGITS = "logits"
"""The default output format: the logits of the decoder, unchanged. All other formats are encoded masks."""

MAX_POINTS = 1024
"""Maximum number of points in one request, over all objects and with padding. A box counts as two points."""
MAX_JOB_POINTS = 16384
"""Maximum number of points of one search for all objects, over all crops."""
MAX_OBJECTS = MAX_PROMPTS

BAD_REQUEST = "BAD_REQUEST"
INTERNAL = "INTERNAL"
CODES: dict[str, type[SamError]] = {
    "UNKNOWN_IMAGE_ID": UnknownImageError,
    "UNKNOWN_SESSION_ID": UnknownSessionError,
    "BAD_IMAGE": ImageError,
    "BAD_PROMPT": PromptError,
    "BAD_VIDEO": VideoError,
    "BUSY": ServerBusyError,
    "MODEL_NOT_READY": ModelNotReadyError,
}
"""Error code -> exception class of the client. An error message on the wire begins with the code and a colon."""
UNKNOWN_FRAME = "UNKNOWN_FRAME"
"""Precedes the code UNKNOWN_IMAGE_ID, with the index of the frame, if a frame of a video is missing."""
_ANY_CODE = "|".join((*CODES, BAD_REQUEST, INTERNAL))
_CODE = re.compile(rf"(?:{UNKNOWN_FRAME} (?P<frame>\d+) )?(?<![A-Z_])(?P<code>{_ANY_CODE}): (?P<text>.*)", re.DOTALL)

DEFAULT_CACHE_BYTES = 512 << 20
DEFAULT_THREADS = 8
DEFAULT_MAX_PENDING = 24
DEFAULT_MAX_JOBS = 2


@dataclass(frozen=True)
class WireTensor(Tensor):
    """One input or output with the comments for its config.pbtxt."""

    note: str = ""
    heading: str = ""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a session model.

    Args:
        meaning: a sentence that explains it; empty if the name is clear.
    """

    name: str
    value: str
    meaning: str = ""


def text_input(name: str, note: str = "", heading: str = "") -> WireTensor:
    """Return an optional input for one text or file."""
    return WireTensor(name, "BYTES", (1,), True, note, heading)


def inputs(family: Family) -> tuple[WireTensor, ...]:
    """Return the inputs of a family's session model. All of them are optional."""
    *others, last = output_formats()
    prompt = [
        WireTensor(POINT_COORDS, "FP32", ("prompts", "points", 2), True),
        WireTensor(POINT_LABELS, "FP32", ("prompts", "points"), True),
        WireTensor(BOXES, "FP32", ("prompts", 4), True),
    ]
    if family.takes_mask:
        prompt.append(WireTensor(MASK_INPUT, "FP32", ("1 or prompts", 1, family.mask_size, family.mask_size), True))
    count = {3: "three", 4: "four"}[len(prompt)]
    prompt[0] = replace(
        prompt[0],
        heading=f"Pixels of the original image. Without any of these {count} the image is encoded and no more.",
    )
    heading = "Either the image, in any format that Pillow reads, or the id that an earlier answer gave."
    search = "With an image and nothing else: a search for all objects, answered in result_json."
    part = "With an image or its id: the objects under some points of such a search, for clients that show progress."
    return (
        text_input(IMAGE, heading=heading),
        text_input(IMAGE_ID),
        *prompt,
        WireTensor(MULTIMASK_OUTPUT, "BOOL", (1,), True),
        text_input(OUTPUT_FORMAT, f"{', '.join(others)} or {last}"),
        text_input(CLEANUP, "JSON, changes rle and png: see triton_sam.masks.Cleanup"),
        text_input(EVERYTHING, 'JSON such as {"points_per_side": 16}', search),
        text_input(EVERYTHING_PART, 'JSON such as {"points": [[8, 8]], "parameters": {}}', part),
        *(_concept_inputs() if family.concepts else ()),
        text_input(IMAGE_B64, "", "The same for people without a client library: base64 and JSON in, result_json out."),
        text_input(PROMPT_JSON),
    )


def _concept_inputs() -> tuple[WireTensor, ...]:
    """Return the inputs of families with models of concepts."""
    search = "With an image or its id: a search for all instances of concepts, answered in result_json."
    return (
        text_input(FIND, 'JSON such as {"text": ["dog"]}', search),
        WireTensor(FIND_LOGITS, "BOOL", (1,), True, "logits of find in masks, in place of masks in result_json"),
        text_input(EXAMPLE_IMAGE, "id of another image, which the boxes of find belong to"),
    )


def outputs(family: Family) -> tuple[WireTensor, ...]:
    """Return the outputs of a family's session model. An answer contains those that the request names."""
    side = family.mask_size
    return (
        WireTensor(IMAGE_ID, "BYTES", (1,)),
        WireTensor(IMAGE_SIZE, "INT32", (2,), note="width, height"),
        WireTensor(MASKS, "FP32", ("prompts", "candidates", side, side), note="logits"),
        WireTensor(ENCODED_MASKS, "BYTES", ("prompts", "candidates"), note="full size"),
        WireTensor(IOU_PREDICTIONS, "FP32", ("prompts", "candidates")),
        WireTensor(RESULT_JSON, "BYTES", (1,)),
    )


CONCEPT_MODELS = "concepts"
"""The parameter with the names of the models of concepts, in the order of Family.concepts."""


def parameters(family: Family, variant: str | None = None) -> tuple[Parameter, ...]:
    """Return the parameters of a family's session model with their defaults."""
    images = DEFAULT_CACHE_BYTES // embedding_bytes(family)
    concepts = " ".join(family.model_name(role, variant) for role in family.concepts)
    meaning = "The models that find instances of words, if the repository has them."
    return (
        Parameter("family", family.name.upper()),
        Parameter("encoder", family.model_name(ENCODER, variant)),
        Parameter("decoder", family.model_name(DECODER, variant)),
        Parameter(
            "cache_bytes",
            str(DEFAULT_CACHE_BYTES),
            f"{DEFAULT_CACHE_BYTES >> 20} MiB of embeddings, {images} images. On a CPU they are in /dev/shm "
            "(docker run --shm-size), on a GPU in its memory.",
        ),
        Parameter(
            "threads",
            str(DEFAULT_THREADS),
            "Concurrent requests, separately for clicks and for requests with an image.",
        ),
        Parameter(
            "max_pending",
            str(DEFAULT_MAX_PENDING),
            "Requests that may run or wait, separately for clicks and for requests with an image; more are refused.",
        ),
        Parameter("max_jobs", str(DEFAULT_MAX_JOBS), "Searches for all objects at a time; more are refused."),
        *([Parameter(CONCEPT_MODELS, concepts, meaning)] if concepts else ()),
    )


def embedding_bytes(family: Family) -> int:
    """Return the size of the embeddings of one image, in bytes."""
    return sum(4 * math.prod(side for side in spec.shape if isinstance(side, int)) for spec in family.encoder.outputs)


def output_formats() -> tuple[str, ...]:
    """Return the valid values of ``output_format``. The first is the default."""
    return LOGITS, *formats_of("session model")


def code_of(error: Exception) -> str:
    """Return the code of an error, which is its first word on the wire and ``error.code`` in JSON."""
    known = next((code for code, kind in CODES.items() if isinstance(error, kind)), None)
    if isinstance(error, UnknownImageError) and error.frame is not None:
        return f"{UNKNOWN_FRAME} {error.frame} {known}"
    return known or (BAD_REQUEST if isinstance(error, ValueError) else INTERNAL)


def unknown_form(model: str) -> InferenceError:
    """Return the error for an answer of a session model that cannot be read."""
    return InferenceError(
        f"{model} answered in an unknown form: the server has another version of triton_sam; update it or this client"
    )


def has_code(message: str) -> bool:
    """Whether an error message comes from one of our models, whose messages begin with a code."""
    return _CODE.search(message) is not None


def read_error(error: InferenceError) -> SamError:
    """Convert the error of a refused request by the first code in its message; without one, return it unchanged."""
    found = _CODE.search(str(error))
    kind = None if found is None else CODES.get(found["code"])
    if found is None or kind is None:
        return error
    if kind is UnknownImageError and found["frame"] is not None:
        return UnknownImageError(found["text"], frame=int(found["frame"]))
    return kind(found["text"])
