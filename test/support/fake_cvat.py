"""The part of CVAT's REST API that `cvat-cli task auto-annotate` needs, for a task of images."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from PIL import Image

TASK = 1
DATE = "2026-01-01T00:00:00Z"


class FakeCvat(ThreadingHTTPServer):
    """A CVAT with one task.

    Attributes:
        annotations: the annotations that the task has got.
        unknown: requests that this server does not know.
    """

    daemon_threads = True

    def __init__(self, images: list[Path], label: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.images = images
        self.annotations: list[dict[str, Any]] = []
        self.unknown: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        sizes = [Image.open(path).size for path in images]
        frames = [
            {"name": path.name, "width": width, "height": height, "related_files": 0}
            for path, (width, height) in zip(images, sizes, strict=True)
        ]
        chunks = {"data_chunk_size": len(images), "data_original_chunk_type": "imageset"}
        jobs = {"count": 1, "completed": 0, "validation": 0, "url": "jobs"}
        links = {"jobs": jobs, "labels": {"url": "labels"}, "organization": None}
        named = {"id": 7, "name": label, "type": "mask", "attributes": [], "sublabels": []}
        about = ("name", "description", "version", "logo_url", "subtitle")
        self.answers: dict[str, Any] = {
            "/api/server/about": {**dict.fromkeys(about, ""), "version": "2.80.0"},
            f"/api/tasks/{TASK}": {"id": TASK, "size": len(images), "updated_date": DATE, **chunks, **links},
            f"/api/tasks/{TASK}/data/meta": {"chunks_updated_date": DATE, "frames": frames, "deleted_frames": []},
            "/api/labels": {"count": 1, "next": None, "previous": None, "results": [named]},
        }

    def chunk(self) -> bytes:
        """Return the images as a ZIP archive."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for number, path in enumerate(self.images):
                archive.write(path, f"{number:06}{path.suffix}")
        return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Answers a request."""

    server: FakeCvat

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = address.path.rstrip("/")
        if path == f"/api/tasks/{TASK}/data" and parse_qs(address.query).get("type") == ["chunk"]:
            self._answer(self.server.chunk(), "application/zip")
        elif path in self.server.answers:
            self._answer(json.dumps(self.server.answers[path]).encode())
        else:
            self._refuse()

    def do_PATCH(self) -> None:
        address = urlsplit(self.path)
        if address.path.rstrip("/") != f"/api/tasks/{TASK}/annotations":
            return self._refuse()
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.annotations.append(sent)
        return self._answer(json.dumps({"version": 1, "tags": [], "shapes": [], "tracks": []}).encode())

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, content: bytes, kind: str = "application/vnd.cvat+json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self) -> None:
        self.server.unknown.append(f"{self.command} {self.path}")
        self._answer(b"{}", status=404)


@contextlib.contextmanager
def running_cvat(images: list[Path], label: str) -> Iterator[FakeCvat]:
    """Run a CVAT with one task, which has the images and a label."""
    server = FakeCvat(images, label)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
