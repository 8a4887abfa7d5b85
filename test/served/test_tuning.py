"""`triton-sam config`, `reload`, `container`, the devices that `doctor` tells, and warm-up."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.commands._devices import placement, server_gpus, usual_metrics_url
from triton_sam.commands.reload import reload
from triton_sam.errors import ConfigurationError, InferenceError, RepositoryError
from triton_sam.local_server.serve import cpu_fallbacks
from triton_sam.repository.accelerators import Tuning, models_of, tune
from triton_sam.repository.config import parse_config
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

COMMITTED = bundled("model_repository")
FULL = Tuning("tensorrt", "tensorrt", gpus=(0, 1), instances=2, memory_limit=1 << 30, tf32=False, max_images=4)
KIND_GPU, KIND_AUTO = 1, 0


def committed(model: str) -> str:
    return (COMMITTED / model / "config.pbtxt").read_text()


def accelerators(config) -> dict[str, dict[str, str]]:
    found = config.optimization.execution_accelerators.gpu_execution_accelerator
    return {accelerator.name: dict(accelerator.parameters) for accelerator in found}


# --- triton-sam config


@pytest.mark.parametrize(
    "model", [f"{name}{role}" for name in ("sam1", "sam2", "sam3") for role in ("_encoder", "_decoder", "")]
)
def test_settings_come_and_go_without_a_trace(model: str) -> None:
    tuned = tune(committed(model), FULL)
    assert tuned != committed(model)
    assert tune(tuned, FULL) == tuned
    assert tune(tuned, Tuning()) == committed(model)
    (group,) = parse_config(tuned).instance_group
    assert group.kind == KIND_GPU
    # A session model is one cache: always one instance, on one GPU.
    assert (group.count, list(group.gpus)) == ((1, [0]) if model in ("sam1", "sam2", "sam3") else (2, [0, 1]))


def test_tensorrt_profiles_cover_every_input_and_what_clients_send() -> None:
    for family in ("sam1", "sam2", "sam3"):
        config = parse_config(tune(committed(f"{family}_decoder"), FULL))
        found = accelerators(config)
        assert list(found) == ["tensorrt", "cuda"]  # CUDA behind TensorRT takes what that cannot run
        assert (found["cuda"]["use_tf32"], found["cuda"]["gpu_mem_limit"]) == ("0", str(1 << 30))
        for bound, prompts, points in (("min", 1, 1), ("max", 16, 16)):
            profile = dict(part.split(":") for part in found["tensorrt"][f"trt_profile_{bound}_shapes"].split(","))
            assert list(profile) == [tensor.name for tensor in config.input]
            name = "input_points" if family == "sam3" else "point_coords"
            assert profile[name].endswith(f"{prompts}x{points}x2")
            assert all("-" not in shape for shape in profile.values())
    encoder = accelerators(parse_config(tune(committed("sam3_encoder"), FULL)))["tensorrt"]
    assert encoder["trt_profile_max_shapes"] == "pixel_values:4x3x1008x1008"
    assert encoder["precision_mode"] == "FP32"
    half = accelerators(parse_config(tune(committed("sam3_encoder"), FULL, fp16=True)))["tensorrt"]
    assert half["precision_mode"] == "FP16"


# What NVIDIA's backend reads for TensorRT; it refuses a model with any other key.
TENSORRT_KEYS = {
    *("precision_mode", "max_workspace_size_bytes", "trt_engine_cache_enable", "trt_engine_cache_path"),
    *("trt_timing_cache_enable", "trt_timing_cache_path", "trt_layer_norm_fp32_fallback"),
    *("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes"),
}


def test_only_parameters_that_the_backend_reads() -> None:
    found = accelerators(parse_config(tune(committed("sam2_encoder"), FULL)))
    assert set(found["tensorrt"]) <= TENSORRT_KEYS
    assert set(found["cuda"]) <= {
        *("cudnn_conv_algo_search", "cudnn_conv_use_max_workspace", "arena_extend_strategy"),
        *("use_tf32", "gpu_mem_limit"),
    }


@pytest.mark.parametrize("wrong", [{"instances": 0}, {"gpus": (0, 0)}, {"gpus": (-1,)}, {"memory_limit": -1}])
def test_settings_that_cannot_work(wrong: dict) -> None:
    with pytest.raises(ConfigurationError):
        Tuning(**wrong)


def test_a_config_of_somebody_else_is_refused_and_not_guessed_at() -> None:
    with pytest.raises(RepositoryError, match="instance_group"):
        tune('name: "x_encoder"\nbackend: "onnxruntime"\n', FULL)


def test_models_of_a_repository() -> None:
    assert models_of(COMMITTED, ("sam2",)) == ["sam2_encoder", "sam2_decoder", "sam2"]
    assert {"sam1", "sam2_decoder", "sam3_encoder"} <= set(models_of(COMMITTED))
    assert "sam2_encoder_jpeg" not in models_of(COMMITTED)
    with pytest.raises(RepositoryError, match="no nope_encoder"):
        models_of(COMMITTED, ("nope",))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The parts of the committed repository that serve SAM2, to write into."""
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        (tmp_path / name).mkdir()
        shutil.copy(COMMITTED / name / "config.pbtxt", tmp_path / name)
        shutil.copytree(COMMITTED / name / "1", tmp_path / name / "1")
    return tmp_path


def test_config_command(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["config", "--model-repository", str(repository), "--quiet"]
    assert main([*arguments, "--accelerator", "cuda", "--gpus", "0", "--instances", "2", "--dry-run"]) == 0
    assert '+  { name: "cuda"' in capsys.readouterr().out
    assert (repository / "sam2_encoder" / "config.pbtxt").read_text() == committed("sam2_encoder")
    assert main([*arguments, "sam2", "--accelerator", "cuda", "--gpus", "0", "--instances", "2"]) == 0
    assert capsys.readouterr().out.split() == ["sam2_encoder", "sam2_decoder", "sam2"]
    assert main([*arguments, "--accelerator", "none"]) == 0
    assert (repository / "sam2_encoder" / "config.pbtxt").read_text() == committed("sam2_encoder")
    assert main([*arguments, "nope", "--gpus", "0"]) == 1
    assert "no nope_encoder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to set"),
        (["sam2", "--dry-run"], "nothing to set"),
        (["--no-tf32"], "give --accelerator cuda"),
        (["--gpu-memory-limit", "5"], "give --accelerator cuda"),
        (["--max-points", "5"], "give --decoder-accelerator tensorrt"),
        (["--max-prompts", "5", "--accelerator", "tensorrt"], "give --decoder-accelerator tensorrt"),
        (["--max-images", "5", "--accelerator", "cuda"], "give --accelerator tensorrt"),
        (["--engine-cache", "/x", "--gpus", "0"], "give --accelerator or --decoder-accelerator tensorrt"),
    ],
)
def test_config_refuses_what_would_change_nothing_or_everything(
    repository: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = repository / "sam2_encoder" / "config.pbtxt"
    path.write_text(tuned := tune(committed("sam2_encoder"), FULL))
    assert main(["config", "--model-repository", str(repository), *options]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert path.read_text() == tuned


def test_config_says_when_it_replaces_earlier_settings(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["config", "sam2", "--model-repository", str(repository)]
    assert main([*config, "--accelerator", "cuda", "--instances", "2"]) == 0
    assert "replaced" not in capsys.readouterr().err
    assert main([*config, "--accelerator", "tensorrt", "--max-images", "2"]) == 0
    assert "earlier settings are replaced" in capsys.readouterr().err
    tuned = (repository / "sam2_encoder" / "config.pbtxt").read_text()
    assert tuned == tune(committed("sam2_encoder"), Tuning("tensorrt", "cuda", max_images=2))
    assert main([*config, "--accelerator", "none"]) == 0
    assert "replaced" not in capsys.readouterr().err


# --- a running server: accelerators on a CPU, warm-up, reload, doctor


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A local Triton with SAM2's models, tuned for a GPU that it does not have, in a repository of its own."""
    local_server = pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("repository")
    for name in ("sam2", "sam2_encoder", "sam2_decoder", "sam1_encoder"):
        shutil.copytree(COMMITTED / name, folder / name, ignore=shutil.ignore_patterns("[2-9]*", "__pycache__"))
    for name in ("sam2_encoder", "sam2_decoder"):
        (folder / name / "config.pbtxt").write_text(tune(committed(name), Tuning("cuda", "cuda")))
    with local_server.LocalServer(folder, models=["sam2"], admin=True) as server:
        yield SimpleNamespace(server=server, repository=folder)


def test_settings_for_gpus_do_not_break_a_server_without_one(running, images: Path) -> None:
    from triton_sam import SAM2TritonClient

    with SAM2TritonClient(running.server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        masks, _ = client.predict([[200, 180]], [1])
    assert (masks[0, 0] > 0).sum() > 100


def test_doctor_names_device_and_accelerators(running, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (running.server.http_url, running.server.grpc_url):
        assert main(["doctor", "--url", url, "--json"]) == 0
        findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
        assert findings["model sam2_encoder"]["text"].endswith("; with cuda")
    assert main(["doctor", "--url", running.server.http_url, "--metrics-url", "http://127.0.0.1:9/metrics"]) == 0
    assert "no answer at http://127.0.0.1:9/metrics" in capsys.readouterr().out


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_reload_serves_new_files_and_renews_the_session_model(running, protocol: str, images: Path) -> None:
    """A changed number of instances is what a new config.pbtxt brings; the cache starts empty with its encoder."""
    from triton_sam import SAM2TritonClient

    url = running.server.http_url if protocol == "http" else running.server.grpc_url
    transport = Transport(parse_url(url), timeout=120)
    path = running.repository / "sam2_decoder" / "config.pbtxt"
    with SAM2TritonClient(url, timeout=120) as client:
        client.set_image(images / "shapes.jpg")
        before, _ = client.predict([[200, 180]], [1])
        count = 2 if protocol == "http" else 1
        path.write_text(tune(path.read_text(), Tuning("cuda", "cuda", instances=count)))
        assert reload(transport, ["sam2"]) == ["sam2_encoder", "sam2_decoder", "sam2"]
        assert transport.model_config("sam2_decoder")["instance_group"][0]["count"] == count
        assert "reloaded" in transport.model_config("sam2")["parameters"]
        after, _ = client.predict([[200, 180]], [1])  # the image is sent again by itself
    np.testing.assert_array_equal(before, after)
    assert reload(transport, ["sam2_encoder"]) == ["sam2_encoder", "sam2"]
    transport.close()


def test_reload_of_what_is_not_there_is_one_line(running, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("nope", "no model or variant 'nope', but"), ("sam1", "sam1_encoder")):
        assert main(["reload", name, "--url", running.server.http_url]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert main(["reload", "sam2_decoder", "--url", running.server.grpc_url]) == 0
    assert capsys.readouterr().out == "sam2_decoder version 1\n"


def test_a_model_that_does_not_load_leaves_the_old_one(running) -> None:
    transport = Transport(parse_url(running.server.http_url), timeout=120)
    path = running.repository / "sam2_decoder" / "config.pbtxt"
    good = path.read_text()
    path.write_text(good.replace('"masks"', '"nonsense"', 1))
    try:
        with pytest.raises(InferenceError, match="nonsense"):
            transport.load_model("sam2_decoder")
        assert "sam2_decoder" in transport.ready_models()
    finally:
        path.write_text(good)
        transport.load_model("sam2_decoder")
        transport.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("version", ["1", "2"], ids=["replaced", "newer"])
def test_a_damaged_file_leaves_the_old_model_serving(running, protocol: str, version: str, images: Path) -> None:
    """Half of an ONNX file in place of the one that is served, or as a newer version."""
    from triton_sam import SAM2TritonClient

    url = running.server.http_url if protocol == "http" else running.server.grpc_url
    transport = Transport(parse_url(url), timeout=120)
    with SAM2TritonClient(url, timeout=120) as client, contextlib.ExitStack() as undo:
        undo.callback(transport.close)
        client.set_image(images / "shapes.jpg")
        before, _ = client.predict([[200, 180]], [1])
        for role in ("encoder", "decoder"):
            folder = running.repository / f"sam2_{role}"
            content = (folder / "1" / "model.onnx").read_bytes()
            if version == "1":
                undo.callback((folder / "1" / "model.onnx").write_bytes, content)
            else:
                undo.callback(shutil.rmtree, folder / version)
                (folder / version).mkdir()
            (folder / version / "model.onnx").write_bytes(content[: len(content) // 2])
            with pytest.raises(InferenceError, match=r"model\.onnx"):
                transport.load_model(folder.name)
            client.set_image(images / "shapes.jpg")
            np.testing.assert_array_equal(client.predict([[200, 180]], [1])[0], before)
        with pytest.raises(InferenceError):
            reload(transport, ["sam2"])
        np.testing.assert_array_equal(client.predict([[200, 180]], [1])[0], before)
    with SAM2TritonClient(url, timeout=120) as client:
        again = Transport(parse_url(url), timeout=120)
        assert reload(again, ["sam2"]) == ["sam2_encoder", "sam2_decoder", "sam2"]
        again.close()
        client.set_image(images / "shapes.jpg")
        np.testing.assert_array_equal(client.predict([[200, 180]], [1])[0], before)


# --- warm-up


@pytest.mark.parametrize(
    "model", [f"{name}_{role}" for name in ("sam1", "sam2", "sam3") for role in ("encoder", "decoder")]
)
def test_every_model_is_warmed_up_with_all_inputs_that_it_needs(model: str) -> None:
    config = parse_config(committed(model))
    (sample,) = config.model_warmup
    assert (sample.batch_size, sample.count) == (1, 0)
    assert set(sample.inputs) == {tensor.name for tensor in config.input if not tensor.optional}
    for tensor in config.input:
        if tensor.optional:
            continue
        given = sample.inputs[tensor.name]
        assert given.zero_data
        assert given.data_type == tensor.data_type
        assert [own if own >= 0 else 1 for own in tensor.dims] == list(given.dims)


def test_a_cpu_leaves_the_warm_up_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend answers as many requests without computing as Triton sends for warming up."""
    module = load_backend(monkeypatch)
    model = module.TritonPythonModel()  # it has no session: computing would fail
    samples = [{"batch_size": 1, "count": 0}, {"batch_size": 1, "count": 2}, {"batch_size": 0}]
    model.warm_ups_to_skip = module.count_warm_ups({"model_warmup": samples})
    assert model.warm_ups_to_skip == 3
    model.inputs = {"x": None}
    request = SimpleNamespace(is_cancelled=lambda: False, inputs=list)
    assert [answer.error for answer in model.execute([request] * 3)] == [None] * 3
    assert model.execute([request])[0].error is not None  # missing input x
    assert module.count_warm_ups({}) == 0


def load_backend(monkeypatch: pytest.MonkeyPatch):
    """Import the backend's file with a stand-in for Triton's module, which exists inside Triton only."""

    class Error:
        INVALID_ARG = CANCELLED = 0

        def __init__(self, message: str, code: int) -> None:
            self.message = message

    fake = SimpleNamespace(
        TritonModelException=RuntimeError,
        TritonError=Error,
        InferenceResponse=lambda output_tensors, error=None: SimpleNamespace(error=error),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    from triton_sam import local_server

    path = Path(local_server.__file__).parent / "backends" / "onnxruntime" / "model.py"
    spec = importlib.util.spec_from_file_location("backend_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- devices


def test_placement_of_models() -> None:
    gpu = {"backend": "onnxruntime", "instance_group": [{"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}]}
    assert placement(gpu).text == "2 instance(s) on GPU 0,1"
    assert (placement(gpu).on_gpu, placement(gpu).on_cpu, placement(gpu).computes) == (True, False, True)
    cpu = placement({"backend": "python", "instance_group": [{"kind": "KIND_CPU", "count": 1}]})
    assert (cpu.on_gpu, cpu.on_cpu, cpu.computes) == (False, True, False)
    assert placement({"platform": "ensemble"}).text == "device not told"


def test_a_silent_fallback_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton_sam.commands import doctor

    configs = {
        "on_gpu": {"backend": "onnxruntime", "instance_group": [{"kind": "KIND_GPU", "gpus": [0]}]},
        "fallen": {"backend": "onnxruntime", "instance_group": [{"kind": "KIND_CPU"}]},
        "python": {"backend": "python", "instance_group": [{"kind": "KIND_CPU"}]},
    }
    transport = SimpleNamespace(model_config=configs.get)
    findings = {finding.subject: finding.status for finding in doctor._devices(transport, list(configs), False)}
    assert findings == {"model on_gpu": "ok", "model fallen": "note", "model python": "ok"}
    del configs["on_gpu"]  # all on the CPU: only the server's own figures tell that there is a GPU
    assert [finding.status for finding in doctor._devices(transport, list(configs), False)] == ["ok", "ok"]
    assert [finding.status for finding in doctor._devices(transport, list(configs), True)] == ["note", "ok"]


def test_figures_of_a_server_tell_its_gpus(running) -> None:
    assert usual_metrics_url(parse_url("grpc://host:8001")) == "http://host:8002/metrics"
    assert usual_metrics_url(parse_url("[::1]:8000")) == "http://[::1]:8002/metrics"
    assert usual_metrics_url(parse_url("https://host")) is None
    assert usual_metrics_url(parse_url("host:9000")) is None
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    assert server_gpus(running.server.metrics_url) is has_gpu
    assert server_gpus("http://127.0.0.1:9/metrics") is None
    assert server_gpus(None) is None


def test_serve_repeats_what_the_backend_says_about_the_cpu() -> None:
    log = "\n".join(
        [
            'I1121 11:15:28.5 1 model.cc:1] "sam2_decoder_0: model.onnx on CPUExecutionProvider"',
            *['W1121 11:15:28.5 1 model.cc:1] "sam2_encoder runs on the CPU: this ONNX Runtime has no CUDA: x"'] * 2,
        ]
    )
    assert cpu_fallbacks(log) == ["sam2_encoder runs on the CPU: this ONNX Runtime has no CUDA: x"]


# --- triton-sam container


def test_container_starts_tritonserver_with_every_model_that_has_weights(tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, "-m", "triton_sam", "container", "--model-repository", str(COMMITTED)]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def start(*more: str, **variables: str) -> list[str]:
        done = subprocess.run(
            [*command, *more], env={**environment, **variables}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.splitlines()

    options = start("--", "--log-verbose=1", "--rate-limit=off")
    assert options[:2] == [f"--model-repository={COMMITTED}", "--model-control-mode=explicit"]
    assert {"--load-model=sam2", "--load-model=sam2_encoder"} <= set(options)
    assert options[-2:] == ["--log-verbose=1", "--rate-limit=off"]
    chosen = start(TRITON_SAM_MODELS="sam2_decoder")
    assert [option for option in chosen if option.startswith("--load")] == ["--load-model=sam2_decoder"]


def test_container_without_tritonserver_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["container"]) == 1
    assert "triton-sam serve" in capsys.readouterr().err


# --- what proxies say


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("401", "refuses access: HTTP status 401"),
        ("413", "takes no request of that size: HTTP status 413"),
        ("502", "is not available: HTTP status 502"),
        ("404", "does not answer like a Triton server"),
    ],
)
def test_a_foreign_page_of_a_proxy_is_told_by_its_status(status: str, words: str) -> None:
    from tritonclient.utils import InferenceServerException

    from triton_sam.transport.triton import map_error

    page = InferenceServerException("An exception occurred in the client while decoding the response: <html>", status)
    assert words in str(map_error(page, parse_url("https://host")))


def test_header_names_are_lower_case_for_grpc_alone() -> None:
    from triton_sam.transport.triton import request_headers

    headers = {"Authorization": "Bearer X"}
    assert request_headers(parse_url("grpcs://host"), headers) == {"authorization": "Bearer X"}
    assert request_headers(parse_url("https://host"), headers) == headers
    assert request_headers(parse_url("https://host"), None) == {}
