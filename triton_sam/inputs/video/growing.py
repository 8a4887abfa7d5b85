"""A video whose frames arrive one by one from a tool, and the path of its objects through them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ...errors import VideoError
from ...families.base import Size
from .base import FrameSource
from .sequences import DEFAULT_WINDOW

OTHER_FRAME = (
    "objects that were drawn together go through the same frames, and others of them were tracked through another frame"
    " here: draw the object again, alone, and track it from there"
)
"""The error message for an object that leaves the common path of its session."""


class GrowingFrames(FrameSource):
    """Frames that arrive one by one. The last ones are kept.

    Args:
        content: the first frame as the content of an image file.
    """

    num_frames = None

    def __init__(self, content: bytes, size: Size) -> None:
        super().__init__("the video")
        self.size = size
        self.count = 1
        self._kept: deque[bytes] = deque([content], maxlen=DEFAULT_WINDOW)

    @property
    def nbytes(self) -> int:
        """Bytes of the kept frames."""
        with self._lock:
            return sum(map(len, self._kept))

    def append(self, content: bytes, size: Size) -> int:
        """Add a frame and return its index."""
        if size != self.size:
            raise VideoError(
                f"the frame has {size[0]} x {size[1]} pixels, but the first one has {self.size[0]} x {self.size[1]}: "
                "all frames of a video must have one size"
            )
        with self._lock:
            self._kept.append(content)
            self.count += 1
            return self.count - 1

    def _read(self, index: int) -> tuple[bytes, Size] | None:
        if index >= self.count:
            return None
        first = self.count - len(self._kept)
        if index < first:
            raise VideoError(f"frame {index} of {self.name} is gone: the last {self._kept.maxlen} frames are kept")
        return self._kept[index - first], self.size


class SharedPath:
    """The frames of one session's objects, and the current frame of each object.

    The first object of a request adds the frames. All other objects are tracked with it, so their masks exist when
    they reach the same frames later.

    Args:
        name: a name of the first frame, for example a hash of its content: equal frames have equal names.
    """

    def __init__(self, name: str) -> None:
        self._names = [name]
        self._places: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def begin(self, number: int) -> None:
        """Add an object at the first frame."""
        self._places[number] = 0

    def append(self, name: str) -> None:
        """Add a frame at the end."""
        self._names.append(name)

    def find(self, number: int, name: str, tracked: int) -> int:
        """Return the index of an object's next frame: its current one, the following one, or a new one.

        Args:
            tracked: number of frames that have been tracked. Frames of failed calls may follow them.
        """
        place = self._places[number]
        if self._names[place] == name:
            return place
        if place + 1 >= tracked:
            waiting = [index for index in range(place + 1, len(self._names)) if self._names[index] == name]
            return waiting[0] if waiting else len(self._names)
        if self._names[place + 1] != name:
            raise VideoError(OTHER_FRAME)
        return place + 1

    def move(self, places: Mapping[int, int]) -> int:
        """Move objects to frames, and return the first frame that any object may still need."""
        self._places.update(places)
        return min(self._places.values())
