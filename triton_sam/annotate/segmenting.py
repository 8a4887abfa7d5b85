"""Annotates one image with a client: prompts become masks, or all objects or the instances of words are found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..client.sync import SamTritonClient
from ..errors import ImageError
from ..families.base import Family, Size
from ..inputs.images import ImageSource, open_image
from .prompts import Prompt, Prompts
from .records import ImageRecord
from .sources import ImageItem

Progress = Callable[[ImageItem, float], None]
"""Is told how much of an image is done, 0..1. Several threads call it."""
QUICK = 3.0
"""Seconds of a search that needs no progress."""
AT_ONCE = 16
"""Objects in one request, so that the full-size masks of an image with many objects fit into memory."""


def prompts_to_masks(
    prompts: Prompts, progress: Progress = lambda *_: None
) -> Callable[[SamTritonClient, ImageItem], ImageRecord]:
    """Return the function that turns the prompts of an image into masks. The masks are those of client.segment()."""

    def work(client: SamTritonClient, item: ImageItem) -> ImageRecord:
        content, size = opened(item)
        kept, skipped = prompts.of(item, size)
        if not kept:
            return ImageRecord.of(item, size, [], [], skipped)
        image = client.encode(content)
        objects: list[dict[str, Any]] = []
        for part in parts(kept):
            segments = client.segment(**together(part, client.family), image=image, logits=False)
            categories, origins = [prompt.category for prompt in part], [prompt.what for prompt in part]
            found = ImageRecord.of(item, size, segments, categories, origins=origins)
            objects += found.objects
            skipped = [*skipped, *found.skipped]
            progress(item, len(objects) / len(kept))
        return ImageRecord(item.id, item.name, size, tuple(objects), tuple(skipped))

    return work


def parts(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """Yield the prompts of each request."""
    for start in range(0, len(prompts), AT_ONCE):
        yield prompts[start : start + AT_ONCE]


def together(prompts: Sequence[Prompt], family: Family) -> dict[str, Any]:
    """Return the arguments of one call of client.segment() for several objects, whose prompts are of one kind."""
    each = [prompt.arguments(family) for prompt in prompts]
    arguments = {name: [values[name] for values in each] for name in each[0]}
    if "mask_input" in arguments:
        arguments["mask_input"] = np.stack(arguments["mask_input"])[:, None]
    return arguments


def all_objects(
    parameters: Mapping[str, Any], category: int, progress: Progress = lambda *_: None
) -> Callable[[SamTritonClient, ImageItem], ImageRecord]:
    """Return the function that finds all objects of an image by client.everything(); all get one category.

    The objects are the same with and without progress. But the answer to one request for a whole image comes sooner
    from a fast server, and too late for the timeout from a slow one: so the last image decides how to search the next.
    """
    is_slow = True

    def work(client: SamTritonClient, item: ImageItem) -> ImageRecord:
        nonlocal is_slow
        content, size = opened(item)
        began = time.monotonic()
        told = (lambda step: progress(item, step.done / step.total)) if is_slow else None
        objects = client.everything(content, progress=told, **parameters)
        is_slow = time.monotonic() - began > QUICK
        return ImageRecord.of(item, size, objects, [category] * len(objects))

    return work


def instances_of(
    texts: Sequence[str], parameters: Mapping[str, Any]
) -> Callable[[SamTritonClient, ImageItem], ImageRecord]:
    """Return the function that finds the instances of texts by client.find(); the categories are the texts, from 1."""

    def work(client: SamTritonClient, item: ImageItem) -> ImageRecord:
        content, size = opened(item)
        found = client.find(list(texts), image=content, **parameters)
        return ImageRecord.of(item, size, found, [each.object_index + 1 for each in found])

    return work


def opened(item: ImageItem) -> tuple[ImageSource, Size]:
    """Return an image as a path or as bytes, and its width and height in pixels.

    Raises:
        InputError: the image cannot be used, or has another size than the source says.
        DownloadError: the storage of the image cannot be reached.
    """
    content = item.content()
    size = open_image(content).size
    if item.size is not None and item.size != size:
        raise ImageError(
            f"the file has {size[0]} x {size[1]} pixels, and the source says {item.size[0]} x {item.size[1]}"
        )
    return content, size
