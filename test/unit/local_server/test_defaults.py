"""The options of tritonserver that this package sets: defaults, and those of a server that accepts no orders."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.errors import LocalServerError
from triton_sam.local_server import closed, ports, settings, stub_path
from triton_sam.local_server.closed import PlainNames, closed_options, hide_key, is_plain, make_run_directory
from triton_sam.local_server.settings import (
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
from triton_sam.repository.folder import RepositoryModel
from triton_sam.repository.selection import select_models

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the local server needs Linux")
MIB = 1 << 20


def session(cache, instances="count: 1, kind: KIND_AUTO"):
    text = (
        f'backend: "python" instance_group [{{ {instances} }}] '
        f'parameters [{{ key: "cache_bytes", value {{ string_value: "{cache}" }} }}]'
    )
    return RepositoryModel(Path("sam2"), parse_config(text))


def on_gpu(number, mebibytes):
    return session(str(mebibytes * MIB), f"count: 1, kind: KIND_GPU, gpus: [{number}]")


@pytest.mark.parametrize(
    ("models", "given", "expected"),
    [
        (
            [
                session(str(100 * MIB)),
                on_gpu(0, 200),
                on_gpu(1, 300),
                session(str(400 * MIB), "count: 1, kind: KIND_CPU"),
            ],
            [],
            [f"{CUDA_POOL}=0:{812 * MIB}", f"{CUDA_POOL}=1:{812 * MIB}"],
        ),
        *(([session(wrong)], [], []) for wrong in ("", "-1", "512 MiB", "none")),  # the model says so
        ([session("9" * 30)], [], [f"{CUDA_POOL}=0:{2**63 - 1}"]),  # no larger number of Triton
        *(([session("1")], given, []) for given in ([f"{CUDA_POOL}=0:1"], [CUDA_POOL, "0:1"])),  # of the user
    ],
)
def test_each_gpu_gets_a_pool_for_its_session_models(models, given, expected):
    assert cuda_pool_options(models, given) == expected


def test_the_pool_of_gpu_memory_holds_the_embeddings_of_the_built_in_model():
    folders = select_models(bundled("model_repository"), ["sam2"])
    assert cuda_pool_options(folders, []) == [f"{CUDA_POOL}=0:{(512 + 512) * MIB}"]
    (encoder,) = (folder for folder in folders if folder.name == "sam2_encoder")
    assert cuda_pool_options([encoder], []) == []


def test_metrics_of_the_user_replace_ours():
    assert [option.split("=")[1] for option in metrics_options([])] == ["summary_latencies", "summary_quantiles"]
    for given in (["--metrics-config=summary_latencies=false"], ["--metrics-config", "summary_latencies=false"]):
        assert [option.split("=")[1] for option in metrics_options(given)] == ["summary_quantiles"]
    assert values_of(["--a=1", "--b", "2", "--a", "3", "--aa=4", "--a"], "--a") == ["1", "3", ""]


def test_models_load_one_after_the_other_on_a_gpu_and_share_their_threads_on_a_cpu(monkeypatch):
    shared = "--backend-config=onnxruntime,enable-global-threadpool="
    monkeypatch.setattr(settings, "has_gpu", lambda: False)
    assert load_options([]) == []
    assert thread_options([session("1")], ["--backend-config=python,shm-default-byte-size=1"]) == [f"{shared}1"]
    assert thread_options([session("1")], [f"{shared}0"]) == []
    threads = 'parameters [{ key: "intra_op_thread_count", value { string_value: "1" } }]'
    assert thread_options([session("1"), RepositoryModel(Path("mine"), parse_config(threads))], []) == []
    monkeypatch.setattr(settings, "has_gpu", lambda: True)
    assert thread_options([session("1")], []) == []
    assert f"{LOAD_THREADS}=1" in server_options([session("1")], [])
    assert load_options([f"{LOAD_THREADS}=4"]) == []


def test_complete_configurations_are_not_completed():
    """A model whose config.pbtxt leaves its backend to Triton needs the completion."""
    folders = select_models(bundled("model_repository"), None)
    assert completion_options(folders, []) == [NO_COMPLETION]
    assert completion_options(folders, [NO_COMPLETION]) == []
    for text in ('backend: "python"', 'input {name: "x"} output {name: "y"}'):
        assert completion_options([*folders, RepositoryModel(Path("mine"), parse_config(text))], []) == []


def test_a_log_of_the_options_does_not_contain_the_key(tmp_path):
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
def test_keys_of_the_user_are_hidden_as_well(word, shown):
    assert hide_key(word) == (shown or word)


# The hosts at which other computers reach a server


@pytest.mark.parametrize(
    ("address", "hosts"), [("127.0.0.1", []), ("198.51.100.2", ["198.51.100.2"]), ("0.0.0.0", ["192.0.2.7", "gpu"])]
)
def test_hosts_for_others(address, hosts, monkeypatch):
    monkeypatch.setattr(ports, "own_address", lambda: "192.0.2.7")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu")
    assert ports.hosts_for_others(address) == hosts


def test_the_own_address_is_one_of_this_machine():
    with socket.socket() as probe:
        probe.bind((ports.own_address(), 0))


# Plain names for paths that Triton's Python backend cannot handle


def test_only_paths_that_need_it_get_a_link(tmp_path):
    names = PlainNames(tmp_path / "links")
    assert names.of(tmp_path) == tmp_path
    assert not (tmp_path / "links").exists()
    odd = [tmp_path / name for name in ("józef", "a b", "$(id)", "a;b", "[x]", os.fsdecode(b"caf\xe9"), "a\nb")]
    links = [names.of(path) for path in odd]
    assert [link.readlink() for link in links] == odd
    assert all(is_plain(link) for link in links)
    assert len(set(links)) == len(odd)
    assert names.of(odd[0]) == links[0]


def test_the_folder_of_a_run_is_plain_wherever_tmpdir_is(tmp_path, monkeypatch):
    (tmp_path / "józef").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "józef"))
    monkeypatch.setattr(closed, "_OTHER_PARENTS", (str(tmp_path / "absent"), str(tmp_path)))
    assert make_run_directory().parent == tmp_path
    monkeypatch.setattr(closed, "_OTHER_PARENTS", ())
    with pytest.raises(LocalServerError, match="józef: set TMPDIR"):
        make_run_directory()


def test_the_path_of_a_stub(tmp_path):
    """In the locale C: folders are added, and .pth files run whatever is beside them."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "a.pth").write_bytes("# comment ż\n/a/folder\nimport sys; sys.first = 1\n".encode())
    (folder / "b.pth").write_bytes(b"import no_such_module_\xc3\xa9\nimport sys; sys.lost = 1\n")
    (folder / "c.pth").write_bytes(b"import sys; sys.third = 3\n")
    program = "import sys, stub_path; stub_path.extend(sys.argv[1:]); print(sys.first, sys.third, sys.path[-1])"
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(Path(stub_path.__file__).parent)}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "3", str(folder)]
    assert "no_such_module" in done.stderr
