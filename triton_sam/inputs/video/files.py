"""Frames of a video file, decoded by PyAV, with random access and exact indexes."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..._common.extras import missing
from ...errors import VideoError
from ...families.base import Size
from .base import FrameSource, encode_pixels

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

CACHE_BYTES = 128 << 20
"""Size of the cache of decoded frames, in bytes. Reading backwards decodes again once per full cache."""

CHECKED_FRAMES = 32
"""Number of frames whose order is compared with their time stamps, if the time stamps may be wrong."""
SAME_RATE = 0.01
"""Largest relative difference between a file's stated rate and the rate of its time stamps."""
_ATTACHED_PICTURE = 0x400  # FFmpeg's AV_DISPOSITION_ATTACHED_PIC


@dataclass(frozen=True)
class Timetable:
    """The time stamps of a video's frames.

    Args:
        times: the time stamps of all frames, ascending; the index of a frame is its position in this list.
        starts: the time stamps of the frames at which decoding can start, ascending.
    """

    times: list[int]
    starts: list[int]

    def index(self, time: int | None) -> int | None:
        """Return the index of the frame with a time stamp; None if there is none."""
        if time is None:
            return None
        place = bisect.bisect_left(self.times, time)
        return place if place < len(self.times) and self.times[place] == time else None


class TooManyFramesError(VideoError):
    """A file has more frames than the caller accepts."""


class VideoFrames(FrameSource):
    """The frames of a video file, in the order and orientation of a player.

    From several video streams, the one with the most frames is used; cover images are ignored. If the file does not
    start with a key frame, the frames that cannot be decoded are left out, as in a player. So is a last frame of which
    the file (MP4, MOV, AVI and others, whose frames have a stated length) holds only a part.

    The constructor reads the file once without decoding it, to find the time stamps of all frames. If time stamps are
    missing (raw H.264, some AVI files) or wrong, it decodes the file once to count the frames, and going back decodes
    from the start.

    Args:
        quality: None sends each frame losslessly, as PNG (about 1.3 bytes per pixel of a natural scene); 1..100 sends
            JPEG of this quality (95: about 0.4 bytes per pixel), whose pixels differ slightly.
        most: a file with more frames is a TooManyFramesError, and is read no further. None: any number.
    """

    def __init__(self, path: str | os.PathLike[str], quality: int | None = None, *, most: int | None = None) -> None:
        super().__init__(os.fspath(path))
        self._quality = quality
        self._most = most
        self._container: InputContainer | None = None
        self._place: int | None = None  # index among the video streams
        self._partial: int | None = None  # time stamp of a last frame of which the file holds only a part
        self._decoded: OrderedDict[int, Image.Image] = OrderedDict()
        self._next: Iterator[tuple[int, VideoFrame]] = iter(())
        self._ahead = True  # threads decode later frames
        self._position = 0  # index of the decoder's next frame
        self._timetable = self._read_timetable()
        self.num_frames = len(self._timetable.times) if self._timetable else self._count_by_decoding()
        try:
            self._open_first()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Reading a frame opens it again."""
        with self._lock:
            self._next = iter(())
            if self._container is not None:
                self._container.close()
            self._container = None

    def _read(self, index: int) -> tuple[bytes, Size] | None:
        if self.num_frames is not None and index >= self.num_frames:
            return None
        image = self._decoded.get(index)
        if image is None:
            image = self._decode(index)
        return encode_pixels(image, self._quality), image.size

    def _decode(self, index: int) -> Image.Image:
        """Decode up to a frame, from the decoder's position or from the last start before the frame."""
        try:
            if self._container is None or not self._position <= index or self._is_shorter_to_seek(index):
                self._seek(index)
            for found, frame in self._next:
                self._position = found + 1
                if found <= index:
                    self._keep(found, frame, index)
                if found >= index:
                    break
        except import_av().error.FFmpegError as error:
            self.close()
            if self._ahead:  # the error may belong to a later frame
                self._ahead = False
                return self._decode(index)
            raise self._undecodable(index, _reason(error)) from error
        image = self._decoded.get(index)
        if image is None:
            self.close()
            raise self._undecodable(index, "the file is damaged or incomplete")
        return image

    def _undecodable(self, index: int, reason: str) -> VideoError:
        return VideoError(
            f"frame {index} of {self.name} cannot be decoded: {reason}."
            f" `ffmpeg -i {self.name} repaired.mp4` writes a video of the frames that can be decoded"
        )

    def _is_shorter_to_seek(self, index: int) -> bool:
        """Whether decoding can start between the decoder's position and a frame."""
        if self._timetable is None:
            return False
        start = self._timetable.index(self._start_before(self._timetable, index))
        return start is not None and start > self._position

    def _seek(self, index: int) -> None:
        """Move the decoder to the last start before a frame, or to the beginning of the file."""
        self.close()
        self._container, stream = self._open()
        if self._timetable is not None:
            target = self._start_before(self._timetable, index)
            earlier = [time for time in self._timetable.starts if time <= target][-3:]
            # Formats seek by decoding time, so the first attempt may end after the frame.
            for start in reversed(earlier):
                if start == self._timetable.times[0]:
                    break
                self._container.seek(start, stream=stream)
                frames = self._numbered(self._container, stream)
                first = next(frames, None)
                if first is not None and first[0] <= index:
                    self._position = first[0]
                    self._next = _chain(first, frames)
                    return
            self._container.close()
            self._container, stream = self._open()
        self._position = 0
        self._next = self._numbered(self._container, stream)

    @staticmethod
    def _start_before(timetable: Timetable, index: int) -> int:
        time = timetable.times[index]
        place = bisect.bisect_right(timetable.starts, time)
        return timetable.starts[place - 1] if place else timetable.times[0]

    def _numbered(self, container: InputContainer, stream: VideoStream) -> Iterator[tuple[int, VideoFrame]]:
        """Decode and yield frames with their indexes."""
        for count, frame in enumerate(self._frames(container, stream)):
            index = count if self._timetable is None else self._timetable.index(frame.pts)
            if index is not None:
                self.pixel_ratio = pixel_ratio(stream, frame)
                yield index, frame

    def _frames(self, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
        for packet in container.demux(stream):
            if packet.pts is None or packet.pts != self._partial:
                yield from packet.decode()

    def _keep(self, index: int, frame: VideoFrame, wanted: int) -> None:
        """Cache a decoded frame, unless the frames from it to the wanted one exceed the cache."""
        room = max(1, CACHE_BYTES // (3 * frame.width * frame.height))
        if wanted - index >= room:
            return
        self._decoded[index] = picture(frame)
        while len(self._decoded) > room:
            self._decoded.popitem(last=False)

    def _open(self) -> tuple[InputContainer, VideoStream]:
        container = open_container(self.name, self.name)
        with contextlib.ExitStack() as opened:
            opened.callback(container.close)
            if self._place is None:
                self._place = container.streams.video.index(video_stream(container, self.name))
            stream = container.streams.video[self._place]
            stream.thread_type = "AUTO" if self._ahead else "NONE"
            opened.pop_all()
        return container, stream

    def _read_timetable(self) -> Timetable | None:
        """Read the time stamps of all frames; None if some are missing, duplicate or wrong."""
        container, stream = self._open()
        times, starts, is_partial = [], [], False
        with container:
            self.rate = stream.average_rate or stream.guessed_rate
            try:
                for packet in container.demux(stream):
                    if packet.size == 0 or packet.is_discard:
                        continue
                    if packet.pts is None:
                        return None
                    times.append(packet.pts)
                    self._check_count(len(times) // 2)  # some packets show no frame
                    if packet.is_keyframe:
                        starts.append(packet.pts)
                    is_partial = packet.is_corrupt
            except import_av().error.FFmpegError as error:
                if not times:
                    raise VideoError(f"{self.name} is damaged: {_reason(error)}") from error
            may_be_wrong = stream.codec_context.has_b_frames and _are_ascending(times)
            time_base = stream.time_base
        self._partial = times.pop() if is_partial and len(times) > 1 else None
        if may_be_wrong and not _are_ascending(self._first_times(CHECKED_FRAMES)):
            return None
        if not starts or min(times) < min(starts):
            decoded = self._first_times(1)
            times = [time for time in times if not decoded or time >= decoded[0]]
        self._check_count(len(times))
        times.sort()
        if len(set(times)) < len(times):
            return None
        self.rate = _true_rate(self.rate, times, time_base)
        return Timetable(times, sorted(starts))

    def _first_times(self, count: int) -> list[int]:
        """Return the time stamps of the first decodable frames, in the order of the decoder.

        Some programs write time stamps in decoding order, although the frames are shown in another order.
        """
        container, stream = self._open()
        with container:
            try:
                first = itertools.islice(container.decode(stream), count)
                return [frame.pts for frame in first if frame.pts is not None]
            except import_av().error.FFmpegError:
                return []  # reading the damaged frame raises the error

    def _check_count(self, count: int) -> None:
        if self._most is not None and count > self._most:
            raise TooManyFramesError(f"{self.name} has more than {self._most} frames")

    def _count_by_decoding(self) -> int:
        container, stream = self._open()
        count = 0
        with container:
            try:
                for count, _ in enumerate(self._frames(container, stream), 1):
                    self._check_count(count)
                return count
            except import_av().error.FFmpegError as error:
                raise VideoError(f"{self.name} is damaged: {_reason(error)}") from error


def picture(frame: VideoFrame) -> Image.Image:
    """Return a decoded frame as an RGB image, turned and mirrored as in players."""
    pixels = frame.to_ndarray(format="rgb24")
    (a, b), (c, d) = _display_matrix(frame)
    if abs(b) > abs(a):  # the rows of the file are columns on the screen
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return Image.fromarray(np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]))


def pixel_ratio(stream: VideoStream, frame: VideoFrame) -> Fraction:
    """Return the width of a pixel of `picture(frame)` on a screen, divided by its height."""
    ratio = Fraction(stream.sample_aspect_ratio or 1)
    (a, b), _ = _display_matrix(frame)
    return 1 / ratio if abs(b) > abs(a) else ratio


def _display_matrix(frame: VideoFrame) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ((a, b), (c, d)) that shows the pixel (x, y) at (ax + cy, bx + dy), up to a shift."""
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return (1, 0), (0, 1)
    a, b, _, c, d, *_ = np.frombuffer(bytes(matrix), np.int32).tolist()
    return (a, b), (c, d)


def open_container(source: Any, name: str, **options: Any) -> InputContainer:
    """Open a file, URL or device by PyAV."""
    av = import_av()
    try:
        container: InputContainer = av.open(source, "r", **options)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise VideoError(f"{name} cannot be opened as a video: {_reason(error)}") from error
    return container


def video_stream(container: InputContainer, name: str) -> VideoStream:
    """Return the video stream with the most frames that is not a cover image."""
    streams = [each for each in container.streams.video if not _is_cover(each)]
    if not streams:
        only = ", only a cover image" if container.streams.video else ""
        raise VideoError(f"{name} holds no video stream{only}: give a video file")
    chosen = streams[0] if len(streams) == 1 else max(streams, key=_frame_counts(container, streams).__getitem__)
    chosen.thread_type = "AUTO"
    return chosen


def _is_cover(stream: VideoStream) -> bool:
    return bool(int(getattr(stream, "disposition", 0)) & _ATTACHED_PICTURE)  # PyAV before 14 lacks it


def _frame_counts(container: InputContainer, streams: Sequence[VideoStream]) -> dict[VideoStream, float]:
    """Return the number of frames of each stream, from the file header, or by reading the file once.

    A URL or a pipe cannot be read twice; there, FFmpeg's preferred stream comes first.
    """
    if all(each.frames for each in streams):
        return {each: each.frames for each in streams}
    if container.file is not None or not Path(container.name).is_file():
        best = container.streams.best("video")
        return {each: float(each == best) for each in streams}
    counts: dict[Any, float] = dict.fromkeys(streams, 0)
    with contextlib.suppress(import_av().error.FFmpegError):  # a damaged file is counted up to the damage
        for packet in container.demux(list(streams)):
            counts[packet.stream] += packet.size > 0
    container.seek(0)
    return counts


def _true_rate(stated: Fraction | None, times: Sequence[int], time_base: Fraction | None) -> Fraction | None:
    """Return the mean rate of the time stamps if the stated rate differs, as in many videos of variable rate."""
    if time_base is None or len(times) < 2:
        return stated
    mean = Fraction(len(times) - 1) / ((times[-1] - times[0]) * time_base)
    return mean if not stated or abs(stated / mean - 1) > SAME_RATE else stated


def _are_ascending(times: Sequence[int]) -> bool:
    return all(earlier < later for earlier, later in itertools.pairwise(times))


def _chain(first: tuple[int, VideoFrame], frames: Iterator[tuple[int, VideoFrame]]) -> Iterator[tuple[int, VideoFrame]]:
    yield first
    yield from frames


def import_av() -> Any:
    """Return the package PyAV, or raise an error that names its extra."""
    try:
        import av
        import av.error
    except ImportError as error:
        raise missing("video files and cameras need", "video", error) from error
    return av


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
