"""The options of tritonserver that this package sets: defaults, and those of a server that accepts no orders."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.local_server import defaults
from triton_sam.local_server.closed import closed_options, hide_key
from triton_sam.local_server.defaults import (
    CUDA_POOL,
    LOAD_THREADS,
    NO_COMPLETION,
    completion_options,
    cuda_pool_options,
    load_options,
    metrics_options,
    server_options,
    thread_options,
    values_of,
)
from triton_sam.repository.config import parse_config
from triton_sam.repository.selection import ModelFolder, select_models

MIB = 1 << 20


def session(cache: str, instances: str = "count: 1, kind: KIND_AUTO") -> ModelFolder:
    text = (
        f'backend: "python" instance_group [{{ {instances} }}] '
        f'parameters [{{ key: "cache_bytes", value {{ string_value: "{cache}" }} }}]'
    )
    return ModelFolder(Path("sam2"), parse_config(text))


def test_the_pool_of_gpu_memory_holds_the_embeddings_of_the_built_in_model() -> None:
    folders = select_models(bundled("model_repository"), ["sam2"])
    assert cuda_pool_options(folders, []) == [f"{CUDA_POOL}=0:{(512 + 512) * MIB}"]
    (encoder,) = (folder for folder in folders if folder.name == "sam2_encoder")
    assert cuda_pool_options([encoder], []) == []


def test_each_gpu_gets_a_pool_for_its_session_models() -> None:
    folders = [
        session(str(100 * MIB)),
        session(str(200 * MIB), "count: 1, kind: KIND_GPU, gpus: [0]"),
        session(str(300 * MIB), "count: 1, kind: KIND_GPU, gpus: [1]"),
        session(str(400 * MIB), "count: 1, kind: KIND_CPU"),
    ]
    assert cuda_pool_options(folders, []) == [f"{CUDA_POOL}=0:{812 * MIB}", f"{CUDA_POOL}=1:{812 * MIB}"]


@pytest.mark.parametrize("cache", ["", "-1", "512 MiB", "none"])
def test_a_wrong_size_is_left_to_the_model_which_says_so(cache: str) -> None:
    assert cuda_pool_options([session(cache)], []) == []


def test_a_size_that_fits_no_number_of_triton_does_not_end_it() -> None:
    assert cuda_pool_options([session("9" * 30)], []) == [f"{CUDA_POOL}=0:{2**63 - 1}"]


@pytest.mark.parametrize("given", [[f"{CUDA_POOL}=0:1"], [CUDA_POOL, "0:1"]])
def test_the_pool_of_the_user_replaces_ours(given: list[str]) -> None:
    assert cuda_pool_options([session("1")], given) == []


def test_metrics_of_the_user_replace_ours() -> None:
    assert [option.split("=")[1] for option in metrics_options([])] == ["summary_latencies", "summary_quantiles"]
    for given in (["--metrics-config=summary_latencies=false"], ["--metrics-config", "summary_latencies=false"]):
        assert [option.split("=")[1] for option in metrics_options(given)] == ["summary_quantiles"]


def test_values_of_an_option_are_found_in_both_spellings() -> None:
    assert values_of(["--a=1", "--b", "2", "--a", "3", "--aa=4", "--a"], "--a") == ["1", "3", ""]


def test_with_a_gpu_models_load_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "has_gpu", lambda: True)
    assert f"{LOAD_THREADS}=1" in server_options([session("1")], [])
    assert load_options([f"{LOAD_THREADS}=4"]) == []
    monkeypatch.setattr(defaults, "has_gpu", lambda: False)
    assert load_options([]) == []


def test_models_share_their_threads_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = "--backend-config=onnxruntime,enable-global-threadpool="
    monkeypatch.setattr(defaults, "has_gpu", lambda: False)
    assert thread_options([session("1")], ["--backend-config=python,shm-default-byte-size=1"]) == [f"{shared}1"]
    assert thread_options([session("1")], [f"{shared}0"]) == []
    threads = 'parameters [{ key: "intra_op_thread_count", value { string_value: "1" } }]'
    assert thread_options([session("1"), ModelFolder(Path("mine"), parse_config(threads))], []) == []
    monkeypatch.setattr(defaults, "has_gpu", lambda: True)
    assert thread_options([session("1")], []) == []


def test_complete_configurations_are_not_completed() -> None:
    """A model whose config.pbtxt leaves its backend to Triton needs the completion."""
    folders = select_models(bundled("model_repository"), None)
    assert completion_options(folders, []) == [NO_COMPLETION]
    assert completion_options(folders, [NO_COMPLETION]) == []
    for text in ('backend: "python"', 'input {name: "x"} output {name: "y"}'):
        assert completion_options([*folders, ModelFolder(Path("mine"), parse_config(text))], []) == []


def test_a_log_of_the_options_does_not_contain_the_key(tmp_path: Path) -> None:
    options = closed_options([], [], tmp_path)
    hidden = [hide_key(option) for option in options]
    changed = [option for option in hidden if option not in options]
    assert changed == [
        "--http-restricted-api=shared-memory,trace,logging:triton-sam=***",
        "--grpc-restricted-protocol=shared-memory,trace,logging:triton-sam=***",
    ]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--http-restricted-api=model-repository:key=a=b", "--http-restricted-api=model-repository:key=***"),
        ("model-repository,trace:key=secret", "model-repository,trace:key=***"),
        ("--trace-config=opentelemetry,url=http://host:4318/v1?a=b", None),
        ("--backend-config=python,shm-growth-byte-size=5", None),
        ("--model-repository=/a:b=c", None),
    ],
)
def test_keys_of_the_user_are_hidden_as_well(word: str, shown: str | None) -> None:
    assert hide_key(word) == (shown or word)
