"""Requests and responses of /v1, with the checks and the examples that /docs shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from fastapi import Path, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from ..masks.cleanup import MAX_SMOOTH, MAX_THRESHOLD, Cleanup
from ..masks.segment import TOLERANCE, formats_of
from ..wire.contract import MAX_OBJECTS, MAX_POINTS
from .faults import BAD_MEMBER, MAX_NAME

FORMATS = formats_of("service")
SINGLE_FORMATS = {name: form for name, form in FORMATS.items() if form.encode}
"""Formats that can represent a single mask."""
if TYPE_CHECKING:
    Format = str
    SingleFormat = str
else:
    Format = Literal[tuple(FORMATS)]
    SingleFormat = Literal[tuple(SINGLE_FORMATS)]

ImageId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id that `POST /v1/images` answered.")]


def _refuse_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "Input should be a number, not true or false")
    return value


Coordinate = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), BeforeValidator(_refuse_flag)]
Point = Annotated[list[Coordinate], Field(min_length=2, max_length=2)]
Side = Annotated[int, Field(ge=1, le=1_000_000)]
Box = Annotated[list[Coordinate], Field(min_length=4, max_length=4)]
Labels = Annotated[list[Literal[0, 1]], Field(fail_fast=True)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
ModelName = Annotated[str | None, Field(max_length=128, description="A name that `GET /v1/models` lists.")]
SessionName = Annotated[
    str | None, Field(max_length=128, description="A name by which `POST /cancel_pending` cancels the search.")
]
Tolerance = Annotated[
    float, Field(ge=0, le=100, description="The largest distance, in pixels, between a polygon and the exact outline.")
]
Score = Annotated[float, Field(description="The IoU with the true mask that the model predicts.")]
Area = Annotated[int, Field(description="The number of foreground pixels.")]
CocoBox = Annotated[
    list[int] | None, Field(description="The box in the form of COCO: x, y, width, height. An empty mask has null.")
]
BINARY = {"type": "string", "format": "binary"}
"""The schema of a file in OpenAPI."""


def examples(*values: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a model with examples, which /docs shows."""
    return ConfigDict(json_schema_extra={"examples": list(values)})


class Strict(BaseModel):
    """A part of a request. It accepts only known members, and its validation finds few errors.

    A list is checked up to its first error (fail_fast), and only the first unknown member is reported: describing an
    error for each of a million members would block the service for seconds.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_members(cls, value: Any) -> Any:
        members, fields = value if isinstance(value, dict) else {}, cls.model_fields
        for name, each in members.items():
            if name not in fields:
                known = {"name": str(name)[:MAX_NAME], "known": ", ".join(fields)}
                raise PydanticCustomError(BAD_MEMBER, "there is no member '{name}'; the members are {known}", known)
            # pydantic would read true as 1
            if isinstance(each, bool) and bool not in (fields[name].annotation, *get_args(fields[name].annotation)):
                raise PydanticCustomError(BAD_MEMBER, "{name} must not be true or false", {"name": name})
        return value


class Model(BaseModel):
    """A pair of models that callers may use."""

    name: str
    family: str
    version: str = Field(description="The version of the encoder that Triton serves.")
    default: bool = Field(description="Whether this model answers requests that name none.")
    keeps_images: bool = Field(description="Whether Triton keeps the embeddings, so that a click is small.")
    takes_mask: bool = Field(description="Whether the model takes `mask` to refine an earlier answer.")
    tracks_videos: bool = Field(description="Whether Triton serves the video model, which `/v1/videos` needs.")
    finds_everything: bool = Field(description="Whether `/v1/images/{id}/everything` works with this model.")
    finds_concepts: bool = Field(description="Whether `/v1/images/{id}/find` works with this model.")
    demo: bool = Field(description="Whether the model has the weights of the demo model, which are not Meta's.")


class Models(BaseModel):
    """All models."""

    models: list[Model]
    image_urls: bool = Field(default=False, description="Whether `POST /v1/images/url` fetches images.")
    heic: bool = Field(default=False, description="Whether an image may be a HEIC photograph.")
    max_image_bytes: int = Field(description="Maximum bytes of a request with an image.")
    max_video_bytes: int = Field(description="Maximum bytes of a request with a video.")


class ImageInfo(BaseModel):
    """An uploaded image."""

    id: str = Field(description="A hash of the bytes: the same file gets the same id.")
    width: int
    height: int
    bytes: int
    models: list[str] = Field(description="The models that have encoded the image.")

    model_config = examples(
        {
            "id": "3b0c…",
            "width": 800,
            "height": 600,
            "bytes": 112782,
            "models": ["sam2"],
        }
    )


class Prompt(Strict):
    """One object: points, a box, or both."""

    points: Annotated[list[Point], Field(fail_fast=True)] = Field(
        default_factory=list, max_length=MAX_POINTS, description="Each point is x, y in pixels of the image."
    )
    labels: Labels | None = Field(
        default=None, max_length=MAX_POINTS, description="1 is foreground, 0 is background. Default: all are 1."
    )
    box: Box | None = Field(default=None, description="The box is x1, y1, x2, y2 in pixels.")


class MaskInput(Strict):
    """Logits of an earlier response (`logits: true`), to refine its mask."""

    data: str = Field(max_length=1 << 20, description="Base64 of float32, in little-endian order, row by row.")
    size: int = Field(ge=1, le=512, description="The side that the earlier answer stated: 256.")


class CleanupRequest(Strict):
    """Changes of the masks; without them, masks equal the official predictor's. See `triton_sam.Cleanup`."""

    mask_threshold: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0,
        ge=-MAX_THRESHOLD,
        le=MAX_THRESHOLD,
        description="Logits above it are foreground. A lower number gives a larger mask. A search for everything has a "
        "field of its own for it.",
    )
    max_hole_area: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0,
        ge=0,
        description="Holes of at most this many pixels of the model's small mask (256 x 256 over the image, SAM3 "
        "288 x 288) are filled, as in Meta's `SAM2ImagePredictor`.",
    )
    max_sprinkle_area: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0, ge=0, description="Connected parts of at most this many pixels of the small mask are dropped."
    )
    clip_to_box: bool = Field(default=False, description="Whether nothing outside the object's box is kept.")
    smooth: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0,
        ge=0,
        le=MAX_SMOOTH,
        description="The radius, in pixels of the image, over which the outline is smoothed.",
    )
    min_mask_region_area: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=0, ge=0, description="Holes and connected parts of fewer pixels of the image are filled and dropped."
    )
    keep_clicked: bool = Field(
        default=False,
        description="Whether only connected parts stay that a foreground point hits. A mask without any stays.",
    )

    def to_cleanup(self) -> Cleanup:
        return Cleanup(**self.model_dump())


class RleMask(Strict):
    """A mask as compressed COCO RLE, in the size of its image."""

    size: Annotated[list[Side], Field(min_length=2, max_length=2)] = Field(description="Height and width.")
    counts: str = Field(max_length=1 << 21)


class SegmentRequest(Prompt):
    """The objects to segment: a single one in this object itself, or several in `objects`."""

    model_config = examples(
        {"points": [[200, 180]]},
        {"points": [[200, 180], [260, 200]], "labels": [1, 0], "multimask": True, "format": "polygons"},
        {"objects": [{"box": [100, 80, 420, 300]}, {"points": [[600, 400]]}], "format": "geojson"},
    )

    objects: Annotated[list[Prompt], Field(fail_fast=True)] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_OBJECTS,
        description="Several objects in one call: all have points, all have a box, or all have both; "
        f"together {MAX_POINTS} points, a box as two, and each object as many as the longest list.",
    )
    mask: MaskInput | None = Field(default=None, description="A mask to refine. SAM3 takes none.")
    multimask: bool = Field(
        default=False,
        description="Whether to answer with all candidates for each object: three, or one with SAM-HQ.",
    )
    cleanup: CleanupRequest | None = Field(
        default=None, description="How to clean the masks. Default: masks are not cleaned."
    )
    model: ModelName = None
    format: Format | None = Field(
        default=None, description="The format of the masks. Default: the header Accept decides, else rle."
    )
    tolerance: Tolerance = TOLERANCE
    logits: bool = Field(default=False, description="Whether to add low-resolution logits, for `mask` of a later call.")


class BareMask(BaseModel):
    """One mask of one object, without the mask itself."""

    object: int = Field(description="The number of the object in the request, from 0.")
    candidate: int = Field(description="The number of the candidate for this object, from 0.")
    score: Score
    area: Area
    bbox: CocoBox
    logits: MaskInput | None = None


def with_mask(name: str, bare: type[BaseModel], doc: str) -> Any:
    """Return a model with the members of a bare one, and a member for the mask in each format. Bytes are base64."""
    fields: dict[str, Any] = {
        form.name: ((str if form.is_binary else form.value) | None, Field(default=None, description=form.meaning))
        for form in SINGLE_FORMATS.values()
    }
    return create_model(name, __base__=bare, __doc__=doc, **fields)


if TYPE_CHECKING:
    Mask = BareMask
else:
    Mask = with_mask("Mask", BareMask, "One mask of one object.")


class ImageAnswer(BaseModel):
    image: str
    model: str
    width: int
    height: int


class SegmentAnswer(ImageAnswer):
    """All masks, in the order of the objects in the request."""

    masks: list[Mask]
    milliseconds: float = Field(description="The time from the parsed request to the masks.")


class ProblemDetails(BaseModel):
    """RFC 9457 problem+json."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = None
    code: str | None = None
    errors: list[dict[str, Any]] | None = None


def file_route(description: str, kinds: Sequence[str], *problems: int) -> dict[str, Any]:
    """Return the options of a route that responds with a file of these media types, or with problems."""
    answer = {"description": description, "content": {kind: {"schema": BINARY} for kind in kinds}}
    return {"response_class": Response, "responses": {200: answer, **problem_responses(*problems)}}


def empty_route(*problems: int) -> dict[str, Any]:
    """Return the options of a route that responds without a body, or with problems."""
    return {"status_code": 204, "response_class": Response, "responses": problem_responses(*problems)}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a route's possible errors."""
    texts = {
        400: "The service cannot read the body.",
        401: "The token is missing or wrong.",
        403: "The service does not allow this, see `--image-urls`.",
        404: "Unknown image, video or model.",
        406: "Unsupported format of masks.",
        408: "The body came too slowly.",
        409: "The state of the video does not allow this now.",
        413: "There are too many bytes, values or pixels.",
        415: "The file is not an image or not a video, or the header Content-Type does not fit the body.",
        421: "The service does not answer to this name: see `--allowed-host`.",
        422: "The service cannot use a part of the request.",
        429: "The quota of the token is used up: header `Retry-After`.",
        499: "The client cancelled the request: header `Cancelled-By-Client: 1`.",
        502: "Triton failed on the request, or the address of an image has no image.",
        503: "Triton does not answer, or the service is busy: try again.",
        504: "The answer took too long.",
    }
    reference = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    return {
        status: {"description": texts[status], "content": {"application/problem+json": reference}}
        for status in sorted({401, 421, 429, 502, 503, 504, *statuses, *((408, 415) if 413 in statuses else ())})
    }
