"""A video whose frames a caller adds one by one, while it is tracked already."""

from __future__ import annotations

from collections import deque

from ...errors import VideoError
from ...families.base import Size
from .base import FrameSource
from .stream import DEFAULT_WINDOW


class GrowingFrames(FrameSource):
    """Frames that come one by one. The last ``window`` of them are kept.

    Args:
        content: the first frame as the content of an image file.
        size: its width and height in pixels.
        window: number of frames to keep.
        name: the name of the video in messages.

    Attributes:
        count: number of frames so far.
    """

    num_frames = None

    def __init__(self, content: bytes, size: Size, window: int = DEFAULT_WINDOW, name: str = "the video") -> None:
        super().__init__(name)
        self.size = size
        self.count = 1
        self._kept: deque[bytes] = deque([content], maxlen=window)

    @property
    def nbytes(self) -> int:
        """Bytes of the frames that are kept."""
        with self._lock:
            return sum(map(len, self._kept))

    def append(self, content: bytes, size: Size) -> int:
        """Add a frame and return its index.

        Raises:
            VideoError: its size differs from that of the first frame.
        """
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
