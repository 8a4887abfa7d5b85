"""Carries the requests of a search for all objects (triton_sam.everything), for both clients."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from PIL import Image

from ..errors import ConfigurationError
from ..everything.parameters import Parameters
from ..everything.parts import Decode, Part, Seen, see
from ..everything.search import Coming, Encode, Found, SearchInParts, Step, search_in_parts
from ..families.base import Family, FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, open_image, plain_source
from ..inputs.prompts import PromptArray
from .concepts import current
from .session_image import SessionImage

if TYPE_CHECKING:
    from .sync import SamTritonClient

Value = TypeVar("Value")
Progress = Callable[[Step], None]
"""Is called with each step. An exception that it raises ends the search."""
IN_FLIGHT = 2
"""Parts that are requested at a time: the server works on one while the answer to the other is under way."""

Queued = tuple[str, "asyncio.Task[tuple[FloatArray, FloatArray]]"]
"""(request id, task) of one prediction, whose result is (masks, iou)."""


class AsyncSearchClient(Protocol):
    """The calls of an asynchronous client that a search makes, as in SpeculativeSAM2Client."""

    @property
    def family(self) -> Family:
        """The SAM family."""

    async def encode_async(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image."""

    async def predict_async(
        self,
        coords: PromptArray,
        labels: PromptArray,
        *,
        mask_input: PromptArray,
        multimask_output: bool,
        image: ImageEmbeddings,
    ) -> Queued:
        """Begin a prediction that no other one replaces."""

    async def see_part_async(self, part: Part) -> Seen | None:
        """Let the server find the objects under some points; None if it cannot."""


def to_search(
    image: ImageEmbeddings | ImageSource | None, latest: ImageEmbeddings | None, parameters: Parameters
) -> tuple[ImageSource, ImageEmbeddings | None]:
    """Return the image to search, and its embeddings or its handle on the server if the caller has them.

    Args:
        image: what the caller names; None for the current image of the client.
        latest: the current image of the client.
        parameters: of the search.

    Raises:
        NoImageError: there is no image.
        ConfigurationError: there are layers of crops, and of the image only its embeddings are here.
    """
    chosen = current(image, latest)
    if isinstance(chosen, SessionImage):
        return chosen.remote.content, chosen
    if not isinstance(chosen, ImageEmbeddings):
        return plain_source(chosen), None  # an open file can be read only once
    if parameters.crop_n_layers:
        raise ConfigurationError("crop_n_layers needs the image itself, and not its embeddings: give image=...")
    return Image.new("1", chosen.image_size), chosen  # only its size matters


def is_at_hand(embeddings: ImageEmbeddings | None) -> bool:
    """Whether the source of an image is there besides these embeddings of it, see to_search()."""
    return embeddings is None or isinstance(embeddings, SessionImage)


def find_everything(
    client: SamTritonClient,
    image: ImageSource,
    parameters: Parameters,
    progress: Progress | None = None,
    embeddings: ImageEmbeddings | None = None,
) -> Found:
    """Segment all objects of an image.

    Args:
        client: a client of any family.
        image: the image in any form that the client accepts.
        parameters: the grid and the filters.
        progress: is called after each part.
        embeddings: embeddings of the image, if the client has them already.

    Raises:
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """
    image = plain_source(image)  # an open file can be read only once
    opened = _opened(image, embeddings)
    running = search_in_parts(opened, parameters)
    coming: Iterator[Part] = iter(())
    ahead: deque[Future[Seen | None]] = deque()
    answer: Any = None
    while True:
        try:
            asked = running.send(answer)
        except StopIteration as end:
            found: Found = end.value
            return found
        answer = None
        if isinstance(asked, Encode):
            is_known = embeddings is not None and asked.image is opened
            answer = embeddings if is_known else client.encode(_as_file(asked.image, opened, image))
        elif isinstance(asked, Coming):
            coming = _parts(asked)
        elif isinstance(asked, Part):
            while len(ahead) < IN_FLIGHT and (part := next(coming, None)) is not None:
                ahead.append(_in_thread(partial(client.see_part, part)))
            answer = ahead.popleft().result() or _see(client, asked)
        elif progress is not None:
            progress(asked)


def _parts(coming: Coming) -> Iterator[Part]:
    """Yield the parts that a search asks for next, in their order."""
    for start in range(0, len(coming.part.points), coming.step):
        yield replace(coming.part, points=coming.part.points[start : start + coming.step])


def _in_thread(call: Callable[[], Value]) -> Future[Value]:
    """Run a call in a thread of its own, which does not delay the end of the process."""
    future: Future[Value] = Future()
    context = contextvars.copy_context()  # OpenTelemetry keeps the current span there

    def run() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001 - the waiting thread receives every error
            future.set_exception(error)

    threading.Thread(target=run, name="triton-sam-part", daemon=True).start()
    return future


def _see(client: SamTritonClient, part: Part) -> Seen:
    """Find the objects under some points by clicks."""
    running = see(part, client.family)
    answer: Any = None
    while True:
        try:
            asked = running.send(answer)
        except StopIteration as end:
            seen: Seen = end.value
            return seen
        answer = client.predict(asked.points, asked.labels, None, asked.masks, asked.multimask, image=asked.image)


async def find_everything_async(
    client: AsyncSearchClient,
    image: ImageSource,
    parameters: Parameters,
    embeddings: ImageEmbeddings | None = None,
) -> AsyncGenerator[Step | Found, None]:
    """Segment all objects of an image: yield each step, and at the end the result.

    Closing the generator, or cancelling the task that runs it, ends the search and cancels its request at Triton. The
    filters run in a thread.

    Args:
        client: a client of any family.
        image: the image in any form that the client accepts.
        parameters: the grid and the filters.
        embeddings: embeddings of the image, if the client has them already.

    Raises:
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """
    image = await asyncio.to_thread(plain_source, image)
    opened = await asyncio.to_thread(_opened, image, embeddings)
    coming: Iterator[Part] = iter(())
    ahead: deque[asyncio.Task[Seen | None]] = deque()
    answer: Any = None
    with contextlib.closing(search_in_parts(opened, parameters)) as running:
        try:
            while True:
                asked = await asyncio.to_thread(_advance, running, answer)
                answer = None
                if isinstance(asked, Encode):
                    is_known = embeddings is not None and asked.image is opened
                    answer = embeddings if is_known else await client.encode_async(_as_file(asked.image, opened, image))
                elif isinstance(asked, Coming):
                    coming = _parts(asked)
                elif isinstance(asked, Part):
                    while len(ahead) < IN_FLIGHT and (part := next(coming, None)) is not None:
                        ahead.append(asyncio.create_task(client.see_part_async(part)))
                    answer = await ahead[0] or await _see_async(client, asked)
                    ahead.popleft()
                else:
                    yield asked
                    if isinstance(asked, Found):
                        return
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)


async def told_everything_async(
    client: AsyncSearchClient,
    image: ImageSource,
    parameters: Parameters,
    progress: Progress | None,
    embeddings: ImageEmbeddings | None = None,
) -> Found:
    """Do as find_everything_async(), but tell the steps to ``progress`` and return the result."""
    async with contextlib.aclosing(find_everything_async(client, image, parameters, embeddings)) as steps:
        async for step in steps:
            if isinstance(step, Found):
                return step
            if progress is not None:
                progress(step)
    raise AssertionError("a search ends with its objects")


async def _see_async(client: AsyncSearchClient, part: Part) -> Seen:
    """Find the objects under some points by clicks."""
    running = see(part, client.family)
    answer: Any = None
    while True:
        asked = await asyncio.to_thread(_advance_part, running, answer)
        if isinstance(asked, Seen):
            return asked
        _, task = await client.predict_async(
            asked.points, asked.labels, mask_input=asked.masks, multimask_output=asked.multimask, image=asked.image
        )
        answer = await task


def _advance(running: SearchInParts, answer: Any) -> Encode | Coming | Part | Step | Found:
    """Take one step; return the result instead of raising StopIteration, which a future cannot carry."""
    try:
        return running.send(answer)
    except StopIteration as end:
        found: Found = end.value
        return found


def _advance_part(running: Generator[Decode, Any, Seen], answer: Any) -> Decode | Seen:
    """Do as _advance() with a part."""
    try:
        return running.send(answer)
    except StopIteration as end:
        seen: Seen = end.value
        return seen


def _opened(image: ImageSource, embeddings: ImageEmbeddings | None) -> Image.Image:
    """Return the image; with embeddings alone, the empty one of the same size from to_search()."""
    return image if isinstance(image, Image.Image) and not is_at_hand(embeddings) else open_image(image)


def _as_file(asked: Image.Image, opened: Image.Image, image: ImageSource) -> ImageSource:
    """Return the caller's own form of the whole image, so that equal images have equal ids at the server."""
    return image if asked is opened else asked
