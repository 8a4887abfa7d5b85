"""Requests and responses of /v1/large."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...masks.segment import TOLERANCE
from ..schemas import ModelName, Prompt, Score


class LargeImageName(BaseModel):
    """A large image."""

    id: str = Field(description="The id for the other routes: it stays the same while the name does.")
    name: str = Field(description="The path relative to the folder.")


class LargeImages(BaseModel):
    """All large images of the folder."""

    images: list[LargeImageName]


class LargeLevel(BaseModel):
    """A level of tiles, with half as many pixels per side as the previous level."""

    level: int
    width: int = Field(description="The width of the level in pixels.")
    height: int
    columns: int = Field(description="The number of tiles from left to right.")
    rows: int


class LargeImageInfo(LargeImageName):
    """A large image with its levels."""

    width: int = Field(description="The width of the image in pixels.")
    height: int
    tile: int = Field(description="The width and height of a tile; the last ones of a row or column are smaller.")
    levels: list[LargeLevel] = Field(description="All levels; level 0 is the image itself.")
    epsg: int | None = Field(description="The EPSG number of the map's reference system; null if there is none.")


class LargeSegmentRequest(Prompt):
    """One object in pixels of the image, and the caller's zoom."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"points": [[1600, 1000]]},
                {"points": [[1600, 1000], [1650, 990]], "labels": [1, 0], "scale": 4, "format": "rle"},
                {"box": [1500, 900, 1720, 1310]},
            ]
        },
    )

    scale: float = Field(
        default=1.0,
        ge=1.0,
        le=65_536.0,
        allow_inf_nan=False,
        description="The pixels of the image along a side of a pixel of the screen. The part that is sent has 1024 "
        "times as many on a side, rounded to a power of two, or more if the prompts lie further apart.",
    )
    multimask: bool = Field(
        default=False, description="Whether to answer with all candidates: three, or one with SAM-HQ."
    )
    model: ModelName = None
    format: Literal["polygons", "rle"] = Field(
        default="polygons", description="`polygons` are in pixels of the image; `rle` is the mask of `region`."
    )
    tolerance: float = Field(
        default=TOLERANCE,
        ge=0,
        le=100,
        description="The largest distance between a polygon and the exact outline, in pixels of the mask.",
    )


class LargeMask(BaseModel):
    """One mask."""

    candidate: int = Field(description="The number of the candidate, from 0.")
    score: Score
    area: float = Field(description="The area in pixels of the image.")
    bbox: list[float] | None = Field(
        description="The box in the form of COCO, in pixels of the image. An empty mask has null."
    )
    is_cut: bool = Field(
        description="Whether the mask reaches a border of `region`, so that some of it may be missing."
    )
    region: list[int] = Field(description="The part that the model saw: x1, y1, x2, y2 in pixels of the image.")
    polygons: list[list[list[list[float]]]] | None = Field(
        default=None, description="Each polygon is a list of rings: its outline, and its holes."
    )
    rle: dict[str, Any] | None = Field(
        default=None, description="Compressed COCO RLE of `region`, which may have fewer pixels than the region."
    )


class LargeSegmentAnswer(BaseModel):
    """The mask of an object, or its three candidates."""

    image: str
    model: str
    width: int
    height: int
    masks: list[LargeMask]
    milliseconds: float = Field(description="The time from the parsed request to the masks.")
