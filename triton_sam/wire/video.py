"""The wire contract of the video models, for example ``sam2_video``: operations, tensors, parameters and limits.

A request has one operation. Small arguments are sent as one JSON text, images and masks as tensors. The client requests
a video frame by frame, so that back-pressure and cancellation need no other mechanism.
"""

from __future__ import annotations

from ..families.base import Family
from ..families.tables import ENCODER, video_name
from ..families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from .contract import (
    DEFAULT_THREADS,
    ENCODED_MASKS,
    IOU_PREDICTIONS,
    MASKS,
    OUTPUT_FORMAT,
    Parameter,
    WireTensor,
    output_formats,
    text_input,
)

START_SESSION = "start_session"
ADD_FRAMES = "add_frames"
ADD_PROMPT = "add_prompt"
PROPAGATE = "propagate"
UPDATE_MEMORIES = "update_memories"
REMOVE_OBJECT = "remove_object"
CLEAR_PROMPTS = "clear_prompts"
RESET_SESSION = "reset_session"
CLOSE_SESSION = "close_session"
GET_SNAPSHOT = "get_snapshot"
FIND = "find"
"""Searches a frame for all instances of concepts. Only families with models of concepts have this operation."""
OPERATIONS = (
    START_SESSION,
    ADD_FRAMES,
    ADD_PROMPT,
    PROPAGATE,
    UPDATE_MEMORIES,
    REMOVE_OBJECT,
    CLEAR_PROMPTS,
    RESET_SESSION,
    CLOSE_SESSION,
    GET_SNAPSHOT,
    FIND,
)

OPERATION = "operation"
SESSION_ID = "session_id"
ARGUMENTS = "arguments"
FRAMES = "frames"
MASK = "mask"
SNAPSHOT = "snapshot"

RESULT = "result"
FIRST_PROMPTED_FRAME = "first_prompted_frame"
"""A member of the result: the first frame that a pass can start from, or null."""
WORDS = "words"
"""An argument of add_frames: the frames will be searched, so one pass of the backbone computes what searches need, too.

Also a member of the result of start_session: whether the server has the models and the memory for this."""
SEARCHED_AHEAD = 3
"""Number of frames for which the cache must have room for that: one frame, and those that a client sends ahead."""
FRAME_INDEXES = "frame_indexes"
OBJECT_IDS = "object_ids"
OBJECT_SCORES = "object_scores"

DEFAULT_MAX_SESSIONS = 32
DEFAULT_MAX_OBJECTS = 64
DEFAULT_MAX_PROMPTED_FRAMES = 32
MAX_PROMPTED_FRAMES = 300
"""Largest ``max_prompted_frames``: with those before it, a frame attends to fewer memories than a call may have."""
DEFAULT_SESSION_BYTES = 256 << 20
DEFAULT_IDLE_SECONDS = 600
DEFAULT_CACHE_BYTES = 512 << 20
DEFAULT_MAX_PENDING = 64
DEFAULT_OBJECTS_AT_A_TIME = 8


def video_model(family: Family, variant: str | None = None) -> str:
    """Return the Triton name of the video model of a family or variant, for example ``sam2_video``."""
    return video_name(variant or family.name)


def inputs() -> tuple[WireTensor, ...]:
    """Return the inputs of a video model."""
    return (
        WireTensor(OPERATION, "BYTES", (1,), note=", ".join(OPERATIONS)),
        text_input(SESSION_ID, "from the answer to start_session"),
        text_input(ARGUMENTS, "a JSON object, see docs/reference/video.md"),
        WireTensor(FRAMES, "BYTES", ("frames",), True, note="image files: JPEG, PNG, ..."),
        WireTensor(MASK, "BOOL", ("height", "width"), True, note="a mask as prompt, in the size of the frames"),
        text_input(SNAPSHOT, "for start_session: resumes a lost session"),
        text_input(OUTPUT_FORMAT, ", ".join(output_formats())),
    )


def outputs(family: Family) -> tuple[WireTensor, ...]:
    """Return the outputs of a video model. A row is one object in one frame."""
    side = family.mask_size
    return (
        WireTensor(RESULT, "BYTES", (1,), note="a JSON object"),
        WireTensor(FRAME_INDEXES, "INT64", ("rows",)),
        WireTensor(OBJECT_IDS, "INT64", ("rows",)),
        WireTensor(MASKS, "FP32", ("rows", 1, side, side), note="logits"),
        WireTensor(ENCODED_MASKS, "BYTES", ("rows",), note="full size"),
        WireTensor(OBJECT_SCORES, "FP32", ("rows",), note="logits: above 0 the object is visible"),
        WireTensor(IOU_PREDICTIONS, "FP32", ("rows",)),
        WireTensor(SNAPSHOT, "BYTES", (1,)),
    )


def parameters(family: Family, variant: str | None = None) -> tuple[Parameter, ...]:
    """Return the parameters of a video model with their defaults."""
    roles = (ENCODER, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER, MASK_PROMPT)
    return (
        Parameter("family", family.name.upper()),
        Parameter("image_size", str(family.image_size), "Side of the encoder's image in pixels."),
        *(Parameter(role, family.model_name(role, variant)) for role in roles),
        Parameter("max_sessions", str(DEFAULT_MAX_SESSIONS), "Sessions at a time; more are refused at once."),
        Parameter("max_objects", str(DEFAULT_MAX_OBJECTS), "Objects of one session."),
        Parameter(
            "max_prompted_frames",
            str(DEFAULT_MAX_PROMPTED_FRAMES),
            "Prompted frames of one object: each later frame attends to all of them.",
        ),
        Parameter(
            "session_bytes",
            str(DEFAULT_SESSION_BYTES),
            "Memories and masks of earlier frames that a session keeps for corrections, in bytes.",
        ),
        Parameter(
            "idle_seconds",
            str(DEFAULT_IDLE_SECONDS),
            "A session is closed after this time without requests, in seconds.",
        ),
        Parameter("cache_bytes", str(DEFAULT_CACHE_BYTES), "Embeddings of frames, in bytes. On a CPU in /dev/shm."),
        Parameter(
            "objects_at_a_time",
            str(DEFAULT_OBJECTS_AT_A_TIME),
            "Objects in one call of a model; the memory for attention grows with them.",
        ),
        Parameter("threads", str(DEFAULT_THREADS), "Concurrent requests, separately for sessions and for frames."),
        Parameter("max_pending", str(DEFAULT_MAX_PENDING), "Requests that may run or wait; more are refused."),
    )
