"""Frames from a stream without random access: a generator, a camera."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ...errors import ConfigurationError, ImageError, VideoError
from ...families.base import Size
from ..images import ImageSource
from .base import FrameSource, encode

DEFAULT_WINDOW = 32
"""The number of kept frames of a stream."""


class StreamFrames(FrameSource):
    """The images of a generator as frames. It may be endless.

    The last ``window`` frames are kept, encoded. Earlier frames are gone.

    Args:
        images: the images. A frame is taken from here when it is first read.
    """

    num_frames = None

    def __init__(
        self,
        images: Iterable[ImageSource],
        quality: int | None = None,
        window: int = DEFAULT_WINDOW,
        name: str = "the stream",
        close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name)
        if window < 1:
            raise ConfigurationError(f"window must be at least 1 frame, not {window}")
        self._images = iter(images)
        self._quality = quality
        self._kept: deque[tuple[bytes, Size]] = deque(maxlen=window)
        self._taken = 0
        self._has_ended = False
        self._close = close
        self._open_first()

    def close(self) -> None:
        """Release the device behind the stream. Kept frames stay available."""
        with self._lock:
            self._has_ended = True
            if self._close is not None:
                self._close()

    def _read(self, index: int) -> tuple[bytes, Size] | None:
        while self._taken <= index and not self._has_ended:
            self._take()
        if index >= self._taken:
            return None
        first = self._taken - len(self._kept)
        if index < first:
            raise VideoError(
                f"frame {index} of {self.name} is gone: a stream keeps its last {self._kept.maxlen} frames, now "
                f"{first} to {self._taken - 1}; open it with a larger window to go back further"
            )
        return self._kept[index - first]

    def _take(self) -> None:
        try:
            image = next(self._images)
        except StopIteration:
            self._has_ended = True
            return
        try:
            self._kept.append(encode(image, self._quality))
        except ImageError:
            self._has_ended = True  # so that later frames do not get the index of this one
            raise
        self._taken += 1
