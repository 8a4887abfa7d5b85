"""Requests and responses of /v1/videos, with the checks and the examples that /docs shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from ...masks.boxes import corner_and_size
from ...masks.segment import TOLERANCE, Segment
from ...tracks.formats import TRACK_FORMATS
from ...tracks.records import MaskRecord
from ...wire.contract import MAX_POINTS
from ..faults import validated
from ..schemas import (
    SINGLE_FORMATS,
    Area,
    CocoBox,
    Point,
    Prompt,
    RleMask,
    Score,
    SingleFormat,
    Strict,
    Tolerance,
    examples,
    with_mask,
)

MAX_FRAME = 1 << 31
if TYPE_CHECKING:
    DownloadFormat = str
else:
    DownloadFormat = Literal[tuple(TRACK_FORMATS)]

FrameIndex = Annotated[int, Field(ge=0, lt=MAX_FRAME, description="The index of a frame, from 0.")]
ObjectId = Annotated[int, Field(ge=1, lt=MAX_FRAME, description="A number that the caller gives to the object.")]


class VideoPrompt(Prompt):
    """The prompt of one object in one frame: points, a box, both, or a mask."""

    model_config = examples(
        {"frame": 0, "object_id": 1, "points": [[210, 350]]},
        {"frame": 30, "object_id": 1, "points": [[200, 180], [260, 200]], "labels": [1, 0]},
        {"frame": 0, "object_id": 2, "box": [100, 80, 420, 300], "format": "polygons"},
    )

    frame: FrameIndex
    object_id: ObjectId
    points: Annotated[list[Point], Field(fail_fast=True)] = Field(
        default_factory=list, max_length=MAX_POINTS, description="Each point is x, y in pixels of the frame."
    )
    mask_rle: RleMask | None = Field(default=None, description="A mask, in place of points and box.")
    clear_old_points: bool = Field(
        default=True, description="Whether earlier points of this object in this frame are forgotten."
    )
    format: SingleFormat = Field(default=next(iter(SINGLE_FORMATS)), description="The format of the mask.")
    tolerance: Tolerance = TOLERANCE


def video_prompt(**members: Any) -> VideoPrompt:
    """Return the prompt of a tool; an invalid one is a 422 problem."""
    return validated(VideoPrompt, **members)


class PropagateRequest(Strict):
    """The frames through which all objects are tracked."""

    model_config = examples({"start": 0}, {"start": 30, "count": 10, "reverse": True})

    start: FrameIndex | None = Field(
        default=None, description="The first frame. Default: the earliest frame that has a prompt."
    )
    count: int | None = Field(default=None, ge=1, lt=MAX_FRAME, description="The number of frames. Default: all.")
    reverse: bool = Field(default=False, description="Whether to go backwards.")
    format: SingleFormat = Field(default=next(iter(SINGLE_FORMATS)), description="The format of the masks.")
    tolerance: Tolerance = TOLERANCE


class ObjectInfo(BaseModel):
    """An object of a video."""

    object_id: int
    prompted_frames: list[int]


class VideoInfo(BaseModel):
    """An uploaded video."""

    id: str
    name: str = Field(description="The name of the file at its sender.")
    width: int
    height: int
    num_frames: int
    fps: float = Field(description="Frames a second. Images without a rate have 25.")
    duration: float = Field(description="Seconds.")
    bytes: int
    model: str
    every: int = Field(description="Every how many frames one is tracked.")
    objects: list[ObjectInfo]
    tracked: list[tuple[int, int]] = Field(description="The frames with masks, as ranges: first, last.")
    is_tracking: bool
    expires_in: float = Field(description="Seconds until the service removes the video if it is not used.")

    model_config = examples(
        {
            "id": "3b0c…",
            "name": "clip.mp4",
            "width": 640,
            "height": 360,
            "num_frames": 240,
            "fps": 24.0,
            "duration": 10.0,
            "bytes": 1280331,
            "model": "sam2",
            "every": 1,
            "objects": [{"object_id": 1, "prompted_frames": [0, 30]}],
            "tracked": [[0, 239]],
            "is_tracking": False,
            "expires_in": 900,
        }
    )


class BareVideoMask(BaseModel):
    """One object in one frame, without the mask itself."""

    object_id: int
    score: Score
    object_score: float = Field(description="A logit: above 0 the model sees the object in this frame.")
    area: Area
    bbox: CocoBox


if TYPE_CHECKING:
    VideoMask = BareVideoMask
else:
    VideoMask = with_mask("VideoMask", BareVideoMask, "One object in one frame.")


class FrameMasks(BaseModel):
    """The masks of one frame."""

    frame: int
    objects: list[VideoMask]

    @classmethod
    def of(cls, frame: int, records: Sequence[MaskRecord], form: str, tolerance: float) -> FrameMasks:
        """Return the masks of a frame in a format. This is slow: use a thread."""
        return cls(frame=frame, objects=[_mask(record, form, tolerance) for record in records])


class Cancelled(BaseModel):
    """The response to a cancellation."""

    cancelled: bool = Field(description="Whether something was running.")


def _mask(record: MaskRecord, form: str, tolerance: float) -> VideoMask:
    return VideoMask(
        object_id=record.object_id,
        score=record.score,
        object_score=record.object_score,
        area=record.area,
        bbox=record.box and corner_and_size(record.box),
        **{form: SINGLE_FORMATS[form].to_json(segment_of(record), tolerance)},
    )


def segment_of(record: MaskRecord) -> Segment:
    return Segment(record.mask, record.score, None, record.object_id - 1)
