"""Writes the masks of a video to one file, in any format of `triton_sam.tracks`."""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from ...inputs.images import open_image
from ...tracks.formats import TRACK_FORMATS, TrackedVideo, mask_file, mask_stems
from ..budgets import Budgets
from ..problems import Problem
from .store import StoredVideo
from .tracking import gone

FILES = {
    "png": ("masks.zip", "application/zip"),
    "rle": ("masks.jsonl", "application/jsonl"),
    "coco": ("coco.json", "application/json"),
    "overlay": ("overlay.mp4", "video/mp4"),
}
"""The end of the name, and the media type of the file of each format."""


class DownloadFile:
    """A temporary file with the masks so far. It is removed at the end of its block, or with the response of answer().

    Args:
        budgets: bytes of the disk, and pixels of the worker.
    """

    def __init__(self, budgets: Budgets, video: StoredVideo, form: str) -> None:
        records = video.tracking.records
        masks = records.all()
        if not masks:
            raise Problem(409, "the video has no masks yet: add a prompt and track it", code="no_masks")
        largest = TRACK_FORMATS[form].largest_id
        highest = max(record.object_id for group in masks.values() for record in group)
        if largest is not None and highest > largest:
            raise Problem(
                422, f"the format {form} holds the object ids 1..{largest}, not {highest}: take another format"
            )
        self._budgets = budgets
        self._video = video
        self._form = form
        self._masks = masks
        self._labels = records.label_maps()
        self._path = video.room.folder / f"{uuid.uuid4().hex}-{FILES[form][0]}"
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
                self._write(frames)
                return self._path.stat().st_size
            finally:
                if self._is_closed:
                    self._path.unlink(missing_ok=True)

        width, height = self._video.file.size
        workers = self._budgets.workers
        self._video.downloads += 1
        try:
            self._disk.grow(await workers.reduce(2 * width * height, work, sorted(self._masks), is_file=True))
        except FileNotFoundError:
            raise gone() from None
        finally:
            self._video.downloads -= 1

    def answer(self) -> FileResponse:
        """Return the response, which removes the file when it ends for any reason."""
        self._is_passed_on = True
        ending, media_type = FILES[self._form]
        return _OwnFile(self._path, self.close, media_type=media_type, filename=f"{self._video.stem}-{ending}")

    def _write(self, frames: Iterator[int]) -> None:
        writer = TRACK_FORMATS[self._form].write_video
        if self._form == "png":
            stems = mask_stems(self._video.file.image_names)
            with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:  # a PNG is compressed already
                for (frame, content), _ in zip(self._labels, frames, strict=True):
                    archive.writestr(mask_file(frame, stems), content)
        elif self._form == "rle":
            with self._path.open("w", encoding="utf-8") as stream:
                for frame in frames:
                    stream.writelines(record.to_line() for record in self._masks[frame])
        elif writer is not None:
            video, file = self._video, self._video.file

            def images(_: Sequence[int]) -> Iterator[Image.Image]:
                for frame in frames:
                    yield open_image(video.decoders.frame(file, frame, "preview").content)

            tracked = TrackedVideo(
                video.stem,
                file.size,
                file.rate / video.tracking.every,
                self._masks,
                images,
                file.pixel_ratio,
                file.image_names,
            )
            writer(self._path, tracked)


class _OwnFile(FileResponse):
    def __init__(self, path: Path, close: Callable[[], None], *, media_type: str, filename: str) -> None:
        super().__init__(path, media_type=media_type, filename=filename)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
