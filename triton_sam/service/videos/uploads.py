"""Writes the files of an upload to disk as they arrive, so that a video is never held in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ..problems import Problem
from .rooms import Room

VIDEO, FRAMES = "video", "frames"
MAX_HEADERS = 8192
"""Maximum bytes of the headers of one part."""


@dataclass
class Upload:
    """The files of a video: one file, or its frames as images in their order."""

    name: str = ""
    video: Path | None = None
    frames: list[Path] = field(default_factory=list)


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
            "on_part_end": self._close,
            "on_end": self._end,
        }
        parser: Any = MultipartParser
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
        self._field = self._grown(self._field, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._grown(self._value, data[start:end])

    def _header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field, self._value = b"", b""

    def _grown(self, text: bytes, piece: bytes) -> bytes:
        if len(text) + len(piece) + sum(map(len, self._headers.values())) > MAX_HEADERS:
            raise Problem(400, "the headers of a part of the body are too long")
        return text + piece

    def _open(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        part, upload = options.get(b"name", b"").decode("utf-8", "replace"), self.upload
        if not upload.name:
            upload.name = options.get(b"filename", b"").decode("utf-8", "replace")[:200]
        if part == VIDEO:
            if upload.video is not None:
                raise Problem(422, f"a request has one `{VIDEO}`: send the other in a request of its own")
            path = upload.video = self._folder / VIDEO
        elif part == FRAMES:
            if len(upload.frames) >= self._max_frames:
                raise Problem(413, f"a video may have at most {self._max_frames} frames")
            path = self._folder / f"{len(upload.frames):06d}"
            upload.frames.append(path)
        else:
            raise Problem(422, f"there is no field {part[:40]!r}: send `{VIDEO}` or `{FRAMES}`")
        self._file = path.open("wb")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(data[start:end])

    def _close(self) -> None:
        self.close()

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
