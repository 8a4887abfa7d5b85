"""The service's folder for videos, the resources of one video, and its upload.

The resources are a place, bytes of the disk, and a folder. Files are written to disk as they arrive, so that a video is
never held in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from .. import background
from ..budgets import Lease
from ..problems import Problem

try:
    import fcntl
except ImportError:  # Windows has no such locks, so nothing is removed there
    fcntl = None  # type: ignore[assignment]

PREFIX = "triton-sam-videos-"


class Folder:
    """A new temporary folder, locked as long as this process lives.

    Creating it removes this user's folders that no running service has locked.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._descriptor = _lock(self.path)
            if fcntl is None or self._descriptor is not None:
                return
            # Another starting service removed the folder as abandoned before it was locked.

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.path))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(folder: Path) -> int | None:
    """Lock a folder if it still exists and is not locked; return the descriptor that holds the lock, else None."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_abandoned() -> None:
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


Result = TypeVar("Result")


class Room:
    """The place, bytes and folder of one video. The owner of a room must close() it."""

    def __init__(self, place: Lease, disk: Lease, make: Callable[[], Path]) -> None:
        self.disk = disk
        self.is_kept = False
        """Whether a new owner has taken the room, and closes it later."""
        self._place = place
        self._make = make
        self._folder: Path | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def folder(self) -> Path:
        """The folder, after open()."""
        if self._folder is None:
            raise RuntimeError("the room is not open")
        return self._folder

    async def open(self) -> None:
        def make() -> None:
            self._folder = self._make()  # in the thread, so that it is set even if the caller has left

        await self.run(make)

    async def run(self, work: Callable[[], Result], limit: asyncio.Semaphore | None = None) -> Result:
        """Call a function in a thread. The folder stays until the function ends, even if the caller leaves."""

        async def run() -> Result:
            async with limit or contextlib.nullcontext():
                return await run_in_threadpool(work)

        task = asyncio.create_task(run())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def write(self, content: bytes, path: Path, before: int = 0) -> None:
        grown = len(content) - before
        self.disk.grow(grown)
        try:
            await self.run(functools.partial(path.write_bytes, content))
        except Exception:
            self.disk.hold(self.disk.amount - grown)
            raise

    async def close(self) -> None:
        """Return everything, the folder first. Threads that still use it finish in the background before."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._running:
            background.start(self._close())
        else:
            await background.finish(self._close())

    async def _close(self) -> None:
        try:
            if self._running:
                await asyncio.wait(set(self._running))
            if self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        finally:
            self.disk.give()
            self._place.give()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has received it, or has left


VIDEO, FRAMES = "video", "frames"
MAX_NAME = 200


@dataclass
class Upload:
    """The files of a video: one file, or its frames as images in their order, with the file names sent."""

    name: str = ""
    video: Path | None = None
    frames: list[Path] = field(default_factory=list)
    frame_names: list[str] = field(default_factory=list)


class _Parts:
    """Writes the parts of one multipart body to a folder."""

    def __init__(self, folder: Path, boundary: bytes, max_frames: int) -> None:
        self.upload = Upload()
        self._folder = folder
        self._max_frames = max_frames
        self._file: IO[bytes] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = b"", b""
        self._has_ended = False
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_part_end": self.close,
            "on_end": self._end,
        }
        parser: Any = MultipartParser  # it limits the number and the size of a part's headers
        self._parser = parser(boundary, callbacks)

    def write(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError:
            raise Problem(400, "the body is not well-formed multipart/form-data") from None

    def finish(self) -> None:
        self.close()
        if not self._has_ended:
            raise Problem(400, "the body ends before its last boundary")
        if (self.upload.video is None) == (not self.upload.frames):
            raise Problem(422, f"send either one file as field `{VIDEO}`, or images as fields `{FRAMES}`")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._headers = {}
        self._field, self._value = b"", b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field, self._value = b"", b""

    def _open(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        part, upload = options.get(b"name", b"").decode("utf-8", "replace"), self.upload
        name = options.get(b"filename", b"").decode("utf-8", "replace")
        upload.name = upload.name or name[:MAX_NAME]
        is_name = len(name) <= MAX_NAME and name.isprintable()
        if part == VIDEO:
            if upload.video is not None:
                raise Problem(422, f"a request has one `{VIDEO}`: send the other in a request of its own")
            path = upload.video = self._folder / VIDEO
        elif part == FRAMES:
            if len(upload.frames) >= self._max_frames:
                raise Problem(413, f"a video may have at most {self._max_frames} frames: send fewer")
            path = self._folder / f"{len(upload.frames):06d}"
            upload.frames.append(path)
            upload.frame_names.append(PurePosixPath(name.replace("\\", "/")).name if is_name else "")
        else:
            raise Problem(422, f"there is no field {part[:40]!r}: send `{VIDEO}` or `{FRAMES}`")
        self._file = path.open("wb")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])

    def _end(self) -> None:
        self._has_ended = True


async def receive(request: Request, room: Room, max_frames: int) -> Upload:
    kind, options = parse_options_header(request.headers.get("content-type", "").encode("latin-1"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Problem(415, f"send the video as multipart/form-data, in the field `{VIDEO}` or in fields `{FRAMES}`")
    parts = _Parts(room.folder, boundary, max_frames)
    try:
        async for piece in request.stream():
            await room.run(functools.partial(parts.write, piece))
        parts.finish()
    finally:
        parts.close()
    return parts.upload
