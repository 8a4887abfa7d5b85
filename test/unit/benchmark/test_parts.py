"""The parts of `triton-sam benchmark` that need no server: users, rounds, thresholds, reports and comparisons."""

import contextlib
import json
import sys
import time
from types import SimpleNamespace

import pytest

from triton_sam import errors
from triton_sam.cli import main

pytest.importorskip("psutil")
from support.benchmark_results import make_results

from triton_sam.benchmark import diff, load, machine, overload, timing
from triton_sam.benchmark.progress import Progress
from triton_sam.benchmark.report import make_document, write_report
from triton_sam.benchmark.result_file import to_json
from triton_sam.benchmark.results import Row, Times
from triton_sam.benchmark.schema import problem
from triton_sam.benchmark.settings import Settings
from triton_sam.benchmark.thresholds import judge
from triton_sam.benchmark.timing import Crowd, crowd, take_turns


def row(section, what, who, *values, protocol=None, size=None, per_second=None, **more):
    return Row(section, what, who, protocol, size, Times.of(values), per_second, more)


def test_bars_compare_medians_with_their_limits():
    rows = [
        row("comparison", "click", "inprocess", 20.0), row("comparison", "click", "session", 26.0, protocol="http"),
        row("comparison", "click", "naive", 52.0, protocol="http"),
        row("comparison", "encode", "inprocess", 1000.0),
        row("comparison", "encode", "session", 1200.0, protocol="http"),
        row("comparison", "encode", "torch", 2400.0),
        row("comparison", "click over a link", "session", 30.0, protocol="http"),
        row("comparison", "click over a link", "naive", 180.0, protocol="http"),
        row("throughput", "clicks", "session", 20.0, protocol="http", size=1, per_second=50.0),
        row("throughput", "clicks", "session", 150.0, 250.0, protocol="http", size=8, per_second=49.0,
            least_calls_of_a_user=1.0, most_calls_of_a_user=10.0, errors=0.0, seconds=1.0),
    ]  # fmt: skip
    thresholds = {threshold.name: threshold for threshold in judge(make_results(rows))}
    ok = {name.partition(":")[0]: each.ok for name, each in thresholds.items() if not name.startswith("8 users")}
    assert thresholds["click, http: 1.15 x the decode in process + 3 ms"].limit == pytest.approx(26.0)
    assert ok["click, http"] is False  # 52 / 26 = 2.0 of 2.3, under the same prefix
    assert thresholds["encode, http: to resize + encode in process"].ok is False
    assert thresholds["encode, http: faster than PyTorch"].value == pytest.approx(2.0)
    assert thresholds["encode, http: faster than PyTorch"].ok
    over_link = thresholds["click over a link of 1 Gbit/s and 1 ms, http: faster than the naive client"]
    assert over_link.ok
    assert over_link.value == pytest.approx(6.0)
    assert [each.ok for name, each in thresholds.items() if name.startswith("8 users")] == [
        False,
        False,
        False,
    ]
    slower = make_results(rows)
    slower.about["settings"]["link"] = "100mbit,1ms"
    assert not any("link" in threshold.name for threshold in judge(slower))  # the threshold is for one rate and delay
    sam1 = {threshold.name: threshold for threshold in judge(make_results(rows, "sam1"))}
    assert not sam1["encode, http: faster than PyTorch"].ok


def test_diff_tells_which_measurements_changed_clearly():
    before = make_results([row("latency", "click", "session", 40.0, 44.0), row("latency", "read", "client", 5.0, 9.0),
                           row("throughput", "clicks", "session", 1.0, size=1, per_second=10.0)])  # fmt: skip
    after = make_results([row("latency", "click", "session", 20.0, 22.0), row("latency", "read", "client", 6.0, 8.0),
                          row("throughput", "clicks", "session", 1.0, size=1, per_second=20.0),
                          row("latency", "new", "client", 1.0)])  # fmt: skip
    changes = {change.row.what: change for change in diff.compare(before, after)}
    assert set(changes) == {"click", "read", "clicks"}
    assert changes["click"].faster == pytest.approx(2.0)
    assert changes["click"].clear
    assert not changes["read"].clear
    assert changes["clicks"].faster == pytest.approx(2.0)
    after.about["machine"] = {**after.about["machine"], "cpu": "y"}
    assert diff.differences(before, after) == ["processor: x before, y after"]
    assert "processor: x before" in diff.table(before, after)


def test_diff_compares_times_where_a_rate_says_nothing_about_speed():
    """The newer result has half as many refusals per second, and as many clicks of users who pause.

    Each call takes half the time, so both became twice as fast.
    """
    sections = {"refused": ("overload", 64, 100.0, 50.0), "clicks, 1 s between": ("load", 8, 7.0, 7.0)}

    def make(ms, which):
        return make_results([
            row(section, what, "session", ms, protocol="grpc", size=size, per_second=rates[which])
            for what, (section, size, *rates) in sections.items()
        ])  # fmt: skip

    changes = diff.compare(make(10.0, 0), make(5.0, 1))
    assert [(change.unit, change.faster) for change in changes] == [("ms", 2.0), ("ms", 2.0)]
    assert " ms " in diff.table(make(10.0, 0), make(5.0, 1))


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


def test_a_crowd_counts_users_and_errors():
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
        crowd(2, lambda *_: (_ for _ in ()).throw(errors.InferenceError("never")), 1.0)


def test_a_crowd_ends_with_its_last_call_and_not_with_the_pause_after_it(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_AFTER_REFUSAL", 60.0)

    def act(user, number):
        if number:
            raise errors.ServerBusyError("BUSY")

    began = time.perf_counter()
    found = crowd(1, act, 3.0)
    assert 3 <= time.perf_counter() - began < 30
    assert (len(found.all_ms), len(found.refused_ms)) == (1, 1)
    assert found.seconds < 2.5


class Users:
    """Users whose single clicks take the given milliseconds."""

    def __init__(self, alone):
        self.alone = iter(alone)

    def click(self, user, number):
        """Never called, because crowds are made up."""

    def click_alone(self):
        return next(self.alone)


def measure_overload(monkeypatch, results, crowds, alone):
    made_up = iter(crowds)
    monkeypatch.setattr(overload, "crowd", lambda *_: next(made_up)())
    monkeypatch.setattr(overload, "_users", lambda *_: contextlib.nullcontext(Users(alone)))
    target = SimpleNamespace(protocols=["http"], pid=None, max_pending_clicks=lambda session: 2)
    with Progress("overload", 3, quiet=True) as progress:
        overload.measure_overload(target, Settings(), results, True, progress)


def calm():
    return Crowd([[1.0]], 1.0)


def busy():
    return Crowd([[2.0], []], 1.0, refused_ms=[1.0])


def test_an_overload_that_is_interrupted_keeps_its_steps(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    results = make_results([])
    with pytest.raises(KeyboardInterrupt):
        measure_overload(monkeypatch, results, [calm, interrupted], [1.0] * 10)
    assert [row.what for row in results.rows] == ["before", "half load"]


def test_a_server_that_recovers(monkeypatch):
    results = make_results([])
    measure_overload(monkeypatch, results, [calm, busy], [1.0] * 10 + [9.0] + [1.5] * 3)
    (after,) = results.of("overload", "after")
    assert after.ms.n == 4
    assert 0 <= after.more["recovered_s"] < 30
    assert "as fast as before 0.0" in make_document(results, {}).to_markdown()


def test_a_server_that_does_not_recover_is_reported_so(monkeypatch):
    monkeypatch.setattr(overload, "RECOVERY_TIMEOUT", 0.0)
    results = make_results([])
    measure_overload(monkeypatch, results, [calm, busy], [1.0] * 10 + [9.0] * 100)
    (after,) = results.of("overload", "after")
    assert set(after.more) == {"not_recovered_s"}
    text = make_document(results, {}).to_markdown()
    assert "not as fast as before within" in text
    assert any("as fast as before, at least" in threshold.name for threshold in judge(results))
    assert problem(json.loads(json.dumps(to_json(results)))) == ""


def test_a_note_tells_of_a_load_without_a_click(monkeypatch):
    monkeypatch.setattr(load, "crowd", lambda *_: Crowd([[]]))
    client = SimpleNamespace(set_image=lambda *_: None, predict=lambda *_: None)
    target = SimpleNamespace(
        protocols=["http"], pid=None, pair=SimpleNamespace(decoder="d"), content=b"", points=lambda: iter([(1, 1)]),
        embeddings_place=lambda session: "client", client=lambda *_: contextlib.nullcontext(client),
        statistics=lambda model: {"count": 1.0, "queue": 0.0, "compute_infer": 0.0},
    )  # fmt: skip
    results = make_results([])
    with Progress("load", 1, quiet=True) as progress:
        load.measure_load(target, Settings(think=600.0), results, False, progress)
    assert results.rows == []
    assert "No user of the load test clicked" in results.notes[0]


def fail(*_):
    raise RuntimeError("Not Supported")


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
    monkeypatch.setattr(machine, "_has_gpu", lambda: True)
    assert machine.describe_machine()["gpus"] == gpus
    assert machine._gpu_use() == use


@pytest.fixture
def no_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "triton_sam.benchmark.plots", raising=False)


def test_results_are_written_before_the_plots(no_matplotlib, tmp_path):
    with pytest.raises(errors.MissingDependencyError, match="matplotlib is missing"):
        write_report(make_results([row("latency", "click", "session", 1.0, protocol="http")]), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "result.csv"}


def test_a_missing_matplotlib_is_noticed_before_anything_is_measured(no_matplotlib, tmp_path, capsys):
    assert main(["benchmark", "-q", "--url", "localhost:1", "--out", str(tmp_path / "out")]) == 1
    assert "matplotlib is missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
