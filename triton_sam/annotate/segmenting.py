"""Annotates one image with a client: segments prompts, or finds all objects or the instances of words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.sync import SamTritonClient
from ..errors import ImageError
from ..families.base import Family, Size
from ..inputs.header import MANY_PAGES
from ..inputs.images import ImageSource, open_image, pages_of
from .prompts import Prompt, Prompts
from .records import ImageRecord
from .sources import ImageItem, Skipped

Progress = Callable[[ImageItem, float], None]
"""Receives how much of an image is done, 0..1. Several threads call it."""
AT_ONCE = 16
"""Objects in one request, so that the full-size masks of an image with many objects fit into memory."""


def prompts_to_masks(
    prompts: Prompts, progress: Progress = lambda *_: None
) -> Callable[[SamTritonClient, ImageItem], ImageRecord]:
    """Return the function that segments the prompts of an image, with the same masks as client.segment()."""

    def work(client: SamTritonClient, item: ImageItem) -> ImageRecord:
        image = opened(item)
        kept, skipped = prompts.of(item, image.size)
        skipped = [*image.skipped, *skipped]
        if not kept:
            return ImageRecord.of(item, image.size, [], [], skipped)
        encoded = client.encode(image.content)
        objects: list[dict[str, Any]] = []
        for part in parts(kept):
            segments = client.segment(**together(part, client.family), image=encoded, logits=False)
            categories, origins = [prompt.category for prompt in part], [prompt.what for prompt in part]
            found = ImageRecord.of(item, image.size, segments, categories, origins=origins)
            objects += found.objects
            skipped += found.skipped
            progress(item, len(objects) / len(kept))
        return ImageRecord(item.id, item.name, image.size, tuple(objects), tuple(skipped))

    return work


def parts(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """Split prompts into requests."""
    for start in range(0, len(prompts), AT_ONCE):
        yield prompts[start : start + AT_ONCE]


def together(prompts: Sequence[Prompt], family: Family) -> dict[str, Any]:
    """Return the arguments of one client.segment() call for several objects with prompts of one kind."""
    each = [prompt.arguments(family) for prompt in prompts]
    arguments = {name: [values[name] for values in each] for name in each[0]}
    if "mask_input" in arguments:
        arguments["mask_input"] = np.stack(arguments["mask_input"])[:, None]
    return arguments


def all_objects(
    parameters: Mapping[str, Any], category: int, progress: Progress = lambda *_: None
) -> Callable[[SamTritonClient, ImageItem], ImageRecord]:
    """Return the function that finds all objects of an image by client.everything(), with one category for all."""

    def work(client: SamTritonClient, item: ImageItem) -> ImageRecord:
        image = opened(item)
        objects = client.everything(
            image.content, progress=lambda step: progress(item, step.done / step.total), **parameters
        )
        return ImageRecord.of(item, image.size, objects, [category] * len(objects), image.skipped)

    return work


def instances_of(
    texts: Sequence[str], parameters: Mapping[str, Any]
) -> Callable[[SamTritonClient, ImageItem], ImageRecord]:
    """Return the function that finds the instances of texts by client.find(). Texts are categories from 1."""

    def work(client: SamTritonClient, item: ImageItem) -> ImageRecord:
        image = opened(item)
        found = client.find(list(texts), image=image.content, **parameters)
        return ImageRecord.of(item, image.size, found, [each.object_index + 1 for each in found], image.skipped)

    return work


@dataclass(frozen=True)
class Opened:
    """An opened image of a run.

    Args:
        content: a path, bytes, or the pixels of a tile.
        skipped: the pages or frames of the file that are not annotated.
    """

    content: ImageSource
    size: Size
    skipped: tuple[Skipped, ...] = ()


def opened(item: ImageItem) -> Opened:
    content = item.content()
    size = open_image(content).size
    if item.size is not None and item.size != size:
        raise ImageError(
            f"the file has {size[0]} x {size[1]} pixels, and the source says {item.size[0]} x {item.size[1]}"
        )
    pages = pages_of(content) if isinstance(content, (str, bytes, os.PathLike)) else 1
    if pages == 1:
        return Opened(content, size)
    last = f"{pages} or more" if pages == MANY_PAGES else str(pages)
    left = Skipped(item.name, f"pages 2 to {last}", "only the first page or frame of a file is annotated")
    return Opened(content, size, (left,))
