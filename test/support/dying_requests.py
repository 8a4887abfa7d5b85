"""Requests to an ASGI application that end at a chosen moment, without a network: disconnected, cancelled, unread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from triton_sam.errors import InferenceError, ServerUnreachableError

WAYS = ("end", "hang up", "cancel", "unread")
"""How a request ends: normally; its client disconnects; its task is cancelled; its answer cannot be sent."""
HOST = (b"host", b"localhost:5000")


FAILURES = (InferenceError("the GPU is gone"), ServerUnreachableError("gone"), RuntimeError("a bug"), OSError("a disk"))


class Dice:
    """A seeded random generator, and awaits that fail now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    async def wait(self) -> None:
        """Suspend for some steps, and perhaps fail."""
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        if self.random.random() < 0.05:
            raise self.random.choice(FAILURES)


@dataclass
class Dying:
    """One request.

    Args:
        method: GET, POST and so on.
        path: the path with the query.
        body: the body.
        headers: further headers.
        way: how it ends.
        steps: number of steps of the event loop before the end, or of messages for "unread".
    """

    method: str
    path: str
    body: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()
    way: str = "end"
    steps: int = 0
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)

    async def send_to(self, app: Any) -> None:
        """Send the request, and wait until the application has finished."""
        gone = asyncio.Event()
        pieces = [self.body[: len(self.body) // 2], self.body[len(self.body) // 2 :]]
        messages = [
            {"type": "http.request", "body": pieces[0], "more_body": True},
            {"type": "http.request", "body": pieces[1], "more_body": False},
        ]
        sent = 0

        async def receive() -> Any:
            if messages and not gone.is_set():
                await asyncio.sleep(0)
                return messages.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal sent
            sent += 1
            if gone.is_set() or (self.way == "unread" and sent > self.steps % 3):
                raise OSError("the connection is gone")
            if message["type"] == "http.response.start":
                self.status = message["status"]
            self.answer += message.get("body", b"")
            await asyncio.sleep(0)

        path, _, query = self.path.partition("?")
        length = (b"content-length", str(len(self.body)).encode())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [HOST, length, *self.headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 5000),
        }
        task = asyncio.create_task(app(scope, receive, send))
        if self.way in ("hang up", "cancel"):
            for _ in range(self.steps):
                if task.done():
                    break
                await asyncio.sleep(0)
            gone.set()
            if self.way == "cancel":
                task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
        gone.set()

    def json(self) -> Any:
        return json.loads(bytes(self.answer))


def json_request(method: str, path: str, body: Any, **headers: str) -> Dying:
    """Return a request with JSON."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Dying(method, path, json.dumps(body).encode(), [(b"content-type", b"application/json"), *named])


def form_request(path: str, fields: dict[str, str], files: Sequence[tuple[str, str, bytes]], **query: str) -> Dying:
    """Return a request with a form. A file is the name of its field, its own name, and its content."""
    edge = b"----edge"
    parts = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (edge, name.encode(), value.encode())
        for name, value in fields.items()
    ]
    parts += [
        b'--%s\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'
        % (edge, name.encode(), file.encode(), content)
        for name, file, content in files
    ]
    kind = b"multipart/form-data; boundary=" + edge
    asked = f"?{urlencode(query)}" if query else ""
    return Dying("POST", path + asked, b"".join(parts) + b"--%s--\r\n" % edge, [(b"content-type", kind)])


class DyingPage:
    """A page on the WebSocket, which sends messages and disconnects after some steps."""

    def __init__(self, messages: Sequence[Any], steps: int, way: str) -> None:
        self._messages = [json.dumps(each) for each in messages]
        self._steps = steps
        self._way = way

    async def send_to(self, app: Any) -> None:
        """Open the page, and wait until the application has finished."""
        gone = asyncio.Event()
        waiting: list[Any] = [{"type": "websocket.connect"}]
        waiting += [{"type": "websocket.receive", "text": each} for each in self._messages]

        async def receive() -> Any:
            await asyncio.sleep(0)
            if waiting and not gone.is_set():
                return waiting.pop(0)
            await gone.wait()
            return {"type": "websocket.disconnect", "code": 1001}

        async def send(message: Any) -> None:
            if gone.is_set():
                raise OSError("the connection is gone")
            await asyncio.sleep(0)

        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": "/live",
            "raw_path": b"/live",
            "query_string": b"",
            "root_path": "",
            "headers": [HOST],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 5000),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        task = asyncio.create_task(app(scope, receive, send))
        for _ in range(self._steps):
            if task.done():
                break
            await asyncio.sleep(0)
        gone.set()
        if self._way == "cancel":
            task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
