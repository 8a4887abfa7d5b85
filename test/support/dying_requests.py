"""Requests to an ASGI application that end at a chosen moment, without a network: disconnected, cancelled, unread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from triton_sam.errors import InferenceError, ServerUnreachableError

WAYS = ("end", "hang up", "cancel", "unread")
"""How a request ends: normally; its client disconnects; its task is cancelled; its answer cannot be sent."""
HOST = (b"host", b"localhost:5000")


FAILURES = (InferenceError("the GPU is gone"), ServerUnreachableError("gone"), RuntimeError("a bug"), OSError("a disk"))


def fail(chance: random.Random) -> None:
    """Perhaps wait, and perhaps fail."""
    time.sleep(chance.choice((0, 0, 0.001, 0.01)))
    if chance.random() < 0.05:
        raise chance.choice(FAILURES)


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

        length = (b"content-length", str(len(self.body)).encode())
        scope = _scope("http", self.path, [length, *self.headers], scheme="http", method=self.method)
        steps = self.steps if self.way in ("hang up", "cancel") else None
        await _end(app(scope, receive, send), gone, steps, self.way)

    def json(self) -> Any:
        return json.loads(bytes(self.answer))


def json_request(method: str, path: str, body: Any, **headers: str) -> Dying:
    """Return a request with JSON."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Dying(method, path, json.dumps(body).encode(), [(b"content-type", b"application/json"), *named])


def form_request(path: str, fields: dict[str, str], files: Sequence[tuple[str, str, bytes]], **query: str) -> Dying:
    """Return a request with a form. A file is the name of its field, its own name, and its content."""
    parts = [(field, (name, content)) for field, name, content in files]
    kind = {"content-type": "multipart/form-data; boundary=edge"}
    made = httpx.Request("POST", f"http://localhost{path}", params=query, data=fields, files=parts, headers=kind)
    headers = [(b"content-type", made.headers["content-type"].encode())]
    return Dying("POST", made.url.raw_path.decode(), made.read(), headers)


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

        more = {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
        await _end(
            app(_scope("websocket", "/live", [], scheme="ws", **more), receive, send), gone, self._steps, self._way
        )


def _scope(kind: str, path: str, headers: Sequence[tuple[bytes, bytes]], **more: Any) -> dict[str, Any]:
    path, _, query = path.partition("?")
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [HOST, *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 5000),
        **more,
    }


async def _end(call: Coroutine[Any, Any, None], gone: asyncio.Event, steps: int | None, way: str) -> None:
    """Wait until the application has finished. After some steps, the client is gone, or the call is cancelled."""
    task = asyncio.create_task(call)
    if steps is not None:
        for _ in range(steps):
            if task.done():
                break
            await asyncio.sleep(0)
        gone.set()
        if way == "cancel":
            task.cancel()
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await task
    gone.set()
