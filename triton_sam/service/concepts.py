"""Finds concepts in an image: the route ``/v1/images/{id}/find``, its messages, and the search."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from ..client.concepts import FoundInstances
from ..concepts.instances import Instance
from ..concepts.query import MASK_THRESHOLD, MAX_EXAMPLES, MAX_TEXTS, THRESHOLD, Query, check_query
from ..families import FAMILIES, get_family
from ..families.base import Size
from ..masks.boxes import corner_and_size
from ..masks.segment import TOLERANCE, feature_collection
from .answers import JSON, MAX_MASK_PIXELS, to_json, with_list
from .cancellation import CancellableRequests
from .engine import Engine, Pair
from .problems import Problem
from .schemas import (
    FORMATS,
    SINGLE_FORMATS,
    Area,
    Box,
    CocoBox,
    ImageAnswer,
    ImageId,
    Labels,
    ModelName,
    RleMask,
    SessionName,
    Share,
    Strict,
    Tolerance,
    examples,
    problem_responses,
    with_mask,
)
from .store import StoredImage

GEOJSON = "geojson"
FIND_FORMATS = {**SINGLE_FORMATS, GEOJSON: FORMATS[GEOJSON]}
"""Formats of instances: those that can represent a single mask, and GeoJSON, whose properties contain the label."""
if TYPE_CHECKING:
    FindFormat = str
else:
    FindFormat = Literal[tuple(FIND_FORMATS)]

Text = Annotated[str, Field(max_length=10_000)]
Texts = Annotated[list[Text], Field(max_length=MAX_TEXTS, fail_fast=True)]


class FindRequest(Strict):
    """The concepts to find: words, example boxes, or both."""

    model_config = examples(
        {"text": "yellow school bus"},
        {"text": ["dog", "cat"], "threshold": 0.5, "format": "polygons"},
        {"boxes": [[100, 80, 420, 300], [500, 90, 620, 200]], "box_labels": [1, 0]},
    )

    text: Text | Texts | None = Field(
        default=None, description=f"A concept in words, or up to {MAX_TEXTS} of them. Default: that of the boxes."
    )
    boxes: Annotated[list[Box], Field(fail_fast=True)] = Field(
        default_factory=list,
        max_length=MAX_EXAMPLES,
        description="Example boxes, x1, y1, x2, y2 in pixels. They belong to the concept of each text.",
    )
    box_labels: Labels | None = Field(
        default=None,
        max_length=MAX_EXAMPLES,
        description="1 is an instance, 0 is something that must not be found. Default: all are 1.",
    )
    masks: Annotated[list[RleMask], Field(fail_fast=True)] = Field(
        default_factory=list,
        max_length=MAX_EXAMPLES,
        description="Example masks of the size of their image. The model takes boxes alone: a mask stands for its box.",
    )
    mask_labels: Labels | None = Field(
        default=None, max_length=MAX_EXAMPLES, description="The labels of the masks, as box_labels."
    )
    example_image: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{32}$",
        description="The id of another uploaded image, which boxes and masks belong to. SAM3 was not trained so.",
    )
    threshold: Share = Field(default=THRESHOLD, description="Instances of a lower score are dropped.")
    mask_threshold: Share = Field(
        default=MASK_THRESHOLD, description="A pixel belongs to the mask if its probability is higher."
    )
    nms: Share | None = Field(
        default=None, description="Of one text's instances whose boxes have a higher IoU, the best stays. Default: all."
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="The most instances for each text, the best first. Default: all, or fewer if their masks could "
        f"have more than {MAX_MASK_PIXELS // 1_000_000} million pixels together.",
    )
    model: ModelName = None
    session_id: SessionName = None
    format: FindFormat = Field(default="rle", description="The format of the masks.")
    tolerance: Tolerance = TOLERANCE

    def to_query(self, size: Size, example_size: Size) -> Query:
        """Return the query for the clients.

        Args:
            size: width and height of the image to search, pixels.
            example_size: width and height of the image that the boxes belong to, pixels.
        """
        if self.example_image is not None and not (self.boxes or self.masks):
            raise Problem(422, "example_image needs boxes or masks, which show the concept in it")
        parameters = self.model_dump(include={"threshold", "mask_threshold", "nms"})
        texts = 1 if self.text is None or isinstance(self.text, str) else len(self.text)
        limit = _limit(self.limit, max(1, texts), size)
        masks = [mask.model_dump() for mask in self.masks] or None
        query = check_query(
            self.text,
            self.boxes or None,
            self.box_labels,
            masks=masks,
            mask_labels=self.mask_labels,
            limit=limit,
            **parameters,
        )
        query.check_inside(example_size)
        return query


class BareInstance(BaseModel):
    """One instance, without its mask."""

    label: str = Field(description="The text that found it. Empty if example boxes alone did.")
    text_index: int = Field(description="The number of the text in the request, from 0.")
    score: float = Field(description="The probability of the model that this is an instance.")
    box: list[float] = Field(description="The box of the model: x1, y1, x2, y2 in pixels.")
    area: Area
    bbox: CocoBox


if TYPE_CHECKING:
    FoundInstance = BareInstance
else:
    FoundInstance = with_mask("FoundInstance", BareInstance, "One instance.")


class FindAnswer(ImageAnswer):
    """All instances: text by text, sorted by score."""

    objects: list[FoundInstance]
    milliseconds: float = Field(description="The time from the parsed request to the masks.")


def check_pair(pair: Pair) -> None:
    if pair.finds_concepts:
        return
    able = [family for family in FAMILIES if get_family(family).concepts]
    family = pair.family.name if pair.family.concepts else able[0]
    raise Problem(
        404,
        f"{pair.name} cannot find words or examples here: choose a model with finds_concepts in GET /v1/models. If "
        f"there is none, run `triton-sam setup {family} --concepts`, and start Triton again",
        code="no_concepts",
    )


async def find(
    engine: Engine, pair: Pair, image: StoredImage, example: StoredImage | None, query: Query
) -> FoundInstances:
    """Find all instances. If Triton does not have the image, it is sent with the request, and encoded once.

    Args:
        example: the image of the query's boxes; None for ``image``.
    """
    client = engine.client(pair, keeps_images=True)
    known = image.embeddings.get(pair.origin)
    with engine.budgets.searches.take():
        if known is None:
            engine.metrics.encodes.inc()
        shown = None if example is None else await engine.embed(example, pair)
        found = await client.find_async(
            list(query.texts) or None,
            boxes=query.boxes if len(query.boxes) else None,
            box_labels=query.box_labels if len(query.boxes) else None,
            image=image.content if known is None else known,
            example=shown,
            threshold=query.threshold,
            mask_threshold=query.mask_threshold,
            nms=query.nms,
            limit=query.limit,
        )
    image.keep(pair.origin, found.image)
    return found


def _written(instance: Instance, form: str, tolerance: float) -> list[bytes]:
    """Return an instance as a JSON object, or as GeoJSON features. This takes time, so call it in a thread."""
    bare = BareInstance(
        label=instance.label,
        text_index=instance.object_index,
        score=round(instance.score, 5),
        box=[round(value, 2) for value in instance.found_box],
        area=instance.area,
        bbox=instance.box and corner_and_size(instance.box),
    ).model_dump()
    if form == GEOJSON:
        features = feature_collection([instance], tolerance)["features"]
        return [to_json({**feature, "properties": bare}) for feature in features]
    return [to_json({**bare, form: FIND_FORMATS[form].to_json(instance, tolerance)})]


def _limit(asked: int | None, texts: int, size: Size) -> int:
    """Return the maximum number of instances for each text."""
    pixels = size[0] * size[1] * texts
    if pixels * (asked or 1) > MAX_MASK_PIXELS:
        raise Problem(
            422,
            f"{texts * (asked or 1)} masks of {size[0]} x {size[1]} pixels are too many for one call: send fewer "
            "texts, or a lower limit",
        )
    return asked or MAX_MASK_PIXELS // pixels


ANSWERS: dict[str, Any] = {
    "description": "All instances: of the first text, the best first, then of the next text.",
    "content": {
        JSON: {"schema": {"$ref": "#/components/schemas/FindAnswer"}},
        FIND_FORMATS[GEOJSON].media_type: {"schema": {"type": "object"}},
    },
}


def router(engine: Engine, requests: CancellableRequests) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["v1"])

    @api.post(
        "/images/{image_id}/find",
        summary="Find concepts",
        response_model=None,
        responses={200: ANSWERS, **problem_responses(400, 404, 413, 422, 499)},
    )
    async def find_concepts(request: Request, image_id: ImageId, body: FindRequest) -> Response:
        """Find every instance of concepts, given as words or example boxes.

        This needs a model with `finds_concepts`: SAM3 with its concept models. Triton encodes the image once for any
        number of words and clicks. `format: geojson` returns one FeatureCollection.
        """
        started = time.monotonic()
        image = engine.image(image_id)
        example = None if body.example_image is None else engine.image(body.example_image)
        query = body.to_query(image.size, (example or image).size)
        pair = await engine.pair(body.model)
        check_pair(pair)
        width, height = image.size

        async def work() -> Response:
            def write(instance: Instance) -> list[bytes]:
                return _written(instance, body.format, body.tolerance)

            found = await find(engine, pair, image, example, query)
            written = await engine.budgets.workers.map(2 * width * height, write, found)
            objects = itertools.chain.from_iterable(written)
            if body.format == GEOJSON:
                content = b'{"type":"FeatureCollection","features":[%b]}' % b",".join(objects)
                return Response(content, media_type=FIND_FORMATS[GEOJSON].media_type)
            milliseconds = round((time.monotonic() - started) * 1000, 1)
            answer = FindAnswer(
                image=image_id, model=pair.name, width=width, height=height, objects=[], milliseconds=milliseconds
            )
            return Response(with_list(answer, "objects", objects), media_type=JSON)

        return await requests.run(request, work(), body.session_id)

    return api
