"""The masks of one video so far, within the service's memory for masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...masks.label_map import label_map_png
from ...masks.segment import VideoSegment
from ...tracks.formats import MAX_OBJECT_ID, label_map
from ...tracks.records import MaskRecord
from ..budgets import Budget

PER_MASK = 1024
"""Bytes of a mask in addition to its run-length encoding."""


class Records:
    """The newest mask of each object in each frame."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._frames: dict[int, dict[int, MaskRecord]] = {}
        self._labels: dict[int, bytes] = {}

    def put(self, frame: int, records: Iterable[MaskRecord], labels: bytes | None = None) -> None:
        """Store masks of one frame; they replace earlier ones."""
        kept = self._frames.get(frame, {})
        changed = {**kept, **{record.object_id: record for record in records}}
        more = _size(changed, labels) - _size(kept, self._labels.get(frame))
        if more > 0:
            self._budget.check(more)
        self._set(frame, changed, labels)

    def remove_object(self, object_id: int) -> None:
        for frame in list(self._frames):
            self.remove(frame, object_id)

    def remove(self, frame: int, object_id: int) -> None:
        """Remove the mask of an object in a frame, if there is one."""
        kept = self._frames.get(frame, {})
        if object_id in kept:
            self._set(frame, {known: record for known, record in kept.items() if known != object_id}, None)

    def of(self, frame: int, object_id: int) -> MaskRecord:
        return self._frames[frame][object_id]

    def at(self, frame: int) -> tuple[MaskRecord, ...]:
        """Return the masks of a frame, sorted by object; empty for a frame without masks."""
        kept = self._frames.get(frame, {})
        return tuple(kept[object_id] for object_id in sorted(kept))

    def forget_before(self, frame: int) -> None:
        for earlier in [index for index in self._frames if index < frame]:
            self._set(earlier, {}, None)

    def clear(self) -> None:
        for frame in list(self._frames):
            self._set(frame, {}, None)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the frames with masks as ranges (first, last)."""
        found: list[tuple[int, int]] = []
        for frame in sorted(self._frames):
            if found and found[-1][1] == frame - 1:
                found[-1] = (found[-1][0], frame)
            else:
                found.append((frame, frame))
        return found

    def all(self) -> dict[int, tuple[MaskRecord, ...]]:
        """Return the masks of all frames, sorted by frame and object."""
        return {frame: self.at(frame) for frame in sorted(self._frames)}

    def label_maps(self) -> Iterator[tuple[int, bytes]]:
        """Yield each frame with its label map as PNG. The masks are a snapshot at the time of the call.

        Where masks overlap, a pixel belongs to the object of which the model is most certain; in a frame whose masks
        were added one by one, to the object with the highest id.
        """
        labels = dict(self._labels)
        return ((frame, labels.get(frame) or label_map_png(_drawn(records))) for frame, records in self.all().items())

    def _set(self, frame: int, records: dict[int, MaskRecord], labels: bytes | None) -> None:
        more = _size(records, labels) - _size(self._frames.pop(frame, {}), self._labels.pop(frame, None))
        if records:
            self._frames[frame] = records
        if labels is not None:
            self._labels[frame] = labels
        self._budget.book(more)


def overlapping(segments: Mapping[int, VideoSegment]) -> bytes | None:
    """Return the label map of a frame as PNG if some of its masks overlap, else None. This is slow: use a thread.

    A label map holds ids up to 255; with higher ids, None is returned.
    """
    if len(segments) < 2 or max(segments) > MAX_OBJECT_ID:
        return None
    union = np.logical_or.reduce([segment.mask for segment in segments.values()])
    if sum(segment.area for segment in segments.values()) == int(np.count_nonzero(union)):
        return None
    return label_map_png(label_map(segments))


def _drawn(records: Iterable[MaskRecord]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the label map of masks, with the highest id on top."""
    first, *others = records
    labels = first.mask.astype(np.uint8) * np.uint8(first.object_id)
    for record in others:
        labels[record.mask] = record.object_id
    return labels


def _size(records: Mapping[int, MaskRecord], labels: bytes | None) -> int:
    return len(labels or b"") + sum(PER_MASK + len(record.rle["counts"]) for record in records.values())
