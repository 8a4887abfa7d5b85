"""The wire contract of the session models ``sam1``, ``sam2``, ``sam3``: tensor names, formats, errors."""

from __future__ import annotations

from ..errors import ImageError, InferenceError, PromptError, SamError, ServerBusyError, UnknownImageError
from ..masks.formats import formats_of

IMAGE = "image"
IMAGE_ID = "image_id"
POINT_COORDS = "point_coords"
POINT_LABELS = "point_labels"
BOXES = "boxes"
MASK_INPUT = "mask_input"
MULTIMASK_OUTPUT = "multimask_output"
OUTPUT_FORMAT = "output_format"
IMAGE_B64 = "image_b64"
PROMPT_JSON = "prompt_json"

IMAGE_SIZE = "image_size"
MASKS = "masks"
ENCODED_MASKS = "encoded_masks"
IOU_PREDICTIONS = "iou_predictions"
RESULT_JSON = "result_json"

LOGITS = "logits"
"""The output format of masks as the decoder gives them, which is the default; all others are encoded masks."""
OutputFormat = str
"""A name out of output_formats()."""

MAX_POINTS = 1024
"""Points that one request may carry, boxes counting as two each, objects and padding included."""
MAX_OBJECTS = 64
"""Objects that one request may name; the decoder takes about 10 MB of memory for each while it computes."""

QUEUE_IS_FULL = "maximum queue size"
"""What Triton itself says of a model whose ``max_queue_size`` is reached."""

BAD_REQUEST = "BAD_REQUEST"
INTERNAL = "INTERNAL"
CODES: dict[str, type[SamError]] = {
    "UNKNOWN_IMAGE_ID": UnknownImageError,
    "BAD_IMAGE": ImageError,
    "BAD_PROMPT": PromptError,
    "BUSY": ServerBusyError,
}
"""First word of an error's text on the wire -> the error that it is for a client."""


def output_formats() -> tuple[OutputFormat, ...]:
    """Return the values that ``output_format`` may have; the first is the default."""
    return LOGITS, *formats_of("session model")


def code_of(error: Exception) -> str:
    """Return the code of an error: its first word on the wire, ``error.code`` in JSON."""
    known = next((code for code, kind in CODES.items() if isinstance(error, kind)), None)
    return known or (BAD_REQUEST if isinstance(error, ValueError) else INTERNAL)


def read_error(error: InferenceError) -> SamError:
    """Turn a refused request into the error that the model meant; ``error`` itself when it says nothing known."""
    for code, kind in CODES.items():
        _, found, text = str(error).partition(f"{code}: ")
        if found:
            return kind(text)
    return error
