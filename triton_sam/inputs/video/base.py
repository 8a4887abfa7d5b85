"""An encoded frame, and the base class of frame sources."""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from PIL import Image

from ...errors import ConfigurationError, ImageError, VideoError
from ...families.base import Size
from ..formats import FORMATS
from ..header import size_of
from ..images import ImageSource, image_bytes, open_image

BEST_QUALITY = 100


@dataclass(frozen=True)
class Frame:
    """One frame of a video.

    Args:
        content: the frame as the content of an image file.
    """

    index: int
    content: bytes
    size: Size


class FrameSource(ABC):
    """The frames of one video, all of one size. Several threads may use a source.

    Attributes:
        num_frames: number of frames; None for a stream, whose length is unknown.
        names: file names of the images of a folder; None for other sources.
        size: width and height of all frames in pixels.
        rate: frames per second; None if the source has no rate, for example a folder of images.
        pixel_ratio: width of a pixel divided by its height on a screen. It differs from 1 only in anamorphic videos,
            whose frames and coordinates are also in stored pixels.
    """

    num_frames: int | None
    names: Sequence[str] | None = None
    size: Size
    rate: Fraction | None = None
    pixel_ratio: Fraction = Fraction(1)

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._first: tuple[bytes, Size] | None = None
        """The first frame, which the constructor has read, until a frame is read."""

    def frame(self, index: int) -> Frame | None:
        """Return a frame; None if the video ends before it."""
        if index < 0:
            raise VideoError(f"there is no frame {index}: the first frame has the index 0")
        with self._lock:
            first, self._first = self._first, None
            found = first if first is not None and index == 0 else self._checked(index)
        if found is None:
            return None
        content, size = found
        if size != self.size:
            raise VideoError(
                f"frame {index} of {self.name} has {size[0]} x {size[1]} pixels, but the first frame has "
                f"{self.size[0]} x {self.size[1]}: all frames of a video must have one size"
            )
        return Frame(index, content, size)

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Close files and devices. Later calls to frame() may fail."""

    def _open_first(self) -> None:
        """Set ``size`` from the first frame. A subclass calls this at the end of its constructor."""
        self._first = self._checked(0)
        if self._first is None:
            raise VideoError(f"{self.name} is empty: a video needs at least one frame")
        self.size = self._first[1]

    def _checked(self, index: int) -> tuple[bytes, Size] | None:
        try:
            return self._read(index)
        except ImageError as error:
            raise VideoError(f"frame {index} of {self.name}: {error}") from error

    @abstractmethod
    def _read(self, index: int) -> tuple[bytes, Size] | None:
        """Return the encoded frame and its size; None if the video ends before it. The caller holds the lock."""


def encode(source: ImageSource, quality: int | None) -> tuple[bytes, Size]:
    """Return an image as the content of an image file, with its width and height.

    Files and encoded bytes are returned unchanged. Pixels become PNG, which is lossless, or JPEG.
    """
    if isinstance(source, (np.ndarray, Image.Image)):
        image = open_image(source)
        return encode_pixels(image, quality), image.size
    content = image_bytes(source)
    return content, _size_of(content)


def encode_pixels(image: Image.Image, quality: int | None) -> bytes:
    """Return the pixels of an RGB image as PNG (``quality`` None) or as JPEG."""
    buffer = io.BytesIO()
    if quality is None:
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def check_quality(quality: int | None) -> None:
    if quality is not None and not 1 <= quality <= BEST_QUALITY:
        raise ConfigurationError(f"quality must be 1 to {BEST_QUALITY}, or None for lossless frames, not {quality}")


def _size_of(content: bytes) -> Size:
    """Return the upright width and height of an image file, reading only its header."""
    try:
        return size_of(content, FORMATS)
    except Exception as error:  # for damaged data, Pillow's parsers raise almost any exception
        raise ImageError("the content is not an image that Pillow can read") from error
