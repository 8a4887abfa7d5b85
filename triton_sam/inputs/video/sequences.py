"""Frames from images: a folder of files, a list in any form, or a stream such as a generator or a camera."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ...errors import ConfigurationError, ImageError, VideoError
from ...families.base import Size
from ..formats import SUFFIXES
from ..images import ImageSource
from ..names import is_hidden
from .base import Frame, FrameSource, encode

DEFAULT_WINDOW = 32
"""The number of kept frames of a stream."""


class ImageFrames(FrameSource):
    """The images of a list as frames.

    Args:
        images: the images in the order of the video. Each is read when it is needed.
        quality: None sends arrays and Pillow images losslessly (PNG); 1..100 as JPEG of this quality. Files are sent
            unchanged.
    """

    def __init__(self, images: Sequence[ImageSource], quality: int | None = None, name: str = "the list") -> None:
        super().__init__(name)
        self._images = images
        self._quality = quality
        self.num_frames = len(images)
        self._open_first()

    def _read(self, index: int) -> tuple[bytes, Size] | None:
        return encode(self._images[index], self._quality) if index < len(self._images) else None


def folder_frames(folder: str | os.PathLike[str]) -> ImageFrames:
    """Return the image files of a folder as frames, in the natural order of their names: 2.jpg comes before 10.jpg.

    The files are sent unchanged. Other files and hidden files are ignored.
    """
    path = Path(folder)
    try:
        images = [entry.name for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise VideoError(f"{path} cannot be read: {error.strerror}") from error
    names = sorted((name for name in images if not is_hidden(name)), key=natural_order)
    if not names:
        raise VideoError(f"{path} holds no frames: give a folder with image files ({', '.join(SUFFIXES)})")
    frames = ImageFrames([path / name for name in names], name=str(path))
    frames.names = names
    return frames


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key that compares the numbers in names as numbers."""
    parts = re.split(r"(\d+)", name.lower())
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], name


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

    def frame(self, index: int) -> Frame | None:
        try:
            return super().frame(index)
        finally:
            if self._has_ended:
                self.close()

    def close(self) -> None:
        """Release the device behind the stream. Kept frames stay available.

        If a thread waits for the next frame, it releases the device itself when the frame has come.
        """
        self._has_ended = True
        if self._lock.acquire(blocking=False):
            try:
                if self._close is not None:
                    self._close()
                    self._close = None
            finally:
                self._lock.release()

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
