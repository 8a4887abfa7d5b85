"""Videos whose frames arrive one by one: from a camera, a URL or a pipe, read by PyAV, or from a tool."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from ...errors import VideoError
from ...families.base import Size
from .base import FrameSource
from .files import open_container, picture, pixel_ratio, video_stream
from .sequences import DEFAULT_WINDOW, StreamFrames

if TYPE_CHECKING:
    from av.container import InputContainer

_DEVICES = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}
"""FFmpeg's input format for cameras, and its camera names, by the start of ``sys.platform``."""


def camera_frames(number: int, quality: int | None, window: int) -> StreamFrames:
    if number < 0:
        raise VideoError(f"there is no camera {number}: the first camera has the number 0")
    if sys.platform not in _DEVICES:
        raise VideoError("a camera number needs Linux or macOS: give a URL, or a generator of frames")
    form, device = _DEVICES[sys.platform]
    return live_frames(device.format(number), f"camera {number}", quality, window, format=form)


def live_frames(source: Any, name: str, quality: int | None, window: int, **options: Any) -> StreamFrames:
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
        with self._lock:
            return sum(map(len, self._kept))

    def append(self, content: bytes, size: Size) -> int:
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
