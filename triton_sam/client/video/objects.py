"""The objects of a video on the side of the client: which frames have their prompts, and where they were tracked."""

from __future__ import annotations

from ...errors import PromptError


class FrameRanges:
    """A set of frame indexes that stays small when they follow each other."""

    def __init__(self) -> None:
        self._ranges: list[list[int]] = []  # first and last index of each run, in any order

    def __contains__(self, index: int) -> bool:
        return any(first <= index <= last for first, last in self._ranges)

    def add(self, index: int) -> None:
        """Add an index."""
        if index in self:
            return
        before = next((run for run in self._ranges if run[1] == index - 1), None)
        after = next((run for run in self._ranges if run[0] == index + 1), None)
        if before is not None and after is not None:
            before[1] = after[1]
            self._ranges.remove(after)
        elif before is not None:
            before[1] = index
        elif after is not None:
            after[0] = index
        else:
            self._ranges.append([index, index])

    def discard(self, index: int) -> None:
        """Remove an index if it is there."""
        for run in self._ranges:
            first, last = run
            if first <= index <= last:
                self._ranges.remove(run)
                self._ranges += [part for part in ([first, index - 1], [index + 1, last]) if part[0] <= part[1]]
                return


class Objects:
    """The objects of a video, in the order in which they were added."""

    def __init__(self) -> None:
        self._prompted: dict[int, set[int]] = {}
        self._tracked: dict[int, FrameRanges] = {}

    @property
    def ids(self) -> list[int]:
        """The ids of the objects."""
        return list(self._prompted)

    def prompted(self, object_id: int, index: int) -> None:
        """Note a prompt. Only a prompt at a frame where the object was not tracked yet is one to start from."""
        frames = self._prompted.setdefault(object_id, set())
        if index not in self._tracked.setdefault(object_id, FrameRanges()):
            frames.add(index)

    def tracked(self, index: int) -> None:
        """Note that all objects were tracked at a frame."""
        for frames in self._tracked.values():
            frames.add(index)

    def cleared(self, object_id: int, index: int) -> None:
        """Note that the prompts of an object at a frame are gone."""
        if index in self._prompted.get(object_id, ()):
            self._prompted[object_id].remove(index)
            self._tracked[object_id].discard(index)

    def removed(self, object_id: int) -> None:
        """Forget an object."""
        self._prompted.pop(object_id, None)
        self._tracked.pop(object_id, None)

    def reset(self) -> None:
        """Forget all objects."""
        self._prompted.clear()
        self._tracked.clear()

    def first_prompted(self) -> int:
        """Return the first frame with a prompt to start from.

        Raises:
            PromptError: there is none.
        """
        frames = [index for prompted in self._prompted.values() for index in prompted]
        if not frames:
            raise PromptError("there is nothing to track: give a prompt with add() first")
        return min(frames)
