"""OpenVINO in config.pbtxt, as the backend reads it. No test here needs OpenVINO."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.family_configs import config_text

from triton_sam.errors import ConfigurationError
from triton_sam.local_server.backends.onnxruntime import openvino_session
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.repository.config import parse_config


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_config_is_the_one_that_the_cpp_backend_reads(precision) -> None:
    tuning = Tuning("openvino", precision=precision)
    tuned = tune(config_text("sam2_encoder"), tuning)
    found = parse_config(tuned).optimization.execution_accelerators
    assert [(one.name, dict(one.parameters)) for one in found.cpu_execution_accelerator] == [
        ("openvino", {"precision": precision})
    ]
    assert not found.gpu_execution_accelerator
    assert tune(tuned, tuning) == tuned
    assert tune(tuned, Tuning()) == config_text("sam2_encoder")


@pytest.mark.parametrize("model", ["sam2_decoder", "sam2_memory_attention", "sam2_memory_encoder", "sam2"])
def test_other_models_than_encoders_stay_as_they_are(model: str) -> None:
    assert tune(config_text(model), Tuning("openvino")) == config_text(model)


@pytest.mark.parametrize("wrong", [{"decoder_accelerator": "openvino"}, {"accelerator": "openvino", "gpus": (0,)}])
def test_openvino_is_refused_for_decoders_and_gpus(wrong: dict) -> None:
    with pytest.raises(ConfigurationError):
        Tuning(**wrong)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16", True), ("fpu amx_tile amx_bf16", True), ("fpu avx2 avx512f avx512_bf16x", False)],
)
def test_flags_of_the_processor(tmp_path: Path, flags: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nbugs\t\t: avx512_bf16\nflags\t\t: {flags}\n")
    assert openvino_session.computes_in_bf16(tmp_path / "cpuinfo") is expected
    assert openvino_session.computes_in_bf16(tmp_path / "missing") is False


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
