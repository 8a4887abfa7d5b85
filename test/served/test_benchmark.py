"""`triton-sam benchmark` against a real local Triton: its measurements, files, comparisons and errors.

The tests that need no server are in test/unit/benchmark.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from PIL import Image

pytest.importorskip("onnx")
from support.session_server import serve

from triton_sam._common.bundle import bundled
from triton_sam._common.extras import find_package
from triton_sam.benchmark.report import make_document, write_report
from triton_sam.benchmark.result_file import from_json, load, to_json
from triton_sam.benchmark.run import begin, measure
from triton_sam.benchmark.schema import problem
from triton_sam.benchmark.settings import SECTIONS, Settings
from triton_sam.benchmark.target import Target
from triton_sam.benchmark.thresholds import judge
from triton_sam.benchmark.weights import find_weights, make_weights
from triton_sam.cli import main

pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

SHORT = Settings(
    duration=0.2, compare=("inprocess", "naive"), concurrency=(1, 2), boxes=(1, 2), users=2, think=0.1,
    load_seconds=1.5, crowd=4, least_rounds=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def decoding(toy_repository):
    """A server whose session model runs the decoder."""
    with serve(toy_repository, decoder_in_session=True) as running:
        yield running


@pytest.fixture(scope="module")
def results(server, toy_repository):
    """Return the results of one short run of every section over HTTP."""
    weights = find_weights("sam2", toy_repository, None)
    image = bundled("test/images") / "coffee.jpg"
    urls = {"http": server.http_url}
    target = Target("sam2", None, urls, image, weights, server.pid, metrics_url=server.metrics_url)
    found = begin(target, SHORT, "triton-sam benchmark ...")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton_sam.benchmark.mouse.MOUSE_SECONDS", 0.5)
        measure(target, SHORT, found, quiet=True)
    target.close()
    return found


@pytest.mark.slow
def test_everything_is_measured(results):
    assert results.complete
    assert {row.section for row in results.rows} == set(SECTIONS) - {"words"}  # SAM2 has no words
    stages = {(row.what, row.who) for row in results.of("latency")}
    assert stages >= {("read", "client"), ("resize", "client"), ("upload", "session"), ("encode", "session")}
    assert stages >= {("first click", "session"), ("click", "session"), ("click, full-size mask", "session")}
    assert stages >= {("click", "request"), ("encode", "request")}
    assert {row.who for row in results.of("comparison", "click over a link")} == {"naive", "session"}
    for operation in ("encode", "click", "click, full-size mask"):
        assert {row.who for row in results.of("comparison", operation)} == {"inprocess", "naive", "session"}
    assert {row.size for row in results.of("throughput", "clicks")} == {1, 2}
    assert {row.size for row in results.of("throughput", "boxes, one call")} == {1, 2}
    assert all(row.ms is None or 0 < row.ms.min <= row.ms.median <= row.ms.max for row in results.rows)
    assert len({row.key for row in results.rows}) == len(results.rows)


@pytest.mark.slow
def test_every_encode_computes_and_an_upload_does_not(results):
    upload = results.find("latency", "upload", "session", "http")
    encode = results.find("latency", "encode", "session", "http")
    assert upload.ms.min < encode.ms.min / 2  # an upload of a known image is looked up by its hash


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
    monkeypatch.setattr("triton_sam.benchmark.mouse.MOUSE_SECONDS", 0.1)
    monkeypatch.setattr("triton_sam.benchmark.speculative.SESSIONS", 1)
    image = bundled("test/images") / "coffee.jpg"
    metrics_url = decoding.metrics_url if knows_metrics else None
    target = Target("sam2", None, {"grpc": decoding.grpc_url}, image, metrics_url=metrics_url)
    settings = Settings(sections=("speculative", "load"), users=6, think=0, load_seconds=2)
    found = begin(target, settings, "a test")
    measure(target, settings, found, quiet=True)
    target.close()
    rows = {row.what: row.more for row in found.of("speculative")}
    naive = next(more for what, more in rows.items() if "none cancelled" in what)
    assert naive.get("computed") == (naive["sent"] if knows_metrics else None)
    (load,) = found.of("load")
    names = {name for name in load.more if name.endswith(("queue_ms", "compute_ms"))}
    assert names == ({"session_queue_ms", "session_compute_ms"} if knows_metrics else set())
    if knows_metrics:  # six users, and one decode at a time
        whole = load.more["session_queue_ms"] + load.more["session_compute_ms"]
        assert whole == pytest.approx(load.ms.median, rel=0.5)
        assert load.more["session_queue_ms"] > load.more["session_compute_ms"]
    assert "none cancelled" in make_document(found, {}).to_markdown()


@pytest.mark.slow
def test_bars_are_judged_where_they_were_measured(results):
    names = [threshold.name for threshold in judge(results)]
    assert any("decode in process" in name for name in names)
    assert any("naive" in name for name in names)
    assert not any("PyTorch" in name for name in names)


@pytest.mark.slow
def test_json_fits_the_schema_and_is_read_back(results):
    data = json.loads(json.dumps(to_json(results)))
    assert problem(data) == ""
    again = from_json(data)
    assert [row.key for row in again.rows] == [row.key for row in results.rows]
    assert again.about["model"] == data["model"]
    for wrong in ({"rows": [{"section": "latency"}]}, {"format": 99}, {"machine": {}}, {"extra": 1}):
        assert problem({**data, **wrong}) != ""


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_files_of_a_report_open(results, tmp_path, capsys):
    paths = write_report(results, tmp_path / "new folder")
    names = {path.name for path in paths}
    plots = {
        f"{name}.{ending}" for name in ("latency", "comparison", "throughput", "boxes") for ending in ("png", "svg")
    }
    assert names == plots | {"result.json", "result.csv", "report.md", "report.html"}
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                assert len(image.convert("L").getcolors(256)) > 10
        elif path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    page = Page()
    page.feed((tmp_path / "new folder" / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    illustrations = [attributes["src"] for tag, attributes in page.seen if tag == "img"]
    assert len(illustrations) == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in illustrations)
    text = (tmp_path / "new folder" / "report.md").read_text(encoding="utf-8")
    for illustration in ("latency.svg", "comparison.svg", "throughput.svg", "boxes.svg"):
        assert f"]({illustration})" in text
    assert "The link is emulated" in text
    assert "1 Gbit/s and delays it by 1 ms" in text
    again = tmp_path / "new folder" / "result.json"
    assert load(again).rows[0].key == results.rows[0].key
    lines = list(csv.DictReader((tmp_path / "new folder" / "result.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == len(results.rows)
    assert float(lines[0]["median_ms"]) == pytest.approx(results.rows[0].ms.median, rel=1e-4)
    assert main(["benchmark", "--diff", str(again), str(again), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["differences"] == []
    assert {change["faster"] for change in read["changes"]} == {1.0}


def test_unknown_weights_leave_contenders_out_with_a_reason(server):
    target = Target("sam2", None, {"http": server.http_url}, bundled("test/images") / "coffee.jpg")
    settings = Settings(0.1, ("comparison",), ("torch", "inprocess"), least_rounds=1)
    found = begin(target, settings, "")
    measure(target, settings, found, quiet=True)
    target.close()
    assert {row.who for row in found.rows} == {"session"}
    assert sum("--weights" in note for note in found.notes) == 2


@pytest.mark.nightly
def test_bf16_by_torch_and_by_openvino(server, toy_repository):
    """OpenVINO is no part of the environment for tests, so the note says how to install it where it is missing."""
    pytest.importorskip("torch")
    pytest.importorskip("sam2")
    weights = find_weights("sam2", toy_repository, None)
    target = Target("sam2", None, {"http": server.http_url}, bundled("test/images") / "coffee.jpg", weights)
    settings = Settings(0.1, ("comparison",), ("torch-bf16", "inprocess", "openvino"), least_rounds=1, link="none")
    found = begin(target, settings, "")
    measure(target, settings, found, quiet=True)
    target.close()
    encoded = {row.who for row in found.of("comparison", "encode")}
    answered = {row.who for row in found.of("comparison", "click, full-size mask")}
    if find_package("openvino") is None:
        assert any("openvino was left out" in note and "pip install" in note for note in found.notes)
        encoded.add("openvino")
        answered.add("openvino")
    assert encoded == answered == {"torch-bf16", "inprocess", "openvino", "session"}
    assert problem(json.loads(json.dumps(to_json(found)))) == ""


@pytest.mark.slow
def test_ctrl_c_keeps_the_measurements(server, tmp_path):
    command = [
        sys.executable,
        "-m",
        "triton_sam",
        "benchmark",
        "--url",
        server.http_url,
        "--only",
        "latency,throughput",
    ]
    options = ["--duration", "1", "--concurrency", "1,2,3,4,5,6", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=bundled(".")
    )
    seen = ""
    deadline = time.monotonic() + 240
    while "clicks, http, 2 users" not in seen and time.monotonic() < deadline:
        seen += os.read(process.stderr.fileno(), 4096).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "latency" in out
    kept = load(tmp_path / "out" / "result.json")
    assert not kept.complete
    assert kept.of("latency")
    assert kept.find("throughput", "clicks", "session", "http", 1)
    assert not kept.find("throughput", "clicks", "session", "http", 6)
    assert "stopped before its end" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


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
    found = load(tmp_path / "result.json")
    assert {row.who for row in found.of("comparison", "encode")} == {"torch", "inprocess", "naive", "session"}
    assert {row.protocol for row in found.of("comparison") if row.who == "session"} == {"http", "grpc"}
    assert any("PyTorch" in threshold.name for threshold in judge(found))
    assert "random seed 0" in found.about["model"]["weights"]
    shutil.rmtree(tmp_path)
