"""A killed model process: the server starts again, and no client notices more than a pause."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.local_server import LocalServer

CLIENTS = 16
SECONDS_TO_HEAL = 10.0
"""Limit from the kill until every model is ready. On a machine so busy that the first start of the same server takes
more than a third of it, the limit is three times that start."""
PATIENCE = 60.0
POINTS = [[[200, 180]], [[120, 90]], [[260, 60]], [[300, 200]]]
KILLED, KILLED_AT_NIGHT = ("sam2_decoder", "sam2"), ("sam2_encoder", "sam2_preprocess")
MODELS = KILLED + KILLED_AT_NIGHT


def stub_of(server: LocalServer, model: str) -> psutil.Process:
    """Return the process of a model."""
    for stub in psutil.Process(server.pid).children():
        if any(f"/{model}/" in word for word in stub.cmdline()):
            return stub
    raise AssertionError(f"{model} has no process")


def metric(server: LocalServer, name: str) -> float:
    """Return the value of a metric, which several session models may report; -1 without it."""
    with urllib.request.urlopen(server.metrics_url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return max((float(line.split()[-1]) for line in lines if line.startswith(name + "{")), default=-1.0)


class Clicker(threading.Thread):
    """A client that clicks until it is told to stop, and compares each answer with the right one."""

    def __init__(
        self, number: int, make: Callable[[], SAM2TritonClient], image: bytes, right: list[np.ndarray]
    ) -> None:
        super().__init__(name=f"clicker-{number}", daemon=True)
        self.answers = 0
        self.wrong = 0
        self.errors: list[Exception] = []
        self.longest = 0.0
        self.stop = threading.Event()
        self._number, self._make, self._image, self._right = number, make, image, right

    def run(self) -> None:
        with self._make() as client:
            client.set_image(self._image)
            while not self.stop.is_set():
                which = (self._number + self.answers) % len(POINTS)
                began = time.monotonic()
                try:
                    logits, _ = client.predict(POINTS[which], [1])
                except Exception as error:
                    self.errors.append(error)
                    continue
                self.longest = max(self.longest, time.monotonic() - began)
                self.wrong += not np.array_equal(logits, self._right[which])
                self.answers += 1


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait for a condition, and return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def content(images: Path) -> bytes:
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture
def server() -> Iterator[LocalServer]:
    began = time.monotonic()
    with LocalServer(bundled("model_repository"), models=["sam2", "sam2_preprocess"]) as running:
        running.seconds_to_start = time.monotonic() - began
        yield running


def urls(server: LocalServer) -> list[tuple[str, str]]:
    """Return the URLs and the places of embeddings that the clients use in turn."""
    return [(server.http_url, "server"), (server.grpc_url, "server"), (server.http_url, "client")]


@pytest.mark.alone  # it measures the time until the models are ready again
@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [*KILLED, *(pytest.param(name, marks=pytest.mark.nightly) for name in KILLED_AT_NIGHT)]
)
def test_clicks_go_on_after_a_model_was_killed(server: LocalServer, content: bytes, model: str) -> None:
    with SAM2TritonClient(server.grpc_url, timeout=PATIENCE) as client:
        client.set_image(content)
        right = [client.predict(points, [1])[0] for points in POINTS]
    places = urls(server)
    clickers = []
    for number in range(CLIENTS):
        # Most clients keep their images on the server. Embeddings in requests are 17 MB each.
        url, place = places[2] if number == CLIENTS - 1 else places[number % 2]
        make = lambda url=url, place=place: SAM2TritonClient(url, timeout=PATIENCE, embeddings=place)  # noqa: E731
        clickers.append(Clicker(number, make, content, right))
    with ExitStack() as stack:
        for clicker in clickers:
            stack.callback(clicker.join, PATIENCE)
            stack.callback(clicker.stop.set)
            clicker.start()
        wait_until(lambda: all(clicker.answers > 1 for clicker in clickers))
        pid = server.pid
        stub_of(server, model).kill()
        began = time.monotonic()
        wait_until(lambda: server.pid != pid)
        detected = time.monotonic() - began
        wait_until(lambda: {served.name for served in server.served_models()} >= set(MODELS))
        healed = time.monotonic() - began
        before = [clicker.answers for clicker in clickers]
        wait_until(lambda: all(c.answers > count + 1 for c, count in zip(clickers, before, strict=True)))
        answered = time.monotonic() - began
    longest = max(clicker.longest for clicker in clickers)
    print(
        f"\n{model}: found after {detected:.1f} s, ready after {healed:.1f} s, all {CLIENTS} clients answered twice "
        f"after {answered:.1f} s, longest click {longest:.1f} s, {sum(c.answers for c in clickers)} clicks; "
        f"the first start took {server.seconds_to_start:.1f} s"
    )
    assert [error for clicker in clickers for error in clicker.errors] == []
    assert sum(clicker.wrong for clicker in clickers) == 0
    assert healed <= max(SECONDS_TO_HEAL, 3 * server.seconds_to_start)
    assert server.restarts == metric(server, "triton_sam_restarts_total") == 1
