"""Carries the requests of a search for all objects (triton_sam.everything), for both clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

from ..everything.parameters import Parameters
from ..everything.search import Decode, Encode, Found, Search, Step, search
from ..families.base import Family, FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, open_image, plain_source
from ..inputs.prompts import PromptArray

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


def find_everything(
    client: SamTritonClient, image: ImageSource, parameters: Parameters, progress: Progress | None = None
) -> Found:
    """Segment all objects of an image.

    Args:
        client: a client of any family.
        image: the image in any form that the client accepts.
        parameters: the grid and the filters.
        progress: is called after each request.

    Raises:
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """
    image = plain_source(image)  # an open file can be read only once
    running = search(open_image(image), client.family, parameters)
    answer: Any = None
    while True:
        try:
            asked = running.send(answer)
        except StopIteration as end:
            found: Found = end.value
            return found
        if isinstance(asked, Encode):
            answer = client.encode(asked.image)
        elif isinstance(asked, Decode):
            answer = client.predict(asked.points, asked.labels, None, asked.masks, asked.multimask, image=asked.image)
        else:
            answer = None
            if progress is not None:
                progress(asked)


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
    opened = await asyncio.to_thread(open_image, image)
    with contextlib.closing(search(opened, client.family, parameters)) as running:
        answer: Any = None
        while True:
            asked = await asyncio.to_thread(_advance, running, answer)
            answer = None
            if isinstance(asked, Encode):
                is_known = embeddings is not None and asked.image is opened
                answer = embeddings if is_known else await client.encode_async(_as_file(asked.image, opened, image))
            elif isinstance(asked, Decode):
                _, task = await client.predict_async(
                    asked.points,
                    asked.labels,
                    mask_input=asked.masks,
                    multimask_output=asked.multimask,
                    image=asked.image,
                )
                answer = await task
            else:
                yield asked
                if isinstance(asked, Found):
                    return


async def told_everything_async(
    client: AsyncSearchClient, image: ImageSource, parameters: Parameters, progress: Progress | None
) -> Found:
    """Do as find_everything_async(), but tell the steps to ``progress`` and return the result."""
    async with contextlib.aclosing(find_everything_async(client, image, parameters)) as steps:
        async for step in steps:
            if isinstance(step, Found):
                return step
            if progress is not None:
                progress(step)
    raise AssertionError("a search ends with its objects")


def _advance(running: Search, answer: Any) -> Encode | Decode | Step | Found:
    """Take one step; return the result instead of raising StopIteration, which a future cannot carry."""
    try:
        return running.send(answer)
    except StopIteration as end:
        found: Found = end.value
        return found


def _as_file(asked: Image.Image, opened: Image.Image, image: ImageSource) -> ImageSource:
    """Return the caller's own form of the whole image, so that equal images have equal ids at the server."""
    return image if asked is opened else asked
