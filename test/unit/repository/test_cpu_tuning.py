"""Settings for CPUs in config.pbtxt: OpenVINO as the backend reads it, and decoders in the session models.

No test here needs OpenVINO.
"""

import pytest

pytest.importorskip("onnx")

from support.tiny_models import config_text

from triton_sam.cli import main
from triton_sam.errors import ConfigurationError
from triton_sam.local_server import launcher
from triton_sam.local_server.backends.onnxruntime import openvino_session
from triton_sam.local_server.settings import ServerSettings
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.repository.config import DECODER_IN_SESSION, DECODER_IN_SESSION_VARIABLE, IF_POSSIBLE, parse_config

OPENVINO, IN_SESSION = Tuning("openvino", precision="fp32"), Tuning(decoder_in_session=True)


@pytest.mark.parametrize(
    ("tuning", "changed", "unchanged"),
    [
        (OPENVINO, ["sam2_encoder"], ["sam2_decoder", "sam2_memory_attention", "sam2_memory_encoder", "sam2"]),
        (IN_SESSION, ["sam1", "sam2", "sam3"], ["sam2_encoder", "sam2_decoder", "sam2_video"]),
    ],
)
def test_only_some_models_change_and_lose_the_settings_without_a_trace(tuning, changed, unchanged):
    for model in changed:
        tuned = tune(config_text(model), tuning)
        assert tuned != config_text(model)
        assert tune(tuned, tuning) == tuned
        assert tune(tuned, Tuning()) == config_text(model)
    assert [tune(config_text(model), tuning) for model in unchanged] == [config_text(model) for model in unchanged]


def test_the_configs_are_those_that_the_models_read():
    found = parse_config(tune(config_text("sam2_encoder"), OPENVINO)).optimization.execution_accelerators
    assert [(one.name, dict(one.parameters)) for one in found.cpu_execution_accelerator] == [
        ("openvino", {"precision": "fp32"})
    ]
    assert not found.gpu_execution_accelerator
    assert parse_config(tune(config_text("sam2"), IN_SESSION)).parameters[DECODER_IN_SESSION].string_value == "true"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16", True), ("fpu amx_tile amx_bf16", True), ("fpu avx2 avx512f avx512_bf16x", False)],
)
def test_flags_of_the_processor(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nbugs\t\t: avx512_bf16\nflags\t\t: {flags}\n")
    assert openvino_session.computes_in_bf16(tmp_path / "cpuinfo") is expected
    assert openvino_session.computes_in_bf16(tmp_path / "missing") is False


def test_the_backend_reads_the_accelerator_as_triton_gives_it():
    def config(*accelerators):
        return {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": list(accelerators)}}}

    wanted = openvino_session.wanted_precision
    assert wanted({}) is None
    assert wanted(config()) is None
    assert wanted(config({"name": "openvino", "parameters": {"precision": "bf16"}})) == "bf16"
    assert wanted(config({"name": "openvino"})) == "fp32"  # as NVIDIA's backend
    with pytest.raises(ValueError, match="unknown Execution Accelerator 'tvm'"):
        wanted(config({"name": "tvm"}))


def test_the_command_config_writes_the_parameter(tmp_path, capsys):
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config_text(name))
    command = ["config", "--model-repository", str(tmp_path), "--decoder-in-session"]
    assert main([*command, "--dry-run"]) == 0
    assert f'+parameters {{ key: "{DECODER_IN_SESSION}"' in capsys.readouterr().out
    assert (tmp_path / "sam2" / "config.pbtxt").read_text() == config_text("sam2")
    assert main(command) == 0
    assert capsys.readouterr().out.split() == ["sam2"]
    assert (tmp_path / "sam2" / "config.pbtxt").read_text() == tune(config_text("sam2"), IN_SESSION)


@pytest.mark.parametrize(
    ("wanted", "variable", "expected"),
    [
        ({}, "", IF_POSSIBLE),
        ({}, "1", "1"),
        ({}, "0", "0"),
        ({"decoder_in_session": True}, "0", "1"),
        ({"decoder_in_session": False}, "1", "0"),
        ({"tritonserver": "/opt/tritonserver"}, "", ""),
        ({"backend_directory": "/opt/backends"}, "", ""),
        ({"tritonserver": "/opt/tritonserver"}, "1", "1"),
    ],
)
def test_local_servers_tell_session_models_who_decodes(monkeypatch, wanted, variable, expected):
    monkeypatch.setenv(DECODER_IN_SESSION_VARIABLE, variable)
    assert launcher._who_decodes(ServerSettings(**wanted)) == expected


def test_other_words_in_the_variable_are_refused(monkeypatch):
    monkeypatch.setenv(DECODER_IN_SESSION_VARIABLE, "false")
    with pytest.raises(ConfigurationError, match="must be 1 or 0, not 'false'"):
        launcher._who_decodes(ServerSettings())
