"""The common parts of adapters: reading requests, choosing the model, and requesting masks from the engine."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from ...client.concepts import FoundInstances
from ...concepts.instances import Instance
from ...everything.search import FoundMask
from ...families.base import FloatArray, Size
from ...masks.polygons import fill_polygons
from ...masks.rings import FloatPoints
from ...masks.rle import BoolArray, mask_to_rle
from ...masks.segment import Segment
from .. import answers
from ..answers import JSON, to_json
from ..bodies import kind_of
from ..cancellation import CancellableRequests
from ..concepts import FindRequest, check_pair, find
from ..engine import MODEL_HEADER, Engine, Pair
from ..everything import EverythingRequest, Searches
from ..faults import NO_NAMES, first_fault, validated
from ..problems import Problem, tell
from ..schemas import Prompt, RleMask, SegmentRequest
from ..store import StoredImage, accept_image
from ..videos.store import StoredVideo, Videos
from ..videos.uploads import Upload

MAX_CORNERS, MAX_CLIMBS = 1 << 16, 1024
"""Maximum corners of a polygon, and heights of the image that its edges cross: the time to fill it grows with them."""

Message = TypeVar("Message", bound=BaseModel)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Lenient(BaseModel):
    """A part of a tool's request. Unused members are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Target:
    """The prompt of one object.

    Args:
        points: x, y in pixels of the image; points outside the image are moved to its border.
        labels: 1 is foreground, 0 is background; one for each point.
        box: x1, y1, x2, y2 in pixels, the corners in any order.
        mask: float32 (S,S) logits to refine, for families that accept a mask. Points or a box are also required.
    """

    points: Sequence[Sequence[float]] = ()
    labels: Sequence[int] = ()
    box: Sequence[float] | None = None
    mask: FloatArray | None = None

    @property
    def is_empty(self) -> bool:
        return not self.points and self.box is None

    def inside(self, size: Size) -> dict[str, Any]:
        """Return the members of an object of `/v1`, moved into an image of this width and height."""
        if len(self.labels) != len(self.points):
            raise Problem(422, f"there are {len(self.points)} points, but {len(self.labels)} labels: send one for each")
        points = [_within(point, size, 2) for point in self.points]
        box = None
        if self.box is not None:
            x1, y1, x2, y2 = _within(self.box, size, 4)
            box = [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)]
        return {"points": points, "labels": [int(label) for label in self.labels], "box": box}


@dataclass(frozen=True)
class FoundInstance:
    text: str
    score: float
    rle: RleMask


class Bridge:
    """Connects an adapter to the engine, with the cache, limits and cancellation of `/v1`."""

    def __init__(
        self,
        engine: Engine,
        requests: CancellableRequests,
        searches: Searches,
        videos: Videos,
    ) -> None:
        self.engine = engine
        self.videos = videos
        self.run = requests.run
        self._searches = searches

    @property
    def pairs(self) -> dict[str, Pair]:
        return self.engine.state.pairs

    async def read(self, request: Request, kind: type[Message]) -> Message:
        if kind_of(request.headers) != JSON:  # a page of another site can send other types without a preflight request
            raise Problem(415, f"send JSON with the header Content-Type: {JSON}", code="content_type")
        content = await request.body()
        try:
            return await asyncio.to_thread(kind.model_validate_json, content)
        except ValidationError as error:
            raise Problem(422, first_fault(error)) from None
        except RecursionError:
            raise Problem(422, "the JSON is nested too deeply") from None

    async def image(self, text: str, name: str = "image", *, upright: bool = True) -> StoredImage:
        """Store the image of a base64 string, which may begin with ``data:image/...;base64,``.

        Args:
            upright: whether the tool turns images by their EXIF orientation.
        """
        return await self.engine.store(await asyncio.to_thread(decoded, text, name), upright=upright)

    async def pair(self, family: str | None, size: str = "") -> Pair:
        """Return a pair of a family.

        Args:
            size: the size that the tool requests, as in names of pairs. If it is not served, another size is used.
        """
        pair = await self.engine.pair(family)
        if size and pair.name == family:
            fitting = (each for each in self.pairs.values() if each.family == pair.family)
            found = next((each for each in fitting if each.name.endswith(f"_{size}")), None)
            if found is not None:
                return found
            tell(MODEL_HEADER, pair.name)  # its size is unknown
        return pair

    async def words_pair(self, family: str | None = None) -> Pair:
        """Return a pair that finds words: one of the family, or the first one."""
        pair = await self.pair(family)
        able = [each for each in self.pairs.values() if each.finds_concepts and family in (None, each.family.name)]
        if not pair.finds_concepts and able:
            return able[0]
        check_pair(pair)
        return pair

    async def masks(
        self,
        request: Request,
        image: StoredImage,
        pair: Pair,
        targets: Sequence[Target],
        convert: Callable[[Segment], Result | None],
        *,
        multimask: bool = False,
    ) -> list[list[Result]]:
        """Return the masks of objects, converted by the adapter: one list of candidates for each object.

        Here and in the other searches, masks that convert to None are left out.
        """

        async def work() -> list[list[Result]]:
            embeddings = await self.engine.embed(image, pair)
            found: list[list[Result]] = [[] for _ in targets]
            for numbers in _alike(targets):
                body = _segment_request([targets[number] for number in numbers], image.size, multimask)
                answers.check_amount(body, image.size, pair.family)
                masks = _stacked([targets[number].mask for number in numbers])
                prompt = {**answers.client_prompt(body), "mask_input": masks}

                def write(segments: Iterator[Segment], numbers: list[int] = numbers) -> list[tuple[int, Result | None]]:
                    numbered = (replace(each, object_index=numbers[each.object_index]) for each in segments)
                    return [(each.object_index, convert(each)) for each in numbered]

                for number, result in await self.engine.segment(embeddings, pair, prompt, write, multimask=multimask):
                    if result is not None:
                        found[number].append(result)
            return found

        return await self.run(request, work())

    async def instances(
        self,
        request: Request,
        image: StoredImage,
        pair: Pair,
        texts: Sequence[str],
        convert: Callable[[Instance], Result | None],
        *,
        names: Mapping[str, str] = NO_NAMES,
        **filters: Any,
    ) -> list[Result]:
        """Return every instance of texts, converted by the adapter: text by text, the best first.

        Args:
            texts: the texts; empty: search for the concept of ``boxes``.
            filters: members of FindRequest; None stands for the default.
        """

        async def work() -> list[Result]:
            found = await self.found(image, pair, texts, names=names, **filters)
            return _drawn(await self.in_thread(image.size, found, convert))

        return await self.run(request, work())

    async def found(
        self,
        image: StoredImage,
        pair: Pair,
        texts: Sequence[str],
        *,
        names: Mapping[str, str] = NO_NAMES,
        **filters: Any,
    ) -> FoundInstances:
        """Return every instance of texts; see instances()."""
        check_pair(pair)
        asked = validated(FindRequest, names, text=list(texts) or None, **_given(filters))
        return await find(self.engine, pair, image, None, asked.to_query(image.size, image.size))

    async def everything(
        self,
        request: Request,
        image: StoredImage,
        pair: Pair,
        options: Mapping[str, Any],
        convert: Callable[[Segment], Result | None],
        names: Mapping[str, str] = NO_NAMES,
    ) -> list[Result]:
        """Return all objects of an image, converted by the adapter, in the order of the search.

        Args:
            options: parameters of EverythingRequest; None stands for the default.
        """

        def write(numbered: tuple[int, FoundMask]) -> Result | None:
            number, each = numbered
            return convert(each.segment(number))

        asked = validated(EverythingRequest, names, **_given(options))
        search = self._searches.start(image, pair, asked)
        try:
            seconds = self.engine.settings.search_seconds
            objects, _ = await self.run(request, search.objects(), timeout=seconds)
            return _drawn(await self.in_thread(image.size, enumerate(objects.values()), write))
        finally:
            search.leave()

    async def keep_images(self, texts: Sequence[str], pair: Pair, *, upright: bool = True) -> StoredVideo:
        """Store frames, each a base64 image file, as a video; see image()."""
        self.check_count(len(texts))
        megapixels, workers = self.engine.settings.max_megapixels, self.engine.budgets.workers
        async with self.videos.room() as room:
            upload = Upload("frames")
            for index, text in enumerate(texts):
                content = await room.run(functools.partial(decoded, text, f"frame {index}"))
                if not upright:
                    try:
                        content, _ = await accept_image(content, megapixels, workers, upright=False)
                    except Problem as problem:
                        raise Problem(problem.status, f"frame {index}: {problem.detail}", code=problem.code) from None
                upload.frames.append(room.folder / f"{index:06d}")
                await room.write(content, upload.frames[-1])
            return await self.videos.keep(upload, room, pair)

    def check_count(self, count: int) -> None:
        """Reject a video without frames, or with too many."""
        if not count:
            raise Problem(422, "there are no frames: send at least one image")
        most = self.engine.settings.max_video_frames
        if count > most:
            raise Problem(413, f"a video may have at most {most} frames")

    async def find_in_frame(
        self, request: Request, video: StoredVideo, frame: int, texts: Sequence[str], **filters: Any
    ) -> list[FoundInstance]:
        """Return every instance of texts, or of example boxes, in a frame."""
        content = await asyncio.to_thread(video.file.paths[frame].read_bytes)
        image = await self.engine.store(content)

        def convert(each: Instance) -> FoundInstance:
            return FoundInstance(each.label, each.score, RleMask(**mask_to_rle(each.mask)))

        return await self.instances(request, image, await self.words_pair(), texts, convert, **filters)

    async def in_thread(self, size: Size, items: Iterable[Item], convert: Callable[[Item], Result]) -> list[Result]:
        """Convert masks of this width and height from or to the tool's form, one by one in a thread."""
        return await self.engine.budgets.workers.map(2 * size[0] * size[1], convert, items)


def json_answer(content: Any) -> Response:
    """Return a JSON response; the content is JSON-compatible already."""
    return Response(to_json(content), media_type=JSON)


def json_list(items: Iterable[bytes]) -> Response:
    """Return a JSON response with a list of items, each a JSON document that a worker has written."""
    return Response(b"[%b]" % b",".join(items), media_type=JSON)


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _drawn(found: Sequence[Result | None]) -> list[Result]:
    return [each for each in found if each is not None]


def _segment_request(targets: Sequence[Target], size: Size, multimask: bool) -> SegmentRequest:
    try:
        objects = [Prompt(**target.inside(size)) for target in targets]
        return SegmentRequest(objects=objects, multimask=multimask)
    except ValidationError as error:
        raise Problem(422, f"the prompt cannot be used: {first_fault(error)}") from None


def _alike(targets: Sequence[Target]) -> list[list[int]]:
    """Return the indexes of targets, grouped by whether they have points, a box and a mask; a call takes one group."""
    groups = defaultdict(list)
    for number, target in enumerate(targets):
        groups[bool(target.points), target.box is not None, target.mask is not None].append(number)
    return list(groups.values())


def _stacked(masks: Sequence[FloatArray | None]) -> FloatArray | None:
    """Return the masks of a group as float32 (P,1,S,S); None without masks."""
    given = [mask for mask in masks if mask is not None]
    return np.stack(given)[:, None] if given else None


def _within(values: Sequence[float], size: Size, count: int) -> list[float]:
    if len(values) != count or not all(math.isfinite(value) for value in values):
        what = "a point is x, y" if count == 2 else "a box is x1, y1, x2, y2"
        raise Problem(422, f"{what}, each a finite number")
    return [min(max(float(value), 0.0), float(size[place % 2])) for place, value in enumerate(values)]


def filled_polygon(ring: FloatPoints, size: Size) -> BoolArray:
    """Return the mask of a polygon that a user has drawn, x, y in pixels inside the image. This blocks."""
    if not 3 <= len(ring) <= MAX_CORNERS:
        raise Problem(422, f"a polygon needs 3 to {MAX_CORNERS} corners, not {len(ring)}")
    climbs = np.abs(ring[:, 1] - np.roll(ring[:, 1], 1)).sum()
    if climbs > MAX_CLIMBS * size[1]:
        raise Problem(422, f"the edges of a polygon go up and down more than {MAX_CLIMBS} times: draw a simpler one")
    return fill_polygons([ring], size)


def decoded(text: str, name: str) -> bytes:
    """Return the bytes of a base64 string. This takes milliseconds for a large image: call it in a thread."""
    content = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(content.translate({10: None, 13: None}), validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"{name}: send the bytes of an image file as base64") from None
