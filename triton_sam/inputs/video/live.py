"""Frames of a camera, a URL or a pipe, read by PyAV as they arrive."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from PIL import Image

from ...errors import VideoError
from .files import open_container, picture, pixel_ratio, video_stream
from .sequences import DEFAULT_WINDOW, StreamFrames

if TYPE_CHECKING:
    from av.container import InputContainer

_DEVICES = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}
"""FFmpeg's input format for cameras, and its camera names, by the start of ``sys.platform``."""


def camera_frames(number: int, quality: int | None = None, window: int = DEFAULT_WINDOW) -> StreamFrames:
    """Return the frames of a camera, counted from 0."""
    if number < 0:
        raise VideoError(f"there is no camera {number}: the first camera has the number 0")
    if sys.platform not in _DEVICES:
        raise VideoError("a camera number needs Linux or macOS: give a URL, or a generator of frames")
    form, device = _DEVICES[sys.platform]
    return live_frames(device.format(number), f"camera {number}", quality, window, format=form)


def live_frames(
    source: Any, name: str, quality: int | None = None, window: int = DEFAULT_WINDOW, **options: Any
) -> StreamFrames:
    """Return the frames of a URL, a device, or a file object opened for reading."""
    container = open_container(source, name, **options)
    with contextlib.ExitStack() as opened:
        opened.callback(container.close)
        frames = LiveFrames(container, name, quality, window)
        opened.pop_all()
    return frames


class LiveFrames(StreamFrames):
    """The frames of an open PyAV container, which is closed with them."""

    def __init__(self, container: InputContainer, name: str, quality: int | None, window: int) -> None:
        super().__init__(self._pictures(container, name), quality, window, name, container.close)

    def _pictures(self, container: InputContainer, name: str) -> Iterator[Image.Image]:
        import av.error

        stream = video_stream(container, name)
        try:
            for frame in container.decode(stream):
                self.pixel_ratio = pixel_ratio(stream, frame)
                yield picture(frame)
        except av.error.FFmpegError as error:
            raise VideoError(f"{name} broke off: {error.strerror or error}") from error
