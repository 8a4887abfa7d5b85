"""`triton-sam config`, `reload`, `container`, the devices that `doctor` reports, and warm-up."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.tiny_models import config_text, write_family

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.errors import ConfigurationError, RepositoryError
from triton_sam.families import get_family, model_name
from triton_sam.repository.accelerators import Tuning, models_of, tune
from triton_sam.repository.config import parse_config

COMMITTED = bundled("model_repository")
FULL = Tuning("tensorrt", "tensorrt", gpus=(0, 1), instances=2, memory_limit=1 << 30, tf32=False, max_images=4)
KIND_GPU = 1


def accelerators(config) -> dict[str, dict[str, str]]:
    found = config.optimization.execution_accelerators.gpu_execution_accelerator
    return {accelerator.name: dict(accelerator.parameters) for accelerator in found}


# --- triton-sam config


@pytest.mark.parametrize(
    "model", [f"{name}{role}" for name in ("sam1", "sam2", "sam3") for role in ("_encoder", "_decoder", "")]
)
def test_settings_are_removed_without_a_trace(model):
    tuned = tune(config_text(model), FULL)
    assert tuned != config_text(model)
    assert tune(tuned, FULL) == tuned
    assert tune(tuned, Tuning()) == config_text(model)
    (group,) = parse_config(tuned).instance_group
    assert group.kind == KIND_GPU
    # A session model has one cache, so it always has one instance, on one GPU.
    assert (group.count, list(group.gpus)) == ((1, [0]) if model in ("sam1", "sam2", "sam3") else (2, [0, 1]))


def test_tensorrt_profiles_cover_every_input_and_the_shapes_that_clients_send():
    for family in ("sam1", "sam2", "sam3"):
        config = parse_config(tune(config_text(f"{family}_decoder"), FULL))
        found = accelerators(config)
        assert list(found) == ["tensorrt", "cuda"]  # CUDA runs the nodes that TensorRT cannot run
        assert found["cuda"]["use_tf32"] == "0"
        for bound, prompts, points in (("min", 1, 1), ("max", 16, 16)):
            profile = dict(part.split(":") for part in found["tensorrt"][f"trt_profile_{bound}_shapes"].split(","))
            assert list(profile) == [tensor.name for tensor in config.input]
            name = "input_points" if family == "sam3" else "point_coords"
            assert profile[name].endswith(f"{prompts}x{points}x2")
            assert all("-" not in shape for shape in profile.values())
    encoder = accelerators(parse_config(tune(config_text("sam3_encoder"), FULL)))["tensorrt"]
    assert encoder["trt_profile_max_shapes"] == "pixel_values:4x3x1008x1008"


@pytest.mark.parametrize("family", ["sam2", "sam3"])
def test_tensorrt_is_for_images_alone(family):
    with_engines = {
        role
        for role in get_family(family).every_model
        if "tensorrt" in accelerators(parse_config(tune(config_text(model_name(family, role)), FULL)))
    }
    assert with_engines == {"encoder", "decoder"}


# The parameters that NVIDIA's backend reads for TensorRT. It refuses a model with any other key. TensorRT 11 has no
# precision flags, so an engine cannot be built with precision_mode, trt_layer_norm_fp32_fallback or the like.
TENSORRT_KEYS = {
    *("max_workspace_size_bytes", "trt_engine_cache_enable", "trt_engine_cache_path"),
    *("trt_timing_cache_enable", "trt_timing_cache_path"),
    *("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes"),
}


def test_only_parameters_that_the_backend_reads():
    found = accelerators(parse_config(tune(config_text("sam2_encoder"), FULL)))
    assert set(found["tensorrt"]) <= TENSORRT_KEYS
    assert set(found["cuda"]) <= {"cudnn_conv_use_max_workspace", "use_tf32"}


@pytest.mark.parametrize(("model", "accelerator"), [("sam1_encoder", "cuda"), ("sam2_decoder", "tensorrt")])
def test_the_settings_of_cuda_reach_onnx_runtime(model, accelerator):
    """As `parameters` of the model, which NVIDIA's backend reads after the accelerator, with defaults of its own."""
    config = parse_config(tune(config_text(model), Tuning(accelerator, accelerator, memory_limit=3 << 30)))
    given = {key: value.string_value for key, value in config.parameters.items()}
    assert (
        given.items()
        >= {
            "cudnn_conv_algo_search": "1",  # HEURISTIC
            "arena_extend_strategy": "1",  # kSameAsRequested
            "gpu_mem_limit": str(3 << 30),
        }.items()
    )
    assert accelerators(config)["cuda"] == {"cudnn_conv_use_max_workspace": "1", "use_tf32": "1"}
    plain = parse_config(tune(config_text(model), Tuning(accelerator, accelerator, tf32=False)))
    assert "gpu_mem_limit" not in plain.parameters
    assert accelerators(plain)["cuda"]["use_tf32"] == "0"


@pytest.mark.parametrize("wrong", [{"instances": 0}, {"gpus": (0, 0)}, {"gpus": (-1,)}, {"memory_limit": -1}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        Tuning(**wrong)


def test_an_unknown_config_is_refused_and_not_changed():
    with pytest.raises(RepositoryError, match="instance_group"):
        tune('name: "x_encoder"\nbackend: "onnxruntime"\n', FULL)


def test_models_of_a_repository(tmp_path):
    for family in ("sam1", "sam2", "sam3"):
        write_family(tmp_path, family)
    graphs = ["encoder", "decoder", "memory_attention", "memory_encoder", "tracking_decoder", "mask_prompt"]
    assert models_of(tmp_path, ("sam2",)) == [*(f"sam2_{role}" for role in graphs), "sam2", "sam2_video"]
    assert {"sam1", "sam2_decoder", "sam3_encoder"} <= set(models_of(tmp_path))
    assert "sam2_encoder_jpeg" not in models_of(tmp_path)
    with pytest.raises(RepositoryError, match="no nope_encoder"):
        models_of(tmp_path, ("nope",))


@pytest.fixture
def repository(tmp_path):
    """Return a writable copy of the models that serve SAM2."""
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config_text(name))
        shutil.copytree(COMMITTED / name / "1", tmp_path / name / "1")
    return tmp_path


def test_config_command(repository, capsys):
    arguments = ["config", "--model-repository", str(repository), "--quiet"]
    assert main([*arguments, "--accelerator", "cuda", "--gpus", "0", "--instances", "2", "--dry-run"]) == 0
    assert '+  { name: "cuda"' in capsys.readouterr().out
    assert (repository / "sam2_encoder" / "config.pbtxt").read_text() == config_text("sam2_encoder")
    assert main([*arguments, "sam2", "--accelerator", "cuda", "--gpus", "0", "--instances", "2"]) == 0
    assert capsys.readouterr().out.split() == ["sam2_encoder", "sam2_decoder", "sam2"]
    assert main([*arguments, "--accelerator", "none"]) == 0
    assert (repository / "sam2_encoder" / "config.pbtxt").read_text() == config_text("sam2_encoder")
    assert main([*arguments, "nope", "--gpus", "0"]) == 1
    assert "no nope_encoder" in capsys.readouterr().err


def test_config_says_when_it_replaces_earlier_settings(repository, capsys):
    config = ["config", "sam2", "--model-repository", str(repository)]
    assert main([*config, "--accelerator", "cuda", "--instances", "2"]) == 0
    assert "replaced" not in capsys.readouterr().err
    assert main([*config, "--accelerator", "tensorrt", "--max-images", "2"]) == 0
    assert "earlier settings are replaced" in capsys.readouterr().err
    tuned = (repository / "sam2_encoder" / "config.pbtxt").read_text()
    assert tuned == tune(config_text("sam2_encoder"), Tuning("tensorrt", "cuda", max_images=2))
    assert main([*config, "--accelerator", "none"]) == 0
    assert "replaced" not in capsys.readouterr().err


# --- warm-up


def test_the_client_of_pytriton_reads_the_configuration(server):
    """It requires `count` in a warm-up."""
    client_of = pytest.importorskip("pytriton.client").ModelClient
    for model in ("sam2_encoder", "sam2_decoder"):
        with client_of(server.http_url, model) as client:
            assert client.model_config.model_name == model


def test_a_cpu_skips_the_warm_up(backend):
    """The backend answers Triton's warm-up requests without computing them."""
    model = backend.TritonPythonModel()  # it has no runtime session, so computing would fail
    samples = [{"batch_size": 1, "count": 0}, {"batch_size": 1, "count": 2}, {"batch_size": 0}]
    model.warm_ups_to_skip = backend.count_warm_ups({"model_warmup": samples})
    assert model.warm_ups_to_skip == 3
    model.inputs = {"x": None}
    request = SimpleNamespace(is_cancelled=lambda: False, inputs=list)
    assert [answer.error for answer in model.execute([request] * 3)] == [None] * 3
    assert model.execute([request])[0].error is not None  # missing input x
    assert backend.count_warm_ups({}) == 0


# --- triton-sam container


def test_container_starts_tritonserver_with_every_model_that_has_weights(tmp_path):
    program = tmp_path / "tritonserver"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, "-m", "triton_sam", "container", "--model-repository", str(COMMITTED)]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def start(*more: str, **variables: str) -> list[str]:
        done = subprocess.run(
            [*command, *more], env={**environment, **variables}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stderr.splitlines()

    options = start("--", "--log-verbose=1", "--rate-limit=off", TRITON_SAM_ADMIN="1")
    assert {f"--model-repository={COMMITTED}", "--model-control-mode=explicit"} <= set(options)
    assert {"--load-model=sam2", "--load-model=sam2_encoder"} <= set(options)
    assert options[-2:] == ["--log-verbose=1", "--rate-limit=off"]
    chosen = start("--admin", TRITON_SAM_MODELS="sam2_decoder")
    assert [option for option in chosen if option.startswith("--load")] == ["--load-model=sam2_decoder"]
    closed = start()
    assert "--model-control-mode=none" in closed
    assert not {f"--model-repository={COMMITTED}", "--load-model=sam2"} & set(closed)
    own = start("--", "--model-control-mode=poll")
    assert own.count("--model-control-mode=poll") == 1
    assert not [option for option in own if option.startswith(("--load", "--model-control-mode=e"))]


def test_container_without_tritonserver_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["container"]) == 1
    assert "triton-sam serve" in capsys.readouterr().err
