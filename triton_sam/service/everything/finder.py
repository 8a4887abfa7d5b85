"""The objects that a search finds, and the function that searches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...client.speculative import SpeculativeSAM2Client
from ...inputs.embeddings import ImageEmbeddings
from ...masks.cleanup import Cleanup


@dataclass(frozen=True)
class Found:
    """One object.

    Args:
        number: its number in this search, from 0.
        rle: its mask as compressed COCO RLE, in the size of the image.
        score: predicted IoU.
        stability_score: IoU of the masks at two thresholds.
        area: foreground pixels.
        box: x1, y1, x2, y2 in pixels.
        point: x, y of the point that found it.
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


@dataclass(frozen=True)
class Step:
    """A part of the answer.

    Args:
        done: points decoded so far.
        total: points in all.
        found: new objects.
        removed: numbers of objects that a better one has replaced.
        detail: at the end, the reason why there is no object.
    """

    done: int
    total: int
    found: Sequence[Found] = ()
    removed: Sequence[int] = ()
    detail: str | None = None


class Finder(Protocol):
    """Searches for everything; closing the generator ends the search, also at Triton."""

    def __call__(
        self,
        client: SpeculativeSAM2Client,
        image: ImageEmbeddings,
        options: Mapping[str, Any],
        cleanup: Cleanup | None,
    ) -> AsyncGenerator[Step, None]:
        """Yield the steps of a search."""
