"""Requests and responses of ``/v1/images/{id}/everything``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ...everything.parameters import MAX_CROP_LAYERS, MAX_POINTS_PER_SIDE
from ...masks.cleanup import MAX_THRESHOLD
from ...masks.segment import TOLERANCE
from ..schemas import (
    Area,
    CleanupRequest,
    ModelName,
    Score,
    SessionName,
    Share,
    SingleFormat,
    Strict,
    Tolerance,
    with_mask,
)

MAX_AREA = 1 << 31
"""Maximum of ``min_mask_region_area``, in pixels. JSON has whole numbers that no float can hold."""


class EverythingRequest(Strict):
    """Search parameters, with the names and meanings of Meta's automatic mask generators. All are optional."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{}, {"points_per_side": 16, "crop_n_layers": 1, "cleanup": {"max_hole_area": 32}}]
        },
    )

    points_per_side: int | None = Field(
        default=None, ge=1, le=MAX_POINTS_PER_SIDE, description="Points of the grid in each row and column."
    )
    points_per_batch: int | None = Field(default=None, ge=1, le=1024, description="Points that are decoded at a time.")
    pred_iou_thresh: Share | None = Field(default=None, description="Masks of a lower score are dropped.")
    stability_score_thresh: Share | None = Field(default=None, description="Masks that are less stable are dropped.")
    stability_score_offset: float | None = Field(
        default=None, ge=0, le=100, description="The change of the threshold by which stability is measured."
    )
    mask_threshold: float | None = Field(
        default=None,
        ge=-MAX_THRESHOLD,
        le=MAX_THRESHOLD,
        allow_inf_nan=False,
        description="Logits above it are foreground. A lower number gives larger masks.",
    )
    box_nms_thresh: Share | None = Field(
        default=None, description="Of masks whose boxes have a higher IoU, the best stays."
    )
    crop_n_layers: int | None = Field(
        default=None,
        ge=0,
        le=MAX_CROP_LAYERS,
        description="Layer i searches again in 2**i x 2**i overlapping crops of the image.",
    )
    crop_nms_thresh: Share | None = Field(default=None, description="As box_nms_thresh, between crops.")
    crop_overlap_ratio: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="The share of the shorter side by which crops overlap.",
    )
    crop_n_points_downscale_factor: int | None = Field(
        default=None, ge=1, le=16, description="Layer i has points_per_side divided by this number to the power of i."
    )
    min_mask_region_area: int | None = Field(
        default=None, ge=0, le=MAX_AREA, description="Smaller holes and parts, in pixels, are filled and dropped."
    )
    multimask_output: bool | None = Field(
        default=None, description="Whether each point gives all candidates (three, or one with SAM-HQ)."
    )
    use_m2m: bool | None = Field(
        default=None, description="Whether to refine each mask once, with its logits as a prompt (SAM2)."
    )
    cleanup: CleanupRequest | None = Field(
        default=None, description="How to clean the masks. Default: masks are not cleaned."
    )
    model: ModelName = None
    session_id: SessionName = None
    format: SingleFormat = Field(default="rle", description="The format of the masks.")
    tolerance: Tolerance = TOLERANCE

    def options(self) -> dict[str, Any]:
        """Return the given parameters of the search."""
        others = {"cleanup", "model", "session_id", "format", "tolerance"}
        return self.model_dump(exclude=others, exclude_none=True)


class BareObject(BaseModel):
    """One object, without its mask."""

    id: int = Field(description="The number of the object in this answer, from 0.")
    score: Score
    stability_score: float = Field(description="The IoU of the masks at two thresholds.")
    area: Area
    bbox: list[int] = Field(description="The box in the form of COCO: x, y, width, height.")
    point: list[float] = Field(description="The point of the grid that found the object: x, y.")
    crop_box: list[int] = Field(description="The crop in which it was found, in the form of COCO.")


if TYPE_CHECKING:
    FoundObject = BareObject
else:
    FoundObject = with_mask("FoundObject", BareObject, "One object.")


class EverythingAnswer(BaseModel):
    """All objects of an image."""

    image: str
    model: str
    width: int
    height: int
    objects: list[FoundObject]
    points: int = Field(description="The number of points that were decoded.")
    detail: str | None = Field(default=None, description="Why no object was found.")
    milliseconds: float = Field(description="The time of the search.")
