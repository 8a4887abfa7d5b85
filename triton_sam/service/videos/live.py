"""Videos whose frames a tool sends one by one, tracked at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import VideoError
from ...inputs.video.growing import GrowingFrames, SharedPath
from ...tracks.records import MaskRecord
from ..budgets import Lease
from ..problems import Problem
from ..store import StoredImage
from .sessions import Session
from .tracking import Tracking

if TYPE_CHECKING:
    from ...client.video import AsyncVideo

UNKNOWN = "unknown or expired object: draw it in a frame, and track it from there"
"""The message that a tool shows when a session has ended."""


@dataclass(eq=False)
class LiveVideo(Session):
    """A session. Calls run one after the other, each to completion, even if the caller leaves.

    Args:
        path: the frames that the objects go through. A tool may send a session's objects one after the other, each
            through all frames: the first object brings the frames, and the others are tracked with it.
        tracking: the objects, and the masks of frames that an object may still request.
    """

    frames: GrowingFrames
    path: SharedPath
    tracking: Tracking
    place: Lease
    memory: Lease
    most_frames: int
    _tracked: int = 1

    @property
    def is_busy(self) -> bool:
        return self.tracking.is_busy

    async def track(self, image: StoredImage, numbers: Sequence[int]) -> list[MaskRecord]:
        """Return the masks of objects in a frame. An image that equals an object's last one is the same frame."""
        if not all(number in self.path for number in numbers):
            raise unknown()

        async def work(video: AsyncVideo) -> list[MaskRecord]:
            try:
                places = {number: self.path.find(number, image.image_id, self._tracked) for number in numbers}
            except VideoError as error:
                raise Problem(409, str(error), code="other_frame") from None
            if self.frames.count in places.values():
                self._add(image)
            if max(places.values()) >= self._tracked:
                await self._catch_up(video)
            found = [self.tracking.records.of(places[number], number) for number in numbers]
            self.tracking.records.forget_before(self.path.move(places))
            return found

        return await self.tracking.change(work)

    async def close(self) -> None:
        """End the session at Triton, and return everything to the budgets."""
        try:
            await self.tracking.close()
        finally:
            self.place.give()
            self.memory.give()

    def _add(self, image: StoredImage) -> None:
        if self.frames.count >= self.most_frames:
            raise Problem(413, f"a video may have {self.most_frames} frames")
        self.memory.check(len(image.content))
        self.frames.append(image.content, image.size)
        self.memory.hold(self.frames.nbytes)  # at most the previous amount and this frame
        self.path.append(image.image_id)

    async def _catch_up(self, video: AsyncVideo) -> None:
        """Track from the first untracked frame, because an earlier call may have failed."""
        frames = video.propagate(start=self._tracked, count=self.frames.count - self._tracked)
        async with contextlib.aclosing(frames):
            async for frame, masks in frames:
                await self.tracking.keep(frame, masks, is_tracked=True)
                self._tracked = frame + 1


def unknown() -> Problem:
    """Return the problem for a tool whose session or object is unknown or expired."""
    return Problem(404, UNKNOWN, code="unknown_state")
