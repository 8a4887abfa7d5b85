"""Carries the requests of a search for all objects (triton_sam.everything)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from PIL import Image

from ..errors import ConfigurationError
from ..everything.parameters import Parameters
from ..everything.parts import Part, Seen, see
from ..everything.search import Coming, Encode, Found, Step, search_in_parts
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, open_image, plain_source
from ..transport.threads import Threads, result_of
from .concepts import current
from .session_image import SessionImage

if TYPE_CHECKING:
    from .sync import SamTritonClient

Progress = Callable[[Step], None]
"""Is called with each step. An exception that it raises ends the search."""
IN_FLIGHT = 2
"""Parts that are requested at a time: the server works on one while the answer to the other is under way."""


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


def search(
    client: SamTritonClient,
    image: ImageSource,
    parameters: Parameters,
    embeddings: ImageEmbeddings | None = None,
) -> Generator[Step | Found, None, None]:
    """Segment all objects of an image: yield each step, and at the end the result.

    Closing the generator ends the search, and cancels its requests at Triton.

    Args:
        client: a client of any family.
        image: the image in any form that the client accepts.
        parameters: the grid and the filters.
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
    with contextlib.closing(Threads()) as threads:
        while True:
            try:
                asked = running.send(answer)
            except StopIteration as end:
                yield end.value
                return
            answer = None
            if isinstance(asked, Encode):
                is_known = embeddings is not None and asked.image is opened
                answer = embeddings if is_known else client.encode(_as_file(asked.image, opened, image))
            elif isinstance(asked, Coming):
                coming = _parts(asked)
            elif isinstance(asked, Part):
                while len(ahead) < IN_FLIGHT and (part := next(coming, None)) is not None:
                    ahead.append(threads.submit(partial(client.see_part, part)))
                answer = result_of(ahead.popleft()) or _see(client, asked)
            else:
                yield asked


def find_everything(
    client: SamTritonClient,
    image: ImageSource,
    parameters: Parameters,
    progress: Progress | None = None,
    embeddings: ImageEmbeddings | None = None,
) -> Found:
    """Do as search(), but tell the steps to ``progress``, and return the result."""
    with contextlib.closing(search(client, image, parameters, embeddings)) as steps:
        for step in steps:
            if isinstance(step, Found):
                return step
            if progress is not None:
                progress(step)
    raise AssertionError("a search ends with what it found")


def _parts(coming: Coming) -> Iterator[Part]:
    """Yield the parts that a search asks for next, in their order."""
    for start in range(0, len(coming.part.points), coming.step):
        yield replace(coming.part, points=coming.part.points[start : start + coming.step])


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


def _opened(image: ImageSource, embeddings: ImageEmbeddings | None) -> Image.Image:
    """Return the image; with embeddings alone, the empty one of the same size from to_search()."""
    return image if isinstance(image, Image.Image) and not is_at_hand(embeddings) else open_image(image)


def _as_file(asked: Image.Image, opened: Image.Image, image: ImageSource) -> ImageSource:
    """Return the caller's own form of the whole image, so that equal images have equal ids at the server."""
    return image if asked is opened else asked
