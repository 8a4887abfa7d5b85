"""A web server of a folder with range requests and faults on demand."""

from __future__ import annotations

import functools
import http.server
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


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
