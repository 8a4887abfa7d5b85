"""A file server with every kind of fault met so far, its checkpoint, and a web server of a folder."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import io
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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


class Storage(http.server.ThreadingHTTPServer):
    """A web server of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.folder = folder
        self.failing = ".png"
        """A part of failing paths."""
        self.failures: list[int] = []
        """Status codes of the next requests for a failing path."""
        self.asked: list[str] = []
        self.sent = 0
        """Number of sent bytes of files."""
        self.ranges = True
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # several requests per connection
    server: Storage

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.failures and self.server.failing in self.path:
            self.send_error(self.server.failures.pop())
            return
        super().do_GET()

    def send_head(self) -> Any:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not (wanted and path.is_file() and self.server.ranges):
            return super().send_head()
        content, (start, end) = path.read_bytes(), map(int, wanted.groups())
        part = content[start : end + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        return io.BytesIO(part)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        self.server.sent += len(content)
        outputfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Storage]:
    """Run a web server of the folder `web`."""
    (tmp_path / "web").mkdir()
    with Storage(tmp_path / "web") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
