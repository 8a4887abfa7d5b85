"""The parts of `triton-sam benchmark` that need no server: users, rounds, stages, the table, the machine."""

import contextlib
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from triton_sam import SAM2TritonClient, errors
from triton_sam._common.bundle import bundled

pytest.importorskip("psutil")

from triton_sam.benchmark import latency, machine, throughput, timing
from triton_sam.benchmark.results import Results, Row, Times, table
from triton_sam.benchmark.settings import BenchmarkSettings
from triton_sam.benchmark.target import Target
from triton_sam.benchmark.timing import Crowd, Progress, crowd, take_turns

IMAGE = bundled("test/images") / "coffee.jpg"


def row(section, what, who, *values, protocol=None, size=None, per_second=None, **more):
    return Row(section, what, who, protocol, size, Times.of(values), per_second, more)


def test_the_table_has_ratios_counts_and_notes():
    rows = [
        row("comparison", "click", "inprocess", 20.0),
        row("comparison", "click", "session", 26.0, protocol="http"),
        row("load", "clicks", "session", 1.0, protocol="grpc", size=8, per_second=7.0, errors=0.0),
    ]
    text = table(Results({}, rows, ["torch was left out"], complete=False))
    assert "1.30" in text.splitlines()[2]
    assert "session grpc x8" in text
    assert text.splitlines()[-3:] == [
        "clicks, grpc: errors 0", "This run was stopped before its end.", "torch was left out",
    ]  # fmt: skip


def test_contenders_take_turns_for_the_smallest_number_of_rounds():
    calls, times = [], {}
    acts = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    take_turns(acts, times, 0.0, min_rounds=3)
    assert calls == ["a", "b"] * 4  # one round to warm up
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_an_interruption_leaves_the_rounds_before_it():
    times = {}
    calls = iter(range(100))

    def act():
        if next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_turns({"a": act}, times, 60.0, min_rounds=3, warm_up=False)
    assert len(times["a"]) == 2


def test_a_crowd_counts_users_and_errors(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_AFTER_ERROR", 0.0)

    def act(user, number):
        time.sleep(0.01)
        if user == 1 and number == 0:
            raise errors.InferenceError("no")

    found = crowd(3, act, 1.0)
    assert len(found.ms) == 3
    assert found.min_calls >= 1
    assert found.errors == ["no"]
    assert found.per_second > 0
    with pytest.raises(errors.InferenceError):
        crowd(2, Mock(side_effect=errors.InferenceError("never")), 1.0)


def test_a_crowd_ends_with_its_last_call_and_not_with_the_pause_after_it(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_AFTER_REFUSAL", 60.0)

    def act(user, number):
        if number:
            raise errors.ServerBusyError("BUSY")

    began = time.perf_counter()
    found = crowd(1, act, 2.0)
    assert 2 <= time.perf_counter() - began < 30
    assert (len(found.all_ms), len(found.refused_ms)) == (1, 1)
    assert found.seconds < 2


def test_a_note_tells_of_a_load_without_a_click(monkeypatch):
    monkeypatch.setattr(throughput, "crowd", lambda *_: Crowd([[]]))
    client = SimpleNamespace(set_image=lambda *_: None, predict=lambda *_: None)
    target = SimpleNamespace(
        protocols=["http"], pid=None, pair=SimpleNamespace(decoder="d"), content=b"", points=lambda: iter([(1, 1)]),
        embeddings_place=lambda session: "client", client=lambda *_: contextlib.nullcontext(client),
        statistics=lambda model: {"count": 1.0, "queue": 0.0, "compute_infer": 0.0},
    )  # fmt: skip
    results = Results({})
    with Progress("load", 1, quiet=True) as progress:
        throughput.measure_load(target, BenchmarkSettings(think=600.0), results, False, progress)
    assert results.rows == []
    assert "No user of the load test clicked" in results.notes[0]


fail = Mock(side_effect=RuntimeError("Not Supported"))


def make_nvml(count):
    """Imitate NVML with a GPU that failed, and one that shares the processor's memory."""
    return SimpleNamespace(
        nvmlDeviceGetCount=count,
        nvmlDeviceGetHandleByIndex=lambda index: index or fail(),
        nvmlDeviceGetName=lambda handle: b"GB10",
        nvmlDeviceGetMemoryInfo=fail,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=40),
    )


@pytest.mark.parametrize(("count", "gpus", "use"), [(lambda: 2, ["GB10, driver 580.1"], [40.0]), (fail, [], [])])
def test_a_machine_is_described_by_the_answers_of_its_gpus(monkeypatch, count, gpus, use):
    monkeypatch.setattr(machine, "_nvml", lambda: make_nvml(count))
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    assert machine.describe_machine()["gpus"] == gpus
    assert machine._gpu_use() == use


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_stages_are_recorded_by_protocol_also_over_tls(monkeypatch, protocol):
    target = Target("sam2", None, {protocol: f"{protocol}s://127.0.0.1:9"}, IMAGE)
    monkeypatch.setattr(target, "client", lambda *_: contextlib.nullcontext(Mock(spec=SAM2TritonClient)))
    results = Results({})
    with Progress("latency", latency.steps(target), quiet=True) as progress:
        latency.measure_stages(target, BenchmarkSettings(0.01, ("latency",), least_rounds=1), results, True, progress)
    assert {row.protocol for row in results.rows} == {None, protocol}
    assert results.find("latency", "click", "session", protocol)
