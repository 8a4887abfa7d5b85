"""Logits of earlier responses to Roboflow's SDK, which a later call with more points refines.

Reference: find_prior_prompt_in_cache() in inference/models/sam2/segment_anything2.py of
https://github.com/roboflow/inference. Unlike there, each object refines its own mask, even if the order changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..._common.lru import ByteLru
from ...families.base import FloatArray
from .bridge import Target

MAX_BYTES = 64 << 20
"""Maximum bytes of stored logits; the least recently used are evicted. An object of SAM2 takes 256 KiB."""


@dataclass(frozen=True)
class _Known:
    """A prompt in a comparable form: its box, and its points with labels in any order."""

    box: tuple[float, ...] | None
    points: frozenset[tuple[float, float, int]]

    def is_within(self, other: _Known) -> bool:
        """Whether another prompt has the same box and at least these points."""
        return self.box == other.box and self.points <= other.points


@dataclass(frozen=True)
class _Saved:
    owner: Hashable
    prompts: tuple[_Known, ...]
    logits: Sequence[FloatArray]

    @property
    def points(self) -> int:
        return sum(len(each.points) for each in self.prompts)


class LogitsCache:
    """Stores the logits of responses, separately for each caller, image and model."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._saved: ByteLru[tuple[Hashable, tuple[_Known, ...]], _Saved] = ByteLru(limit)

    def save(self, owner: Hashable, targets: Sequence[Target], logits: Sequence[FloatArray]) -> None:
        prompts = tuple(map(_known, targets))
        self._saved.put((owner, prompts), _Saved(owner, prompts, logits), sum(each.nbytes for each in logits))

    def load(self, owner: Hashable, targets: Sequence[Target]) -> list[FloatArray | None]:
        """Return for each object the logits that it refines; None for an object without logits.

        The logits are those of an earlier call whose objects are all in this call, which adds a point or an object. The
        newest call with one point less takes precedence, then the call with the most points.
        """
        prompts = tuple(map(_known, targets))
        count = sum(len(each.points) for each in prompts)
        best: tuple[tuple[bool, int], list[FloatArray | None]] | None = None
        for saved in reversed(list(self._saved.values())):
            found = _matched(saved, prompts) if saved.owner == owner and saved.prompts != prompts else None
            rank = (saved.points == count - 1, saved.points)
            if found is not None and (best is None or rank > best[0]):
                best = rank, found
        return best[1] if best is not None else [None] * len(prompts)


def _matched(saved: _Saved, prompts: Sequence[_Known]) -> list[FloatArray | None] | None:
    """Return the saved logits in the order of these prompts; None if a saved prompt is missing from them."""
    found: list[FloatArray | None] = [None] * len(prompts)
    for known, logits in zip(saved.prompts, saved.logits, strict=True):
        places = (place for place, each in enumerate(prompts) if found[place] is None and known.is_within(each))
        place = next(places, None)
        if place is None:
            return None
        found[place] = logits
    return found


def _known(target: Target) -> _Known:
    points = zip(target.points, target.labels, strict=True)
    box = None if target.box is None else tuple(map(float, target.box))
    return _Known(box, frozenset((float(x), float(y), int(label)) for (x, y), label in points))
