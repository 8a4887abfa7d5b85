"""The decoder inside a session model's process: what it refuses, and how. Masks are compared on a real server."""

import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.pb_utils import Triton

from triton_sam._common.bundle import bundled
from triton_sam.errors import InferenceError
from triton_sam.repository.config import DECODER_IN_SESSION_VARIABLE, IF_POSSIBLE
from triton_sam.sessions.images import NoRoomError

OPTION = "decoder_in_session"


@pytest.fixture
def module(monkeypatch):
    """triton_model, inside of what it takes for Triton."""
    monkeypatch.delenv(DECODER_IN_SESSION_VARIABLE, raising=False)
    return Triton(lambda *_: {}).load("image.triton_model")


@pytest.fixture
def repository(tmp_path):
    for name in ("sam2_decoder", "sam2"):
        shutil.copytree(bundled("model_repository") / name, tmp_path / name)
    return tmp_path


def opened(module, repository, kind="CPU", **parameters):
    args = {"model_name": "sam2", "model_instance_kind": kind, "model_repository": str(repository / "sam2")}
    return module._open_decoder(args, {"decoder": "sam2_decoder", **parameters})


def refusal(module, repository, kind="CPU", **parameters):
    with pytest.raises(module.pb_utils.TritonModelException) as caught:
        opened(module, repository, kind, **{OPTION: "true", **parameters})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "variable", "expected"),
    [
        ({}, "", False),
        ({}, "0", False),
        ({}, "1", True),
        ({}, IF_POSSIBLE, None),
        ({OPTION: "true"}, "", True),
        ({OPTION: "false"}, "1", False),
    ],
)
def test_config_pbtxt_goes_before_the_environment(module, monkeypatch, parameters, variable, expected):
    monkeypatch.setenv(DECODER_IN_SESSION_VARIABLE, variable)
    assert module.is_asked_for(parameters) is expected


def test_without_the_option_nothing_is_opened(module, tmp_path):
    assert opened(module, tmp_path) is None
    assert opened(module, tmp_path, "GPU", **{OPTION: "false"}) is None


def test_by_default_what_hinders_it_leaves_the_decoder_to_triton(module, repository, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv(DECODER_IN_SESSION_VARIABLE, IF_POSSIBLE)
    decoder = opened(module, repository)
    assert decoder.file == repository / "sam2_decoder" / "1" / "model.onnx"
    decoder.close()
    assert opened(module, repository, "GPU") is None
    config = repository / "sam2_decoder" / "config.pbtxt"
    text = config.read_text()
    accelerator = 'optimization { execution_accelerators { cpu_execution_accelerator: [{ name: "openvino" }] } }\n'
    for old, new in (
        ("count: 1", "count: 2"),
        ("KIND_AUTO", "KIND_GPU"),
        ('backend: "onnxruntime"', 'backend: "python"'),
        ("dynamic_batching {}", "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"),
        ("count: 1", "rate_limiter { priority: 1 } count: 1"),
        ("instance_group", f"{accelerator}instance_group"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        assert opened(module, repository) is None
    decoder = opened(module, repository, **{OPTION: "true"})
    decoder.close()
    config.unlink()
    assert opened(module, repository) is None


def test_other_values_and_a_gpu_are_refused(module, repository):
    assert "must be true or false, not 'yes'" in refusal(module, repository, **{OPTION: "yes"})
    assert "is for CPUs, and Triton runs this session model on a GPU" in refusal(module, repository, "GPU")


def test_without_onnxruntime_the_error_names_the_command(module, repository, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = refusal(module, repository)
    assert "onnxruntime package in the Python of Triton's Python backend" in said
    assert "pip install onnxruntime there" in said


def test_damaged_files_are_one_line(module, repository):
    pytest.importorskip("onnxruntime")
    folder = repository / "sam2_decoder"
    (folder / "1" / "model.onnx").write_bytes(b"no model")
    assert str(folder / "1" / "model.onnx") in refusal(module, repository)
    config = folder / "config.pbtxt"
    config.write_text(
        config.read_text() + 'parameters { key: "intra_op_thread_count" value { string_value: "all" } }\n'
    )
    assert "parameter intra_op_thread_count must be a whole number, not 'all'" in refusal(module, repository)
    config.write_text("name:")
    assert "not a valid config.pbtxt" in refusal(module, repository)


def test_the_version_that_triton_serves_is_opened_and_failures_have_their_kinds(module, repository, monkeypatch):
    pytest.importorskip("onnxruntime")
    shutil.copytree(repository / "sam2_decoder" / "1", repository / "sam2_decoder" / "10")
    (repository / "sam2_decoder" / "9").mkdir()
    decoder = opened(module, repository, **{OPTION: "true"})
    assert decoder.file == repository / "sam2_decoder" / "10" / "model.onnx"
    with pytest.raises(InferenceError, match=r"^sam2_decoder failed: Required inputs") as caught:
        decoder.run({"point_coords": np.zeros((1, 1, 2), np.float32)}, ("masks",))
    assert caught.value.__context__ is None  # it would keep the arrays
    decoder.close()

    config = repository / "sam2_decoder" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { specific { versions: [1] } }\n")

    def run(*_):
        raise RuntimeError("[ONNXRuntimeError] : 6 : FAIL : Failed to allocate memory for requested buffer")

    again = opened(module, repository, **{OPTION: "true"})
    assert again.file == repository / "sam2_decoder" / "1" / "model.onnx"
    monkeypatch.setattr(again, "_session", SimpleNamespace(run=run))
    with pytest.raises(NoRoomError):
        again.run({}, ("masks",))
    again.close()
