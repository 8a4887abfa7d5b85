"""Files of an uploaded video: supported kinds, their properties, and their frames as JPEG."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from PIL import Image

from ...errors import VideoError
from ...families.base import Size
from ...inputs.images import open_image
from ...inputs.video.base import Frame, FrameSource
from ...inputs.video.files import VideoFrames, open_container, video_stream
from ...inputs.video.sequences import ImageFrames
from ..image_files import MEGA, check_image
from ..problems import Problem
from ..settings import ServiceSettings
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
    """An uploaded video on disk."""

    paths: tuple[Path, ...]
    is_file: bool
    size: Size
    num_frames: int
    rate: Fraction

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
        found = _images(upload, settings) if upload.video is None else _file(upload.video, settings)
    except VideoError as error:  # the sender must not see the path on this machine
        folder = str((upload.video or upload.frames[0]).parent)
        raise VideoError(str(error).replace(f"{folder}/video", "the video").replace(folder, "the upload")) from error
    if found.num_frames > settings.max_video_frames:
        raise Problem(413, f"the video has {found.num_frames} frames, at most {settings.max_video_frames} are taken")
    return found


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
        _check_size((stream_.width, stream_.height), settings)  # before anything is decoded
        rate = stream_.average_rate or stream_.guessed_rate or DEFAULT_RATE
    frames = VideoFrames(path)
    frames.close()
    return VideoFile((path,), True, frames.size, frames.num_frames or 0, Fraction(rate) or DEFAULT_RATE)


def _check_kind(head: bytes) -> None:
    """Reject all files but videos: FFmpeg also reads playlists that refer to other files of this machine."""
    is_mp4 = head[4:8] in _MP4_BOXES
    is_matroska = head.startswith(b"\x1a\x45\xdf\xa3")
    is_avi = head.startswith(b"RIFF") and head[8:12] == b"AVI "
    if not (is_mp4 or is_matroska or is_avi):
        raise Problem(415, "the video is none of MP4, MOV, WebM, MKV, AVI, or damaged")


def _check_size(size: Size, settings: ServiceSettings) -> None:
    width, height = size
    if width * height > settings.max_megapixels * MEGA:
        raise Problem(
            413, f"the frames have {width} x {height} pixels; at most {settings.max_megapixels:g} million are taken"
        )


def _images(upload: Upload, settings: ServiceSettings) -> VideoFile:
    sizes = [check_image(path.read_bytes(), settings.max_megapixels) for path in upload.frames]
    for index, size in enumerate(sizes):
        if size != sizes[0]:
            first = f"{sizes[0][0]} x {sizes[0][1]}"
            raise VideoError(f"frame {index} has {size[0]} x {size[1]} pixels, but the first has {first}")
    frames = ImageFrames(upload.frames, name="the upload")  # opens the first one
    return VideoFile(tuple(upload.frames), False, frames.size, len(upload.frames), DEFAULT_RATE)
