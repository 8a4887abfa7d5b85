"""The mask of one object in one frame of a video."""

from __future__ import annotations

from dataclasses import dataclass

from .segment import Segment


@dataclass(frozen=True, eq=False)
class VideoSegment(Segment):
    """One object in one frame of a video.

    ``object_index`` is the place of the object among the objects of the video, in the order in which they were added.

    Args:
        object_id: the number that the caller gave to the object.
        frame: index of the frame, from 0.
        object_score: a logit: above 0 the model sees the object in this frame. The mask of an object that it does not
            see is empty.
    """

    object_id: int = 0
    frame: int = 0
    object_score: float = 0.0

    @property
    def is_visible(self) -> bool:
        """Whether the model sees the object in this frame."""
        return self.object_score > 0
