"""Request and response bodies, within the service's budgets: their bytes, and the time that they take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from .budgets import FREE_BYTES, Budgets, Lease
from .problems import Problem, response
from .quotas import Caller
from .settings import MEBI, ServiceSettings

SECOND_BYTES = 1 << 18
"""Each time this many bytes have been received or sent, the time limit grows by one second."""
CHUNK = 1 << 16
"""Bytes of a response that are written at a time, so that the service notices a client that does not read."""
FILES = "multipart/form-data"
IMAGES = "/v1/images"
"""The upload path whose body may be the image itself."""
IMAGE_KINDS = (
    "image/jpeg", "image/png", "image/webp", "image/tiff", "image/bmp", "image/gif", "image/heic", "image/heif",
    "application/octet-stream",
)  # fmt: skip
"""Media types of bodies that are images."""
VIDEOS = "/v1/videos"
"""The upload path whose files are written to disk as they arrive, not to memory; separate limits apply."""
UNUSED = ("GET", "HEAD", "DELETE")
"""Methods whose routes run without the body, even while it arrives."""
MAX_VALUES = 1 << 14
"""Maximum number of values in a request without a file. The largest call has a quarter of them. Two MiB can hold a
million values, and reading those would block the event loop.
"""
ADAPTER = "triton_sam.adapter"
"""Key in the ASGI scope of an adapter's request; the value is the Adapter."""
MAX_ADAPTER_VALUES = 1 << 20
"""The same for an adapter: some tools send all annotations of an image with each click. A thread reads them."""


class Body:
    """The body of one request. The application receives its messages from receive()."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        settings: ServiceSettings,
        budgets: Budgets,
        caller: Caller,
        arrived: Callable[[], None],
    ) -> None:
        headers = Headers(scope=scope)
        self._receive = receive
        self._seconds = settings.body_seconds
        self._caller = caller
        self._arrived = arrived
        self._is_unused = scope["method"] in UNUSED
        kind = kind_of(headers)
        self._is_file = kind == FILES or (scope["path"] == IMAGES and is_image(kind))
        self._has_files = self._is_file or ADAPTER in scope  # other tools put images into JSON
        to_disk = self._is_file and scope["path"] == VIDEOS
        large = settings.max_video if to_disk else settings.max_body
        self._limit = large if self._has_files else settings.max_json
        self._max_values = MAX_ADAPTER_VALUES if ADAPTER in scope else MAX_VALUES
        self._length = _length(headers)
        self._read = 0
        self._values = 0
        self._lease = (budgets.video_bytes if to_disk else budgets.bodies).take(0)
        self._free = 0 if to_disk else FREE_BYTES
        self._unread: Lease | None = None
        self._budgets = budgets
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._ended = not self._length and "transfer-encoding" not in headers

    def start(self) -> None:
        if self._length > self._limit:
            raise self._too_large()
        if self._has_files:
            self._caller.check_upload(self._length)
        if self._ended or self._is_unused:
            self._arrived()
        if not self._ended:
            self._unread = self._budgets.receiving.take()

    def end(self) -> None:
        """Return everything to the budgets."""
        self._lease.give()
        if self._unread is not None:
            self._unread.give()

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()
        left = self._began + self._seconds + self._read / SECOND_BYTES - self._clock()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except asyncio.TimeoutError:
            raise Problem(
                408,
                f"the request did not arrive within {self._seconds:g} s and a second for each 256 KiB: "
                "use a faster connection, or send a smaller file",
                headers={"Connection": "close"},
                code="slow",
            ) from None
        if message["type"] == "http.request":
            self._count(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            self._ended = True
            if self._unread is not None:
                self._unread.give()
            if message["type"] == "http.request" and not self._is_unused:
                self._arrived()
        return message

    def _count(self, piece: bytes) -> None:
        before = max(0, self._read - self._free)
        self._read += len(piece)
        if self._read > self._limit:
            raise self._too_large()
        self._lease.grow(max(0, self._read - self._free) - before)
        if self._has_files:
            self._caller.upload(len(piece))
        if self._is_file:
            return
        self._values += piece.count(b",") + piece.count(b"&")  # separators in JSON and in forms
        if self._values > self._max_values:
            raise Problem(
                413,
                f"a request without a file may have at most {self._max_values} values: send fewer points in one call",
            )

    def _too_large(self) -> Problem:
        size = f"{self._limit / MEBI:g} MiB"
        text = f"the request is larger than {size}"
        if not self._has_files:
            text = f"a request without a file may have at most {size}: send images as {FILES}"
        return Problem(413, text)


def kind_of(headers: Headers) -> str:
    """Return the media type of a body without its parameters, in lower case; "" without the header."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_image(kind: str) -> bool:
    """Return whether a body of this type is an image; only the content decides whether it is supported."""
    return kind.startswith("image/") or kind in IMAGE_KINDS


class UnreadError(ConnectionError):
    """The client does not read its response."""


class Answer:
    """The response to one request. Large responses are written in pieces, no faster than the client reads.

    Args:
        budgets: bytes of large responses count until they are sent.
    """

    def __init__(self, send: Send, settings: ServiceSettings, budgets: Budgets) -> None:
        self._send = send
        self._seconds = settings.timeout
        self._budgets = budgets
        self._start: Message | None = None
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """Send a message. A response that exceeds the budget is replaced by a 503."""
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = message.get("body", b"") if message["type"] == "http.response.body" else b""
        start, self._start = self._start, None
        try:
            lease = self._budgets.answers.take(max(0, len(body) - FREE_BYTES))
        except Problem as problem:
            if start is None:
                raise
            self._is_refused = True  # the application cannot respond otherwise: it has sent its start
            answer = response(problem)
            start = {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
            await self._in_time(start, {"type": "http.response.body", "body": answer.body})
            return
        with lease:
            await self._in_time(start, message)

    async def _in_time(self, start: Message | None, message: Message) -> None:
        body = message.get("body", b"")
        try:
            await asyncio.wait_for(self._write(start, message, body), self._seconds + len(body) / SECOND_BYTES)
        except asyncio.TimeoutError:
            raise UnreadError("the client does not read its answer") from None

    async def _write(self, start: Message | None, message: Message, body: bytes) -> None:
        if start is not None:
            await self._send(start)  # this also waits until the client has read earlier responses
        if len(body) <= CHUNK:
            await self._send(message)
            return
        for begin in range(0, len(body), CHUNK):
            end = begin + CHUNK
            more = end < len(body) or message.get("more_body", False)
            await self._send({**message, "body": body[begin:end], "more_body": more})


def _length(headers: Headers) -> int:
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise Problem(400, "Content-Length must be a number")
    return int(length)
