"""The part of CVAT's REST API that `cvat-cli` needs to annotate a task and to answer requests as an agent."""

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
from urllib.parse import parse_qs, unquote, urlsplit

from PIL import Image

TASK, FUNCTION = 1, 5
QUEUE = f"/api/functions/queues/function:{FUNCTION}/requests"
DATE = "2026-01-01T00:00:00Z"


class FakeCvat(ThreadingHTTPServer):
    """A CVAT with one task.

    Attributes:
        annotations: the received annotations of the task.
        asked: parameters of requests that wait for an agent, in order. With the states "last", a request gets the
            states of the previous result.
        results: the answers of agents.
        unknown: unsupported requests, and reports of failures.
    """

    daemon_threads = True

    def __init__(self, images: list[Path], label: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.images = images
        self.annotations: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.unknown: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        frames = []
        for path in images:
            with Image.open(path) as image:
                width, height = image.size
            frames.append({"name": path.name, "width": width, "height": height, "related_files": 0})
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
        path, query = self._place()
        kind = query.get("type", [""])[0] if path == f"/api/tasks/{TASK}/data" else ""
        if kind == "chunk":
            self._answer(self.server.chunk(), "application/zip")
        elif kind == "frame":
            self._answer(self.server.images[int(query["number"][0])].read_bytes(), "image/jpeg")
        elif path in self.server.answers:
            self._answer_json(self.server.answers[path])
        else:
            self._refuse()

    def do_PATCH(self) -> None:
        path, _ = self._place()
        sent = self._body()
        if path != f"/api/tasks/{TASK}/annotations":
            return self._refuse()
        self.server.annotations.append(sent)
        return self._answer_json({"version": 1, "tags": [], "shapes": [], "tracks": []})

    def do_POST(self) -> None:
        path, _ = self._place()
        sent = self._body()
        if path == "/api/functions":
            known = {"min_neg_points": -1, "startswith_box": False, "startswith_box_optional": False, **sent}
            self.server.answers[f"{path}/{FUNCTION}"] = {**known, "id": FUNCTION}
            return self._answer_json({**known, "id": FUNCTION}, 201)
        if path == f"{QUEUE}/acquire":
            waits = self.server.asked if sent["request_category"] == "interactive" else []
            assigned: Any = {"ar_id": "request", "ar_params": waits.pop(0)} if waits else None
            if assigned is not None and assigned["ar_params"].get("states") == "last":
                assigned["ar_params"]["states"] = self.server.results[-1]["states"]
            return self._answer_json({"ar_assignment": assigned})
        if path == f"{QUEUE}/request/complete":
            self.server.results.append(sent)
            return self._answer_json({})
        return self._refuse(str(sent))

    def log_message(self, *_: object) -> None:
        pass

    def _place(self) -> tuple[str, dict[str, list[str]]]:
        address = urlsplit(self.path)
        return unquote(address.path).rstrip("/"), parse_qs(address.query)

    def _body(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer_json(self, value: Any, status: int = 200) -> None:
        self._answer(json.dumps(value).encode(), "application/vnd.cvat+json", status)

    def _answer(self, content: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, about: str = "") -> None:
        self.server.unknown.append(f"{self.command} {self.path} {about}")
        self._answer_json({}, 404)


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
