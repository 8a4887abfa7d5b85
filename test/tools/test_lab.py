"""Measurements of maintainers, without a Triton."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("psutil")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.nightly

from tools.lab import benchmark_everything as everything  # noqa: E402
from tools.lab import overload  # noqa: E402
from triton_sam.benchmark.results import Results  # noqa: E402
from triton_sam.benchmark.timing import Crowd  # noqa: E402


def test_an_overload_tells_whether_the_server_recovered(monkeypatch):
    crowds = iter([Crowd([[1.0]], 1.0), Crowd([[2.0], []], 1.0, refused_ms=[1.0])])
    alone = iter([1.0] * 10 + [9.0] + [1.5] * 3)  # milliseconds of single clicks
    users = SimpleNamespace(click=None, click_alone=lambda: next(alone))
    monkeypatch.setattr(overload, "crowd", lambda *_: next(crowds))
    monkeypatch.setattr(overload, "_users", lambda *_: contextlib.nullcontext(users))
    monkeypatch.setattr(overload, "max_pending_clicks", lambda *_: 2)
    results = Results({})
    overload.measure_overload(SimpleNamespace(protocols=["http"], pid=None, who="session"), results, 64, 1.0)
    assert [row.what for row in results.rows] == ["before", "half load", "accepted", "refused", "after"]
    assert "recovered_s" in results.rows[-1].more


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
        self.clock, self.seconds, self.is_first = clock, seconds, True

    def __call__(self, image, points_per_side, **parameters) -> list[dict]:
        assert image.shape == (48, 64, 3)
        self.clock.now += self.seconds * points_per_side**2 * (10 if self.is_first else 1)
        self.is_first = False
        scores = np.linspace(0.1, 0.9, points_per_side**2)
        return [{"predicted_iou": score, "stability_score": score / 2} for score in scores]


def test_searches_are_measured_in_turns_after_a_small_one(tmp_path, monkeypatch):
    image = tmp_path / "image.png"
    Image.new("RGB", (64, 48)).save(image)
    clock = Clock()
    runners = {everything.OFFICIAL: Runner(clock, 0.4), "ours": Runner(clock, 0.1)}
    monkeypatch.setattr(everything, "_runners", lambda server, stack: runners)
    monkeypatch.setattr(everything, "time", clock)
    server = SimpleNamespace(grpc_url="grpc://localhost:1")
    speeds = list(everything.measure_searches(server, image, (2, 3), 2, lambda _: None))
    assert [(one.runner, one.points, one.masks) for one in speeds] == [
        *((everything.OFFICIAL, 2, 4), ("ours", 2, 4)),
        *((everything.OFFICIAL, 3, 9), ("ours", 3, 9)),
    ]
    assert [one.median for one in speeds] == pytest.approx([1.6, 0.4, 3.6, 0.9])
    assert [one.ratio for one in speeds] == pytest.approx([1, 4, 1, 4])
