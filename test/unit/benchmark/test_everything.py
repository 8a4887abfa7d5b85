"""The measurement of searches for all objects, with runners that answer at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triton_sam.benchmark import everything
from triton_sam.benchmark.everything import ALONE, BESIDE, BESIDE_PARTS, OFFICIAL

SERVER = SimpleNamespace(grpc_url="grpc://localhost:1")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.new("RGB", (64, 48)).save(tmp_path / "image.png")
    return tmp_path / "image.png"


class Clock:
    """A clock that runners move forward."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Runner:
    """Takes more time for each point, finds one mask for each point, and takes ten times as long at first."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.calls: list[dict] = []

    def generate(self, image, points_per_side, **parameters) -> list[dict]:
        assert image.shape == (48, 64, 3)
        is_first = not self.calls
        self.calls.append({"points_per_side": points_per_side, **parameters})
        self.clock.now += self.seconds * points_per_side**2 * (10 if is_first else 1)
        scores = np.linspace(0.1, 0.9, points_per_side**2)
        return [{"predicted_iou": score, "stability_score": score / 2} for score in scores]


def test_searches_are_measured_in_turns_after_a_small_one(image, monkeypatch):
    clock = Clock()
    runners = {OFFICIAL: Runner(clock, 0.4), "ours": Runner(clock, 0.1)}
    monkeypatch.setattr(everything, "_runners", lambda server, stack: runners)
    monkeypatch.setattr(everything, "time", clock)
    said: list[str] = []
    speeds = list(everything.measure_searches(SERVER, image, (2, 3), 2, said.append))
    assert [(one.runner, one.points, one.masks) for one in speeds] == [
        (OFFICIAL, 2, 4), ("ours", 2, 4), (OFFICIAL, 3, 9), ("ours", 3, 9),
    ]  # fmt: skip
    assert [one.median for one in speeds] == pytest.approx([1.6, 0.4, 3.6, 0.9])
    assert [one.ratio for one in speeds] == pytest.approx([1, 4, 1, 4])
    assert said[:5] == [
        *(f"4 x 4 points before the measurement, {name}" for name in (OFFICIAL, "ours")),
        f"2 x 2 points, round 1, {OFFICIAL}",
        "1.6 s, 4 masks",
        "2 x 2 points, round 1, ours",
    ]
    assert {tuple(call) for call in runners["ours"].calls} == {
        ("points_per_side", "pred_iou_thresh", "stability_score_thresh")
    }
    assert runners["ours"].calls[0]["pred_iou_thresh"] == pytest.approx(0.5)  # half of the official masks pass


class FakeClient:
    """Answers clicks, and remembers how many searches ran at the time of each."""

    def __init__(self, url: str) -> None:
        self.beside: list[int] = []

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def set_image(self, image) -> SimpleNamespace:
        return SimpleNamespace(image_size=(64, 48))

    def segment(self, points, labels) -> None:
        ((x, y),) = points
        assert 0 <= x <= 64
        assert 0 <= y <= 48
        self.beside.append(FakeJob.running)


class FakeJob:
    running = 0
    error: Exception | None = None

    def __init__(self, url: str) -> None:
        self.closed = False

    def generate(self, image, points_per_side) -> list:
        assert points_per_side == 7
        if FakeJob.error is not None:
            raise FakeJob.error
        FakeJob.running = 1
        started.set()
        time.sleep(0.002)
        FakeJob.running = 0
        return []

    def close(self) -> None:
        self.closed = True


started = threading.Event()


@pytest.fixture
def clicks(monkeypatch):
    clients: list[FakeClient] = []

    def client(url: str, timeout: float | None = None) -> FakeClient:
        clients.append(FakeClient(url))
        return clients[-1]

    def sleep(seconds: float) -> None:
        if seconds == 1:  # the wait for the search
            started.wait(5)

    started.clear()
    monkeypatch.setattr(FakeJob, "error", None)
    monkeypatch.setattr(everything, "SAM2TritonClient", client)
    monkeypatch.setattr(everything, "SessionJob", FakeJob)
    monkeypatch.setattr(everything, "Parts", FakeJob)
    monkeypatch.setattr(everything, "time", SimpleNamespace(sleep=sleep, perf_counter=time.perf_counter))
    return clients


def test_clicks_are_measured_alone_and_beside_a_search(clicks, image):
    speeds = everything.measure_clicks(SERVER, image, 8, 7)
    assert [(one.situation, one.clicks) for one in speeds] == [(ALONE, 8), (BESIDE, 8), (BESIDE_PARTS, 8)]
    assert all(0 <= one.median <= one.p95 for one in speeds)
    client, _ = clicks
    assert len(client.beside) == 5 + 8 + 8 + 8  # the first ones do not count
    assert not any(client.beside[:13])
    assert started.is_set()
