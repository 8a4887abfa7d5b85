"""Carries the requests of a search for all objects (triton_sam.everything), for both clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

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
from .everything_stream import AsyncPartStream
from .session_image import SessionImage

if TYPE_CHECKING:
    from .sync import SamTritonClient

Progress = Callable[[Step], None]
"""Is told each step. An exception that it raises ends the search."""


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

    def stream_parts(self, coming: Coming) -> AsyncPartStream:
        """Let the server find the objects of the next parts, and send them as they come, if it can."""


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
        progress: is called after each request.
        embeddings: embeddings of the image, if the client has them already.

    Raises:
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """
    image = plain_source(image)  # an open file can be read only once
    opened = _opened(image, embeddings)
    running = search_in_parts(opened, parameters)
    answer: Any = None
    with contextlib.ExitStack() as streams:
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
                streams.close()
                stream = streams.enter_context(contextlib.closing(client.stream_parts(asked)))
            elif isinstance(asked, Part):
                answer = stream.next() or client.see_part(asked) or _see(client, asked)
            elif progress is not None:
                progress(asked)


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
    with contextlib.closing(search_in_parts(opened, parameters)) as running, contextlib.ExitStack() as streams:
        answer: Any = None
        while True:
            asked = await asyncio.to_thread(_advance, running, answer)
            answer = None
            if isinstance(asked, Encode):
                is_known = embeddings is not None and asked.image is opened
                answer = embeddings if is_known else await client.encode_async(_as_file(asked.image, opened, image))
            elif isinstance(asked, Coming):
                streams.close()
                stream = streams.enter_context(contextlib.closing(client.stream_parts(asked)))
            elif isinstance(asked, Part):
                answer = await stream.next() or await client.see_part_async(asked) or await _see_async(client, asked)
            else:
                yield asked
                if isinstance(asked, Found):
                    return


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
