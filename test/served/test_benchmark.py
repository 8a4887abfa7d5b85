"""`triton-sam benchmark` against a real local Triton: its measurements, files, comparisons and errors.

The tests that need no server are in test/unit/benchmark.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image
from support.conditions import PATIENCE
from support.session_requests import serve

from triton_sam._common.bundle import bundled
from triton_sam._common.extras import find_package
from triton_sam.benchmark.results import table
from triton_sam.benchmark.run import begin, measure
from triton_sam.benchmark.settings import SECTIONS, BenchmarkSettings
from triton_sam.benchmark.target import Target, find_weights, make_weights
from triton_sam.cli import main
from triton_sam.commands.benchmark import _write

SHORT = BenchmarkSettings(
    duration=0.2, compare=("inprocess", "naive"), concurrency=(1, 2), boxes=(1, 2), users=2, think=0.1,
    load_seconds=4, least_rounds=4,
)  # fmt: skip


ENCODERS = BenchmarkSettings(0.1, ("comparison",), ("torch-bf16", "inprocess", "openvino"), least_rounds=1)
"""Compares the implementations that need weights."""


def measured(settings, urls, **server):
    """Return the results of a run."""
    target = Target("sam2", None, urls, bundled("test/images") / "coffee.jpg", **server)
    found = begin(target, settings, "triton-sam benchmark ...")
    measure(target, settings, found, quiet=True)
    target.close()
    return found


@pytest.fixture(scope="module")
def decoding(toy_repository):
    """A server whose session model runs the decoder."""
    with serve(toy_repository, decoder_in_session=True) as running:
        yield running


@pytest.fixture(scope="module")
def results(server, toy_repository):
    """Return the results of one short run of every section over HTTP."""
    weights = find_weights("sam2", toy_repository, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton_sam.benchmark.speculative.MOUSE_SECONDS", 0.5)
        urls = {"http": server.http_url}
        return measured(SHORT, urls, weights=weights, pid=server.pid, metrics_url=server.metrics_url)


@pytest.mark.slow
def test_everything_is_measured(results):
    assert results.complete
    assert {row.section for row in results.rows} == set(SECTIONS) - {"words"}  # SAM2 has no words
    stages = {(row.what, row.who) for row in results.of("latency")}
    assert stages >= {("read", "client"), ("resize", "client"), ("upload", "session"), ("encode", "session")}
    assert stages >= {("first click", "session"), ("click", "session"), ("click, full-size mask", "session")}
    assert stages >= {("click", "request"), ("encode", "request")}
    for operation in ("encode", "click", "click, full-size mask"):
        assert {row.who for row in results.of("comparison", operation)} == {"inprocess", "naive", "session"}
    assert {row.size for row in results.of("throughput", "clicks")} == {1, 2}
    assert {row.size for row in results.of("throughput", "boxes, one call")} == {1, 2}
    assert all(row.ms is None or 0 < row.ms.min <= row.ms.median <= row.ms.max for row in results.rows)
    assert len({(row.section, row.what, row.who, row.protocol, row.size) for row in results.rows}) == len(results.rows)

    times = {row.what: row.ms for row in results.of("latency") if (row.who, row.protocol) == ("session", "http")}
    assert times["upload"].min < times["encode"].min / 2  # an upload of a known image is looked up by its hash


@pytest.mark.slow
def test_load_includes_the_servers_own_metrics(results):
    (row,) = results.of("load")
    assert row.ms.n >= 1
    assert row.more["errors"] == 0
    assert row.more["server_memory_mb"] > 10
    assert row.more["server_cpu_percent"] > 0
    assert row.more["decoder_compute_ms"] > 0
    assert row.more["session_queue_ms"] >= 0
    # The decoder works inside of the session model, and both inside of the call.
    assert row.more["decoder_compute_ms"] < row.more["session_compute_ms"] < 1.2 * row.ms.max


@pytest.mark.slow
@pytest.mark.parametrize("knows_metrics", [True, False])
def test_figures_of_a_session_model_that_runs_its_decoder(decoding, monkeypatch, knows_metrics):
    """Triton counts no decodes of it, and no time. Without the metrics of the server, a figure is left out."""
    monkeypatch.setattr("triton_sam.benchmark.speculative.MOUSE_SECONDS", 0.1)
    monkeypatch.setattr("triton_sam.benchmark.speculative.LANES", 1)
    if knows_metrics:  # which a busy server counts late
        monkeypatch.setattr("triton_sam.benchmark.target._PATIENCE", PATIENCE)
        monkeypatch.setattr("triton_sam.benchmark.speculative.SETTLE_SECONDS", 2)
    settings = BenchmarkSettings(sections=("speculative", "load"), users=6, think=0, load_seconds=2)
    metrics_url = decoding.metrics_url if knows_metrics else None
    found = measured(settings, {"grpc": decoding.grpc_url}, metrics_url=metrics_url)
    rows = {row.what: row.more for row in found.of("speculative")}
    naive = next(more for what, more in rows.items() if "none cancelled" in what)
    assert naive.get("computed") == (naive["sent"] if knows_metrics else None)
    (load,) = found.of("load")
    names = {name for name in load.more if name.endswith(("queue_ms", "compute_ms"))}
    assert names == ({"session_queue_ms", "session_compute_ms"} if knows_metrics else set())
    if knows_metrics:  # six users, and one decode at a time
        whole = load.more["session_queue_ms"] + load.more["session_compute_ms"]
        assert 0.5 * load.ms.min < whole < 1.2 * load.ms.max
        assert load.more["session_queue_ms"] > load.more["session_compute_ms"]
    assert not [note for note in found.notes if "differs" in note]
    assert f"computed {naive['sent']:.0f}" in table(found) or not knows_metrics


@pytest.mark.slow
def test_the_files_of_a_run_have_every_row(results, tmp_path):
    assert {path.name for path in _write(results, tmp_path)} == {"result.json", "table.txt", "plot.png"}
    with Image.open(tmp_path / "plot.png") as image:
        image.load()
        assert len(image.convert("L").getcolors(256)) > 10
    data = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert [row["what"] for row in data["rows"]] == [row.what for row in results.rows]
    assert data["rows"][0]["ms"]["median"] == pytest.approx(results.rows[0].ms.median, rel=1e-4)
    assert data["model"]["family"] == "sam2"
    text = (tmp_path / "table.txt").read_text(encoding="utf-8")
    assert all(row.what in text for row in results.rows)
    assert "x limit" in text
    assert "computed 1" in text  # of the positions that were queued at once


def test_unknown_weights_leave_contenders_out_with_a_reason(server):
    found = measured(ENCODERS, {"http": server.http_url})
    assert {row.who for row in found.rows} == {"session"}
    assert sum("--weights" in note for note in found.notes) == 3


@pytest.mark.nightly
def test_bf16_by_torch_and_by_openvino(server, toy_repository):
    """OpenVINO is no part of the environment for tests, so the note says how to install it where it is missing."""
    pytest.importorskip("sam2")
    found = measured(ENCODERS, {"http": server.http_url}, weights=find_weights("sam2", toy_repository, None))
    encoded = {row.who for row in found.of("comparison", "encode")}
    answered = {row.who for row in found.of("comparison", "click, full-size mask")}
    if find_package("openvino") is None:
        assert any("openvino was left out" in note and "pip install" in note for note in found.notes)
        encoded.add("openvino")
        answered.add("openvino")
    assert encoded == answered == {"torch-bf16", "inprocess", "openvino", "session"}


@pytest.mark.slow
def test_ctrl_c_keeps_the_measurements(server, tmp_path):
    users = ",".join(map(str, range(1, 61)))  # a second each, so that it does not end before Ctrl-C
    options = f"--url {server.http_url} --only latency,throughput --duration 1 --concurrency {users}".split()
    command = [sys.executable, "-m", "triton_sam", "benchmark", *options, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=bundled("."))
    seen = ""
    deadline = time.monotonic() + 240
    while "clicks, http, 2 users" not in seen and time.monotonic() < deadline:
        seen += os.read(process.stderr.fileno(), 4096).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "latency" in out
    kept = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert not kept["complete"]
    assert [row for row in kept["rows"] if row["section"] == "latency"]
    users = {row["size"] for row in kept["rows"] if row["section"] == "throughput"}
    assert 1 in users
    assert 60 not in users
    assert "stopped before its end" in out


def test_weights_are_found_and_made(tmp_path):
    repository = make_weights("sam2", "micro", tmp_path, progress=False).repository
    weights = find_weights("sam2", repository, None)
    assert weights.metadata["triton_sam.config"] == "sam2.1_hiera_micro"
    assert weights.checkpoint is not None
    assert weights.checkpoint.name == "sam2.1_hiera_micro.pt"
    assert weights.describe() == "sam2.1_hiera_micro"
    assert find_weights("sam2", repository, "sam2.1_large") is None
    assert find_weights("sam1", repository, None) is None


@pytest.mark.nightly
@pytest.mark.export
def test_random_weights_and_the_official_predictor(tmp_path, capsys):
    pytest.importorskip("sam2")
    arguments = ["benchmark", "sam2", "--local", "--weights", "random:micro", "--duration", "0.1", "--only"]
    assert main([*arguments, "comparison", "--out", str(tmp_path), "-q"]) == 0
    capsys.readouterr()
    found = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    encoded = [row for row in found["rows"] if row["what"] == "encode"]
    assert {row["who"] for row in encoded} == {"torch", "inprocess", "naive", "session"}
    assert {row["protocol"] for row in encoded if row["who"] == "session"} == {"http", "grpc"}
    assert "random seed 0" in found["model"]["weights"]
    shutil.rmtree(tmp_path)
