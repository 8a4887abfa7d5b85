"""Choose the frame source for a caller's video."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from ...errors import VideoError
from ..images import ImageSource
from .base import FrameSource, check_quality
from .sequences import DEFAULT_WINDOW, ImageFrames, StreamFrames, folder_frames

VideoSource = Union[
    str, "os.PathLike[str]", int, Sequence[ImageSource], "npt.NDArray[np.generic]", Iterable[ImageSource], FrameSource
]
"""A video file, a folder of image files, a URL, the number of a camera, a list of images (paths, encoded bytes, arrays,
Pillow images), an array (T,H,W,3), a generator of images, which may be endless, or an open binary file."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def open_frames(source: VideoSource, quality: int | None = None, window: int = DEFAULT_WINDOW) -> FrameSource:
    """Open the frames of a video.

    Args:
        source: see VideoSource. A list, a folder and a video file have random access. A generator, a camera, a URL and
            an open file are streams, which keep only their last frames.
        quality: encoding of decoded frames and arrays. None is lossless (PNG); 1..100 is the quality of JPEG, which
            takes a third of the bytes or less. Image files are sent unchanged.
    """
    check_quality(quality)
    if isinstance(source, FrameSource):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _from_path(os.fspath(source), quality, window)
    if isinstance(source, (int, np.integer)) and not isinstance(source, bool):
        from .streams import camera_frames

        return camera_frames(int(source), quality, window)
    return _from_object(source, quality, window)


def _from_object(source: Any, quality: int | None, window: int) -> FrameSource:
    if isinstance(source, np.ndarray):
        if source.ndim != 4:
            raise VideoError(f"an array of frames must be (T,H,W,3), not {source.shape}")
        return ImageFrames(list(source), quality, "the array")
    if hasattr(source, "read"):
        from .streams import live_frames

        return live_frames(source, str(getattr(source, "name", "the file")), quality, window)
    if isinstance(source, Sequence) and not isinstance(source, (bytes, bytearray, memoryview)):
        return ImageFrames(source, quality)
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, memoryview)):
        return StreamFrames(source, quality, window)
    raise VideoError(
        f"cannot read frames from {type(source).__name__}: give a video file, a folder, a list of images, a generator, "
        "a URL or the number of a camera"
    )


def _from_path(name: str, quality: int | None, window: int) -> FrameSource:
    if _URL.match(name):
        from .streams import live_frames

        return live_frames(name, name, quality, window)
    path = Path(name)
    try:
        if path.is_dir():
            return folder_frames(path)
        if not path.exists():
            raise VideoError(f"there is no video at {path}")
        if path.is_file() and path.stat().st_size == 0:
            raise VideoError(f"{path} is empty (0 bytes)")
        is_regular = path.is_file()
    except OSError as error:  # the name is too long, or the folder may not be read
        raise VideoError(f"{path} cannot be read: {error.strerror}") from error
    if is_regular:
        from .files import VideoFrames

        return VideoFrames(path, quality)
    from .streams import live_frames

    return live_frames(name, name, quality, window)  # a pipe or a device
