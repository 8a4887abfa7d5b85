"""scripts/benchmark_sam2.py and its sibling: the options of the first versions, and those of `triton-sam benchmark`."""

import subprocess
from pathlib import Path

import pytest

from triton_sam.commands import _benchmark_script


@pytest.fixture
def calls(monkeypatch):
    found = []

    def run(command, env, check):
        found.append((command[3:], env.get("CUDA_VISIBLE_DEVICES")))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(_benchmark_script.subprocess, "run", run)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def script(*arguments):
    return _benchmark_script.script("sam2", "text", arguments)


def test_it_measures_a_local_server(calls):
    assert script("-i", "x.jpg", "-c", "w.pt", "--duration", "1") == 0
    options = ["--local", "--image", "x.jpg", "--weights", "w.pt", "--out", "test/output/benchmark-sam2"]
    assert calls == [(["benchmark", "sam2", *options, "--duration", "1"], None)]


def test_both_devices_are_measured_in_turns(calls, monkeypatch):
    monkeypatch.setattr(_benchmark_script, "_check_gpu", lambda: None)
    assert script("--both", "-o", "out") == 0
    assert calls == [
        (["benchmark", "sam2", "--local", "--out", str(Path("out") / "cpu")], ""),
        (["benchmark", "sam2", "--local", "--out", str(Path("out") / "cuda")], None),
    ]


def test_a_missing_gpu_is_told_before_the_cpu_is_measured(calls, monkeypatch, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    for options in (["--both"], ["--device", "cuda"]):
        assert script(*options) == 1
        assert capsys.readouterr().err.startswith("error: ONNX Runtime has no GPU here: use --device cpu")
    assert calls == []
    assert script("--device", "cpu") == 0
    assert calls[0][1] == ""


def test_a_device_cannot_be_chosen_for_a_server_elsewhere(calls, capsys):
    assert script("--url", "host:8000") == 0
    assert "--local" not in calls[0][0]
    assert script("--url=host:8000", "--device", "cpu") == 1
    assert "leave out --url" in capsys.readouterr().err
