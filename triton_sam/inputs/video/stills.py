"""Frames from images: a folder of files, or a list of images in any form."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import VideoError
from ...families.base import Size
from ..formats import SUFFIXES
from ..images import ImageSource
from .base import FrameSource, encode


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
        names = [entry.name for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise VideoError(f"{path} cannot be read: {error.strerror}") from error
    files = sorted((name for name in names if not name.startswith(".")), key=natural_order)
    if not files:
        raise VideoError(f"{path} holds no frames: give a folder with image files ({', '.join(SUFFIXES)})")
    return ImageFrames([path / name for name in files], name=str(path))


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key that compares the numbers in names as numbers."""
    parts = re.split(r"(\d+)", name.lower())
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], name
