"""A file server with every kind of fault met so far, and its checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from triton_sam.download import catalogue as checkpoints
from triton_sam.families.tables import Checkpoint

CONTENT = random.Random(0).randbytes(700_000)


NAME = "model.pt"


Act = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT with ranges. The first requests each run one of ``server.acts`` instead."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        act = self.server.acts.pop(0) if self.server.acts else serve
        act(self)
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Connection", "close")
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts: list[Act] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.content = CONTENT
        self.tag = '"one"'
        self.where = f"/files/{NAME}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # some tests close the connection of the client

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()

    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


def serve(handler: Handler, *, ranges: bool = True, end: int | None = None, pause: float = 0) -> None:
    server = handler.server
    if handler.path != server.where:
        handler.head(404, Content_Length=0)
        return
    wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(wanted[1]) if wanted and ranges and handler.headers.get("If-Range") in (None, server.tag) else 0
    total = len(server.content)
    if start >= total:
        handler.head(416, Content_Range=f"bytes */{total}", Content_Length=0)
        return
    headers: dict[str, object] = {"Content_Length": total - start}
    if ranges:
        headers["ETag"] = server.tag
    if start:
        headers["Content_Range"] = f"bytes {start}-{total - 1}/{total}"
    handler.head(206 if start else 200, **headers)
    body = server.content[start:end]
    for position in range(0, len(body), 50_000):
        handler.wfile.write(body[position : position + 50_000])
        time.sleep(pause)


def cut(end: int) -> Act:
    return lambda handler: serve(handler, end=end)


def without_ranges(handler: Handler) -> None:
    serve(handler, ranges=False)


def slowly(handler: Handler) -> None:
    serve(handler, pause=0.05)


def status(code: int, **headers: object) -> Act:
    return lambda handler: handler.head(code, Content_Length=0, **headers)


def entry(server: Server, content: bytes = CONTENT, *, size: bool = True) -> Checkpoint:
    digest = hashlib.sha256(content).hexdigest()
    return Checkpoint("sam2", "test", f"{server.url}/files/{NAME}", len(content) if size else None, digest)


def get(server: Server, directory: Path, **options: object) -> Path:
    return checkpoints.download(entry(server), directory, progress=False, **options)  # type: ignore[arg-type]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
