"""A SAM service in a thread of the test process, on a free port or without a port, or as a program."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from support.conditions import PATIENCE, wait_until
from support.programs import answers

from triton_sam.families import get_family
from triton_sam.local_server.ports import choose_ports
from triton_sam.service.app import create_app
from triton_sam.service.connections import Lingering
from triton_sam.service.engine import Engine, Pair
from triton_sam.service.settings import ServiceSettings

NOBODY = "http://127.0.0.1:9"
"""Nothing listens there."""


@dataclass
class RunningService:
    """A service's URL, its application, and a client with a long timeout."""

    url: str
    app: FastAPI
    http: httpx.Client

    def upload(self, content: bytes, **query: str) -> dict:
        answer = self.http.post("/v1/images", files={"image": ("image", content)}, params=query)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def metric(self, name: str) -> float:
        """Return a metric of /metrics, summed over its labels."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def made_up_models(*, words: bool = False, videos: bool = False) -> Callable[[Engine], dict[str, Pair]]:
    """Return a fake of Engine._pairs: "sam2", which tracks with ``videos``, and with ``words`` "sam3" for words."""
    pairs = {"sam2": Pair("sam2", get_family("sam2"), "1", keeps_images=True, tracks_videos=videos)}
    if words:
        pairs["sam3"] = Pair("sam3", get_family("sam3"), "1", keeps_images=True, finds_concepts=True)
    return lambda engine: pairs


@contextlib.contextmanager
def service_without_triton(**options: Any) -> Iterator[TestClient]:
    """Yield a client of an application in this process, without a port. Its Triton never answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton_sam.service.engine.WATCH_SECONDS", 3600)
        app = create_app(ServiceSettings(url=NOBODY, **options))
        with TestClient(app, base_url="http://localhost") as client:
            yield client


@contextlib.contextmanager
def running_service(
    triton_url: str, fakes: Mapping[str, Callable[..., Any]] | None = None, **options: Any
) -> Iterator[RunningService]:
    """Run a service over a Triton. ``fakes`` replace methods of only this service's engine."""
    app = create_app(ServiceSettings(url=triton_url, **options))
    app.state.engine._control._timeout = PATIENCE  # a Triton that pauses for seconds is not away
    for name, fake in (fakes or {}).items():
        setattr(app.state.engine, name, functools.partial(fake, app.state.engine))
    config = uvicorn.Config(
        Lingering(app),
        log_config=None,
        access_log=False,
        ws="websockets-sansio",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=4 * int(PATIENCE),  # otherwise a request may meet the end of its connection
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # so that no other process takes the port meanwhile
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            assert server.started
            with httpx.Client(base_url=url, timeout=120) as http:
                yield RunningService(url, app, http)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


# --- calls -----------------------------------------------------------------------------------------------------------

POINT = {"frame": 0, "object_id": 1, "points": [[60, 120]]}


def upload(http, content):
    """Upload a video; return its description."""
    answer = http.post("/v1/videos", files={"video": ("clip.mp4", content)})
    assert answer.status_code == 201, answer.text
    return answer.json()


def events_of(lines):
    """Yield (name, data) of each server-sent event."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def track(http, video, **body):
    """Return all events of tracking a video, which is given by its path."""
    with http.stream("POST", f"{video}/propagate", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events_of(answer.iter_lines()))


def used(service, budget):
    """Return how much of a budget is used."""
    return service.app.state.engine.budgets.__dict__[budget].used


def posted(http, path, body, **options):
    answer = http.post(path, json=body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def upload_in_pieces(http, count, size, **headers):
    """Upload a form without a length, whose file has ``count`` pieces of ``size`` zeros; return the answer."""

    def form():
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        for _ in range(count):
            yield bytes(size)
        yield b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b", **headers}
    return http.post("/v1/images", content=form(), headers=headers)


def problem(answer, status):
    """Check an answer that refuses a request, and return its members."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    members = answer.json()
    assert members["status"] == status
    assert members["title"]
    assert members["detail"]
    assert "Traceback" not in members["detail"]
    assert members["request_id"] == answer.headers["x-request-id"]
    return members


class ServiceProgram:
    """A service over a Triton, which runs until the end of the `with` block.

    Args:
        triton_url: the Triton.
        folder: the folder of its log, in which it works.
        options: further options of the command.
        variables: environment variables.
    """

    def __init__(self, triton_url: str, folder: Path, *options: str, **variables: str) -> None:
        port = choose_ports("127.0.0.1", {"service": 0})["service"]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "service.log"
        self._command = [sys.executable, "-m", "triton_sam", "service", "--port", str(port), "--url", triton_url]
        self._command += options
        self._variables = variables

    def __enter__(self) -> ServiceProgram:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it is healthy."""
        environment = {**os.environ, **self._variables}
        with self.log.open("a") as stream:
            self.process = subprocess.Popen(self._command, stderr=stream, cwd=self.log.parent, env=environment)
        wait_until(lambda: answers(f"{self.url}/health") or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
