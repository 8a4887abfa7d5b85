"""OpenVINO in config.pbtxt, stored comparisons, and the choice of the backend. No test here needs OpenVINO."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.commands import _openvino
from triton_sam.errors import ConfigurationError
from triton_sam.local_server.backends.onnxruntime import openvino_session
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.repository.config import parse_config
from triton_sam.repository.hashes import sha256_of
from triton_sam.repository.verified import RECORD_NAME, Comparison, comparisons, store_comparison

COMMITTED = bundled("model_repository")
GOOD = Comparison("bf16", "", 20, 100, 0.9965, 0.9555, "2026.4.1")


def committed(model: str) -> str:
    return (COMMITTED / model / "config.pbtxt").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("sam2_encoder", "sam2_decoder"):
        (tmp_path / name / "1").mkdir(parents=True)
        shutil.copy(COMMITTED / name / "config.pbtxt", tmp_path / name)
        (tmp_path / name / "1" / "model.onnx").write_bytes(name.encode())
    return tmp_path


def store(repository: Path, found: Comparison) -> Path:
    folder = repository / "sam2_encoder"
    store_comparison(folder, replace(found, weights=sha256_of(folder / "1" / "model.onnx")))
    return folder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_config_is_the_one_that_the_cpp_backend_reads(precision) -> None:
    tuning = Tuning("openvino", precision=precision)
    tuned = tune(committed("sam2_encoder"), tuning)
    found = parse_config(tuned).optimization.execution_accelerators
    assert [(one.name, dict(one.parameters)) for one in found.cpu_execution_accelerator] == [
        ("openvino", {"precision": precision})
    ]
    assert not found.gpu_execution_accelerator
    assert tune(tuned, tuning) == tuned
    assert tune(tuned, Tuning()) == committed("sam2_encoder")


@pytest.mark.parametrize("model", ["sam2_decoder", "sam2_memory_attention", "sam2_memory_encoder", "sam2"])
def test_other_models_than_encoders_stay_as_they_are(model: str) -> None:
    assert tune(committed(model), Tuning("openvino")) == committed(model)


@pytest.mark.parametrize("wrong", [{"decoder_accelerator": "openvino"}, {"accelerator": "openvino", "gpus": (0,)}])
def test_openvino_is_refused_for_decoders_and_gpus(wrong: dict) -> None:
    with pytest.raises(ConfigurationError):
        Tuning(**wrong)


def test_a_passed_comparison_lets_openvino_be_chosen(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(repository, GOOD)
    assert main(["config", "--model-repository", str(repository), "--accelerator", "openvino"]) == 0
    assert capsys.readouterr().out.split() == ["sam2_encoder"]
    assert 'name: "openvino"' in (repository / "sam2_encoder" / "config.pbtxt").read_text()


@pytest.mark.parametrize("iou", [0.9949, float("nan")])
def test_masks_below_the_limit_are_refused_unless_forced(
    repository: Path, iou: float, capsys: pytest.CaptureFixture[str]
) -> None:
    store(repository, replace(GOOD, mean_iou=iou))
    command = ["config", "--model-repository", str(repository), "--accelerator", "openvino"]
    assert main(command) == 1
    assert "--force" in capsys.readouterr().err
    assert (repository / "sam2_encoder" / "config.pbtxt").read_text() == committed("sam2_encoder")
    assert main([*command, "--force"]) == 0


def test_results_belong_to_weights_and_are_shown(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store(repository, GOOD)
    assert "mask IoU 0.9965 to fp32" in _openvino.results(folder)[0]
    (folder / "1" / "model.onnx").write_bytes(b"other weights")
    assert _openvino.results(folder) == []


def test_a_new_result_replaces_the_one_of_its_precision_and_those_of_other_weights(repository: Path) -> None:
    folder = store(repository, GOOD)
    store(repository, replace(GOOD, precision="fp32", mean_iou=1.0))
    store(repository, replace(GOOD, mean_iou=0.5))
    found = comparisons(folder, folder / "1" / "model.onnx")
    assert {one.precision: one.mean_iou for one in found} == {"fp32": 1.0, "bf16": 0.5}
    store_comparison(folder, replace(GOOD, weights="0" * 64))
    assert len(json.loads((folder / RECORD_NAME).read_text())) == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"precision": "bf16"}]', "7"])
def test_a_damaged_file_counts_as_no_result(repository: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(openvino_session, "computes_in_bf16", lambda: True)
    folder = repository / "sam2_encoder"
    (folder / RECORD_NAME).write_text(text)
    assert comparisons(folder, folder / "1" / "model.onnx") == []
    assert openvino_session.verified_precision(folder, folder / "1" / "model.onnx") is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16", True), ("fpu amx_tile amx_bf16", True), ("fpu avx2 avx512f avx512_bf16x", False)],
)
def test_flags_of_the_processor(tmp_path: Path, flags: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nbugs\t\t: avx512_bf16\nflags\t\t: {flags}\n")
    assert openvino_session.computes_in_bf16(tmp_path / "cpuinfo") is expected
    assert openvino_session.computes_in_bf16(tmp_path / "missing") is False


def test_the_backend_chooses_by_flags_result_and_weights(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repository / "sam2_encoder"
    file = folder / "1" / "model.onnx"
    monkeypatch.setattr(openvino_session, "computes_in_bf16", lambda: True)
    assert openvino_session.RECORD_NAME == RECORD_NAME
    assert openvino_session.verified_precision(folder, file) is None
    store(repository, replace(GOOD, mean_iou=0.9))
    assert openvino_session.verified_precision(folder, file) is None
    store(repository, GOOD)
    assert openvino_session.verified_precision(folder, file) == "bf16"
    monkeypatch.setattr(openvino_session, "computes_in_bf16", lambda: False)
    assert openvino_session.verified_precision(folder, file) is None
    monkeypatch.setattr(openvino_session, "computes_in_bf16", lambda: True)
    file.write_bytes(b"other weights")
    assert openvino_session.verified_precision(folder, file) is None


def test_the_backend_reads_the_accelerator_as_triton_gives_it() -> None:
    def config(*accelerators: dict) -> dict:
        return {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": list(accelerators)}}}

    wanted = openvino_session.wanted_precision
    assert wanted({}) is None
    assert wanted(config()) is None
    assert wanted(config({"name": "openvino", "parameters": {"precision": "bf16"}})) == "bf16"
    assert wanted(config({"name": "openvino"})) == "fp32"  # as NVIDIA's backend
    with pytest.raises(ValueError, match="unknown Execution Accelerator 'tvm'"):
        wanted(config({"name": "tvm"}))
