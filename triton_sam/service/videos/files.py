"""Files of uploaded videos: supported kinds, their properties, open decoders, and frames as JPEG."""

from __future__ import annotations

import io
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

from PIL import Image

from ...errors import VideoError
from ...families.base import Size
from ...inputs.images import open_image
from ...inputs.video.base import Frame, FrameSource
from ...inputs.video.files import TooManyFramesError, VideoFrames, open_container, video_stream
from ...inputs.video.sequences import ImageFrames
from ..problems import Problem
from ..settings import ServiceSettings
from ..store import check_image, check_size
from .tracking import gone
from .uploads import Upload

DEFAULT_RATE = Fraction(25)
"""Frames per second of images, and of a file without a rate."""
SMALLEST_WIDTH, LARGEST_WIDTH = 16, 4096
QUALITY = 85
HEAD = 12
"""Bytes at the beginning of a file that identify its kind."""
_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")


@dataclass(frozen=True)
class VideoFile:
    """The files of a video.

    Args:
        image_names: the file names of the images; None if they are unknown, or two are equal.
    """

    paths: tuple[Path, ...]
    is_file: bool
    size: Size
    num_frames: int
    rate: Fraction
    pixel_ratio: Fraction = Fraction(1)
    image_names: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def open(self, quality: int | None = None) -> FrameSource:
        """Open the frames. This blocks. See `inputs.video`."""
        if self.is_file:
            return VideoFrames(self.paths[0], quality)
        return ImageFrames(self.paths, quality, "the upload")


def examine(upload: Upload, settings: ServiceSettings) -> VideoFile:
    """Check an uploaded video. This blocks, and decodes its first frame."""
    try:
        return _images(upload, settings) if upload.video is None else _file(upload.video, settings)
    except VideoError as error:  # the sender must not see the path on this machine
        folder = str((upload.video or upload.frames[0]).parent)
        raise VideoError(str(error).replace(f"{folder}/video", "the video").replace(folder, "the upload")) from error


def to_jpeg(frame: Frame, width: int | None) -> bytes:
    """Return a frame as JPEG with the given width, or its own width if that is smaller. This blocks."""
    image = open_image(frame.content)
    wide = min(width or image.width, image.width, LARGEST_WIDTH)
    if wide < image.width:
        image = image.resize((wide, max(1, round(image.height * wide / image.width))), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _file(path: Path, settings: ServiceSettings) -> VideoFile:
    if path.stat().st_size == 0:
        raise Problem(400, "the video is empty (0 bytes)")
    with path.open("rb") as stream:
        _check_kind(stream.read(HEAD))
    container = open_container(str(path), "the video")
    with container:
        stream_ = video_stream(container, "the video")
        size = stream_.width, stream_.height
        check_size("the frames have", size, settings.max_megapixels)  # before anything is decoded
        rate = stream_.average_rate or stream_.guessed_rate or DEFAULT_RATE
    try:
        frames = VideoFrames(path, most=settings.max_video_frames)
    except TooManyFramesError:
        raise Problem(413, f"a video may have at most {settings.max_video_frames} frames: send a part") from None
    frames.close()
    rate = Fraction(rate) or DEFAULT_RATE
    return VideoFile((path,), True, frames.size, frames.num_frames or 0, rate, frames.pixel_ratio)


def _check_kind(head: bytes) -> None:
    """Reject all files but videos: FFmpeg also reads playlists that refer to other files of this machine."""
    is_mp4 = head[4:8] in _MP4_BOXES
    is_matroska = head.startswith(b"\x1a\x45\xdf\xa3")
    is_avi = head.startswith(b"RIFF") and head[8:12] == b"AVI "
    if not (is_mp4 or is_matroska or is_avi):
        raise Problem(415, "unsupported or damaged video; supported: MP4, MOV, WebM, MKV, AVI")


def _images(upload: Upload, settings: ServiceSettings) -> VideoFile:
    sizes = [check_image(path.read_bytes(), settings.max_megapixels) for path in upload.frames]
    for index, size in enumerate(sizes):
        if size != sizes[0]:
            first = f"{sizes[0][0]} x {sizes[0][1]}"
            raise VideoError(f"frame {index} has {size[0]} x {size[1]} pixels, but the first has {first}")
    frames = ImageFrames(upload.frames, name="the upload")  # opens the first one
    names = tuple(upload.frame_names)
    are_known = all(names) and len(set(names)) == len(upload.frames)
    paths = tuple(upload.frames)
    image_names = names if are_known else None
    return VideoFile(paths, False, frames.size, len(paths), DEFAULT_RATE, image_names=image_names)


MAX_DECODERS = 8
"""Each keeps up to 128 MiB of decoded frames."""
PREVIEW_QUALITY = 90

Purpose = Literal["preview", "tracking"]
"""Previews need random frames and tracking needs consecutive ones, so each has its own decoder."""


class Decoders:
    """The open decoders, for use by several threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[VideoFile, Purpose], FrameSource] = OrderedDict()
        self._forgotten: weakref.WeakSet[VideoFile] = weakref.WeakSet()
        self._lock = threading.Lock()

    def frame(self, video: VideoFile, index: int, purpose: Purpose) -> Frame:
        """Return a frame. This blocks."""
        found = self._source(video, purpose).frame(index)
        if found is None:
            raise VideoError(f"the video ends before frame {index}: it is damaged")
        return found

    def forget(self, video: VideoFile) -> None:
        """Close the decoders of a video, and open no more; this may block while one of them decodes."""
        with self._lock:
            self._forgotten.add(video)
            closed = [self._open.pop(key) for key in list(self._open) if key[0] == video]
        for source in closed:
            source.close()

    def _source(self, video: VideoFile, purpose: Purpose) -> FrameSource:
        key = (video, purpose)
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
        made = video.open(PREVIEW_QUALITY if purpose == "preview" else None)
        dropped = []
        with self._lock:
            if video in self._forgotten:  # its file is deleted, and an open one would still fill the disk
                made.close()
                raise gone()
            source = self._open.setdefault(key, made)
            self._open.move_to_end(key)
            if source is not made:
                dropped.append(made)
            while len(self._open) > MAX_DECODERS:
                dropped.append(self._open.popitem(last=False)[1])
        for old in dropped:
            old.close()
        return source


class StoredFrames(FrameSource):
    """The frames of an uploaded video for the client: the decoder may be closed and reopened between two frames."""

    def __init__(self, video: VideoFile, decoders: Decoders) -> None:
        super().__init__("the video")
        self.num_frames = video.num_frames
        self.size = video.size
        self._video = video
        self._decoders = decoders

    def _read(self, index: int) -> tuple[bytes, Size] | None:
        if index >= self._video.num_frames:
            return None
        frame = self._decoders.frame(self._video, index, "tracking")
        return frame.content, frame.size
