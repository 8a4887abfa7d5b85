"""The objects that a search finds, and the function that searches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.speculative import SpeculativeSAM2Client
from ...everything import search
from ...everything.parameters import parameters_of
from ...everything.parts import FoundMask
from ...inputs.embeddings import ImageEmbeddings
from ...masks.cleanup import Cleanup
from ...masks.rle import rle_to_mask
from ...masks.segment import Segment


@dataclass(frozen=True)
class FoundRegion:
    """One object.

    Args:
        crop_box: x1, y1, x2, y2 of the crop that the point belongs to.
    """

    number: int
    rle: Mapping[str, Any]
    score: float
    stability_score: float
    area: int
    box: tuple[int, int, int, int]
    point: tuple[float, float]
    crop_box: tuple[int, int, int, int]

    def segment(self) -> Segment:
        return Segment(rle_to_mask(self.rle), self.score, None, self.number)


@dataclass(frozen=True)
class FinderUpdate:
    done: int
    total: int
    found: Sequence[FoundRegion] = ()
    removed: Sequence[int] = ()
    detail: str | None = None


Finder = Callable[
    [SpeculativeSAM2Client, ImageEmbeddings, bytes, Mapping[str, Any], Cleanup | None],
    AsyncGenerator[FinderUpdate, None],
]
"""Searches for everything in an image, given its embeddings, encoded bytes, options, and a clean-up of masks.

Closing the generator ends the search, also at Triton.
"""


async def find(
    client: SpeculativeSAM2Client,
    image: ImageEmbeddings,
    content: bytes,
    options: Mapping[str, Any],
    cleanup: Cleanup | None,
) -> AsyncGenerator[FinderUpdate, None]:
    given = {name: value for name, value in options.items() if name != "points_per_batch"}
    parameters = parameters_of(client.family.name, {**given, "cleanup": cleanup or Cleanup()})
    numbers: dict[FoundMask, int] = {}
    shown: list[FoundMask] = []
    counter = itertools.count()
    done = total = 0
    async with contextlib.aclosing(client.search_steps(content, parameters, image)) as steps:
        async for step in steps:
            if isinstance(step, search.SearchProgress):
                masks, detail, done, total = step.masks(), None, step.done, step.total
            else:
                masks, detail = step.masks, None if step.masks else step.reason
            new, gone = _changes(shown, masks)
            numbers.update(zip(new, counter, strict=False))
            found = await asyncio.to_thread(lambda new: [_found(each, numbers[each]) for each in new], new)
            yield FinderUpdate(done, total, found, [numbers.pop(each) for each in gone], detail)
            shown = masks


def _changes(before: Sequence[FoundMask], now: Sequence[FoundMask]) -> tuple[list[FoundMask], list[FoundMask]]:
    """Return the new masks, and the removed ones."""
    known, left = set(before), set(now)
    return [each for each in now if each not in known], [each for each in before if each not in left]


def _found(mask: FoundMask, number: int) -> FoundRegion:
    segment = mask.segment()
    return FoundRegion(
        number=number,
        rle=segment.to_rle(),
        score=segment.score,
        stability_score=segment.stability_score,
        area=segment.area,
        box=segment.box or (0, 0, 0, 0),
        point=segment.point,
        crop_box=segment.crop_box,
    )
