"""Writes the masks of a video to one file, in any format of `triton_sam.tracks`."""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from ...inputs.images import open_image
from ...tracks.formats import TRACK_FORMATS, TrackedVideo
from ...tracks.records import MaskRecord
from ..budgets import Budgets
from ..problems import Problem
from .decoders import Decoders
from .files import VideoFile
from .records import Records
from .tracking import gone


@dataclass(frozen=True)
class FileKind:
    """The file of a format.

    Args:
        write: writes the file. Its arguments are the path, the video and an iterator of frames.
    """

    suffix: str
    media_type: str
    write: Callable[[Path, Download, Iterator[int]], None]


@dataclass(frozen=True)
class Download:
    """The contents of a download.

    Args:
        labels: the label maps as PNG, in the order of the frames.
    """

    name: str
    video: VideoFile
    records: Mapping[int, Sequence[MaskRecord]]
    labels: Iterator[tuple[int, bytes]]
    decoders: Decoders


def prepare(form: str, name: str, video: VideoFile, records: Records, decoders: Decoders) -> Download:
    """Return a snapshot of the contents of a file in a format."""
    masks = records.all()
    if not masks:
        raise Problem(409, "the video has no masks yet: add a prompt and track it", code="no_masks")
    largest = TRACK_FORMATS[form].largest_id
    highest = max(record.object_id for group in masks.values() for record in group)
    if largest is not None and highest > largest:
        raise Problem(422, f"the format {form} holds the object ids 1..{largest}, not {highest}: take another format")
    return Download(name, video, masks, records.label_maps(), decoders)


def _write_labels(path: Path, download: Download, frames: Iterator[int]) -> None:
    file_name = TRACK_FORMATS["png"].image_file or str
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # a PNG is compressed already
        for (frame, content), _ in zip(download.labels, frames, strict=True):
            archive.writestr(file_name(frame), content)


def _write_lines(path: Path, download: Download, frames: Iterator[int]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for frame in frames:
            stream.writelines(record.to_line() for record in download.records[frame])


def _write_whole(form: str) -> Callable[[Path, Download, Iterator[int]], None]:
    def write(path: Path, download: Download, frames: Iterator[int]) -> None:
        def images(_: Sequence[int]) -> Iterator[Image.Image]:
            for frame in frames:
                yield open_image(download.decoders.frame(download.video, frame, "preview").content)

        video = TrackedVideo(download.name, download.video.size, download.video.rate, download.records, images)
        writer = TRACK_FORMATS[form].write_video
        if writer is not None:
            writer(path, video)

    return write


FILES: dict[str, FileKind] = {
    "png": FileKind("masks.zip", "application/zip", _write_labels),
    "rle": FileKind("masks.jsonl", "application/jsonl", _write_lines),
    "coco": FileKind("coco.json", "application/json", _write_whole("coco")),
    "overlay": FileKind("overlay.mp4", "video/mp4", _write_whole("overlay")),
}


class DownloadFile:
    """A temporary file for one response. It is removed at the end of its block, or with the response of answer().

    Args:
        budgets: bytes of the disk, and pixels of the worker.
    """

    def __init__(self, budgets: Budgets, folder: Path, form: str, download: Download) -> None:
        self._budgets = budgets
        self._kind = FILES[form]
        self._path = folder / f"{uuid.uuid4().hex}-{self._kind.suffix}"
        self._download = download
        self._disk = budgets.video_bytes.take(0)
        self._is_passed_on = self._is_closed = False

    def __enter__(self) -> DownloadFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_passed_on:
            self.close()

    def close(self) -> None:
        """Remove the file. If a thread is still writing it, the thread removes it at the end."""
        self._is_closed = True
        self._path.unlink(missing_ok=True)
        self._disk.give()

    async def write(self) -> None:
        """Write the file in a thread, which stops at the next frame if the client leaves."""

        def work(frames: Iterator[int]) -> int:
            try:
                self._kind.write(self._path, self._download, frames)
                return self._path.stat().st_size
            finally:
                if self._is_closed:
                    self._path.unlink(missing_ok=True)

        width, height = self._download.video.size
        try:
            frames = sorted(self._download.records)
            self._disk.grow(await self._budgets.workers.reduce(2 * width * height, work, frames))
        except FileNotFoundError:
            raise gone() from None

    def answer(self) -> FileResponse:
        """Return the response, which removes the file when it ends for any reason."""
        self._is_passed_on = True
        name = f"{self._download.name}-{self._kind.suffix}"
        return _OwnFile(self._path, self.close, media_type=self._kind.media_type, filename=name)


class _OwnFile(FileResponse):
    def __init__(self, path: Path, close: Callable[[], None], *, media_type: str, filename: str) -> None:
        super().__init__(path, media_type=media_type, filename=filename)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
