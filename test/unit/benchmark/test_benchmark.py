"""The parts of `triton-sam benchmark` that need no server: users, rounds, stages, the table, words."""

import contextlib
import itertools
import threading
import time
from unittest.mock import Mock

import pytest

from triton_sam import SAM2TritonClient, errors
from triton_sam._common.bundle import bundled

pytest.importorskip("psutil")

from types import SimpleNamespace

from triton_sam.benchmark import latency, machine, timing
from triton_sam.benchmark.results import Results, Row, Times, table
from triton_sam.benchmark.settings import BenchmarkSettings
from triton_sam.benchmark.target import Target
from triton_sam.benchmark.timing import Progress, crowd, take_turns
from triton_sam.families import get_family

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


def test_an_interrupted_call_has_no_time():
    times: dict[str, list[float]] = {}
    acts = {"first": lambda: None, "second": Mock(side_effect=KeyboardInterrupt)}
    with pytest.raises(KeyboardInterrupt):
        take_turns(acts, times, 0.0, min_rounds=1, warm_up=False)
    assert times.keys() == {"first"}


def test_contenders_take_turns_for_the_smallest_number_of_rounds():
    calls, times = [], {}
    acts = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    take_turns(acts, times, 0.0, min_rounds=3)
    assert calls == ["a", "b"] * 4  # one round to warm up
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_a_crowd_counts_users_and_errors(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_AFTER_ERROR", 0.0)
    done = set()  # when it has all users, the time is over
    monkeypatch.setattr(timing, "time", Mock(perf_counter=lambda: time.perf_counter() + 3600 * (len(done) == 3)))

    def act(user, number):
        time.sleep(0.01)
        if user == 1 and number == 0:
            raise errors.InferenceError("no")
        done.add(user)

    found = crowd(3, act, 3600.0)
    assert len(found.ms) == 3
    assert min(map(len, found.ms)) >= 1
    assert found.errors == ["no"]
    assert found.per_second > 0
    monkeypatch.setattr(timing, "time", Mock(perf_counter=itertools.count().__next__))
    with pytest.raises(errors.InferenceError):
        crowd(2, Mock(side_effect=errors.InferenceError("never")), 9.0)


def test_a_crowd_ends_with_its_last_call_and_not_with_the_pause_after_it(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_AFTER_REFUSAL", 60.0)
    times = [0.0]  # only calls and pauses move this clock
    stop = Mock(wait=lambda seconds: times.append(times[-1] + seconds))
    monkeypatch.setattr(timing, "threading", Mock(Event=lambda: stop, Thread=threading.Thread))
    monkeypatch.setattr(timing, "time", Mock(perf_counter=lambda: times[-1]))

    def act(user, number):
        times.append(times[-1] + 0.5)
        if number:
            raise errors.ServerBusyError("BUSY")

    found = crowd(1, act, 2.0)
    assert (len(found.all_ms), len(found.refused_ms), found.seconds, times[-1]) == (1, 1, 1.0, 2.0)


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
    target.has_session, results = True, Results({})
    with Progress("latency", latency.steps(target), quiet=True) as progress:
        latency.measure_stages(target, BenchmarkSettings(0.01, ("latency",), least_rounds=1), results, progress)
    assert {row.protocol for row in results.rows} == {None, protocol}
    assert any((row.who, row.protocol) == ("session", protocol) for row in results.of("latency", "click"))


class Client(contextlib.AbstractContextManager):
    """A search takes 2 ms, and 0.5 ms more for each word."""

    def __init__(self) -> None:
        self.searches = []

    def __exit__(self, *_) -> None:
        return

    def find(self, words, *, image, **parameters):
        self.searches.append((words, image, parameters))
        time.sleep(0.002 + 0.0005 * len(words))


class Reference:
    def __init__(self) -> None:
        self.searches = []

    def set_image(self, image) -> None:
        assert image.mode == "RGB"

    def find(self, words, *, threshold):
        self.searches.append((words, threshold))


def measured(*, family="sam3", finds=True, weights=None, session=True):
    client, results, seen = Client(), Results({}), iter(range(1000))
    target = SimpleNamespace(
        protocols=["http", "grpc"], pair=SimpleNamespace(family=get_family(family)), family=family, weights=weights,
        content=(bundled("test/images") / "coffee.jpg").read_bytes(), finds_concepts=lambda: finds,
        client=lambda protocol: client, has_session=session, unseen_content=lambda: next(seen),
    )  # fmt: skip
    settings = BenchmarkSettings(duration=0.01, sections=("words",), least_rounds=2)
    with Progress("words", 1, quiet=True) as progress:
        latency.measure_words(target, settings, results, progress)
    return results, client


def test_one_word_and_twenty_of_images_and_words_that_are_new():
    reference = Reference()
    weights = SimpleNamespace(concept_reference=lambda family: reference)
    results, client = measured(weights=weights)
    keys = {(row.what, row.who, row.protocol, row.size) for row in results.rows}
    assert {key for key in keys if key[1] == "session"} == {
        (what, "session", protocol, size)
        for what in ("no instance", "two instances a word")
        for protocol in ("http", "grpc")
        for size in (1, 20)
    }
    assert {key for key in keys if key[1] == "torch"} == {("no instance", "torch", None, size) for size in (1, 20)}
    assert all(row.ms.n == 2 for row in results.rows)  # and one round before them, which does not count
    words = [word for searched, *_ in (*client.searches, *reference.searches) for word in searched]
    assert len(set(words)) == len(words) == 3 * (2 * 2 + 1) * 21
    images = [image for _, image, _ in client.searches]
    assert len(set(images)) == len(images)


def test_nothing_is_measured_without_models_for_words():
    assert measured(family="sam2")[0].notes == []
    for options in ({"finds": False}, {"session": False}):
        results, client = measured(**options)
        assert (results.rows, client.searches) == ([], [])
        assert results.notes == ["No words were searched: set the models up with `triton-sam setup sam3 --concepts`."]
