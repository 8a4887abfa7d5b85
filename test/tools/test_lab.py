"""Measurements of maintainers, without a Triton."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tools.lab import benchmark_everything as everything
from tools.lab.benchmark_everything import OFFICIAL

pytest.importorskip("psutil")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.nightly

from tools.lab import overload  # noqa: E402
from triton_sam.benchmark.results import Results  # noqa: E402
from triton_sam.benchmark.timing import Crowd  # noqa: E402


class Users:
    """Users whose single clicks take the given milliseconds."""

    def __init__(self, alone):
        self.alone = iter(alone)

    def click(self, user, number):
        """Never called, because crowds are made up."""

    def click_alone(self):
        return next(self.alone)


@pytest.mark.parametrize(("timeout", "key"), [(60.0, "recovered_s"), (0.0, "not_recovered_s")])
def test_an_overload_tells_whether_the_server_recovered(monkeypatch, timeout, key):
    crowds = iter([Crowd([[1.0]], 1.0), Crowd([[2.0], []], 1.0, refused_ms=[1.0])])
    alone = [1.0] * 10 + [9.0] + ([1.5] * 3 if timeout else [9.0] * 100)
    monkeypatch.setattr(overload, "RECOVERY_TIMEOUT", timeout)
    monkeypatch.setattr(overload, "crowd", lambda *_: next(crowds))
    monkeypatch.setattr(overload, "_users", lambda *_: contextlib.nullcontext(Users(alone)))
    monkeypatch.setattr(overload, "max_pending_clicks", lambda *_: 2)
    results = Results({})
    overload.measure_overload(SimpleNamespace(protocols=["http"], pid=None), results, True, 64, 1.0)
    assert [row.what for row in results.rows] == ["before", "half load", "accepted", "refused", "after"]
    assert key in results.rows[-1].more


SERVER = SimpleNamespace(grpc_url="grpc://localhost:1")


@pytest.fixture
def image(tmp_path):
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
