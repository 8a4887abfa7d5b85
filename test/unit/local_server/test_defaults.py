"""The options of tritonserver that this package sets, plain paths, and the reasons that its log gives for failures."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the local server needs Linux")

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.errors import LocalServerError  # noqa: E402
from triton_sam.local_server import closed, ports, settings, stub_path  # noqa: E402
from triton_sam.local_server.closed import PlainNames, hide_key, is_plain, make_run_directory  # noqa: E402
from triton_sam.local_server.probe import NOT_LOADED, explain, unread_configs  # noqa: E402
from triton_sam.local_server.settings import (  # noqa: E402
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
from triton_sam.repository.config import parse_config  # noqa: E402
from triton_sam.repository.folder import RepositoryModel  # noqa: E402
from triton_sam.repository.selection import select_models  # noqa: E402

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
    assert make_run_directory(runs_programs=True).parent == tmp_path
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(LocalServerError, match="not mounted with noexec"):
        make_run_directory(runs_programs=True)
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


PARSER = "[libprotobuf ERROR /tmp/text_format.cc:337] Error parsing text-format inference.ModelConfig: "
POLL = "E1123 23:57:23.729339 7829 model_repository_manager.cc:1460] \"Poll failed for model directory 'decoder': "
UNREADABLE = POLL + 'failed to read text proto from /tmp/run/models/decoder/config.pbtxt"'
ANOTHER = PARSER.replace("ModelConfig", "Another")


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "decoder").mkdir()
    (tmp_path / "decoder" / "config.pbtxt").write_text('name: "decoder"\n  max_batch_size: zero\n')
    return tmp_path


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("2:19: Expected integer, got: zero", "line 2: Expected integer, got: zero in `max_batch_size: zero`"),
        ("3:1: Expected identifier, got: ", "line 3: Expected identifier, got:"),  # at the end of the file
    ],
)
def test_the_file_the_line_and_the_reason_are_named(repository, error, reason):
    log = "\n".join([PARSER + error, UNREADABLE, "I1123 grpc_server.cc:2558] started"])
    assert unread_configs(log, repository) == {"decoder": f"{repository / 'decoder' / 'config.pbtxt'}, {reason}"}


def test_a_reason_belongs_to_the_model_in_the_next_line_alone(repository):
    refused = POLL.replace("decoder", "other") + 'Invalid model name: Could not determine backend"'
    log = "\n".join([PARSER + "2:19: Expected integer, got: zero", UNREADABLE, refused])
    found = unread_configs(log, repository)
    assert list(found) == ["decoder", "other"]
    assert found["other"] == f"{repository / 'other' / 'config.pbtxt'}: Invalid model name: Could not determine backend"


def test_a_file_that_is_gone_is_named_without_a_quote(tmp_path):
    log = f"{PARSER}2:19: Expected integer, got: zero\n{UNREADABLE}"
    assert unread_configs(log, tmp_path) == {
        "decoder": f"{tmp_path / 'decoder' / 'config.pbtxt'}, line 2: Expected integer, got: zero"
    }


def test_a_log_without_such_a_failure_gives_nothing(repository):
    assert unread_configs("", repository) == {}
    assert unread_configs(f"{ANOTHER}1:1: Expected identifier\n{PARSER}1:1: Expected identifier", repository) == {}


ERROR = "E1128 09:20:12.272700 12576 model_repository_manager.cc:703] "
SHAPES = "in ensemble sam2_encoder_jpeg, ensemble tensor image: inconsistent shape"


def test_an_ensemble_that_does_not_fit_its_models_says_why(tmp_path):
    other = f'{ERROR}"Invalid argument: in ensemble sam2_encoder_jpeg_2, other"'
    log = "\n".join([f'{ERROR}"Invalid argument: {SHAPES}"', other, f'{ERROR}"Internal: failed to load all models"'])
    failures = {"sam2_encoder_jpeg": NOT_LOADED, "sam2": NOT_LOADED, "sam2_decoder": "another reason"}
    assert explain(failures, log, tmp_path) == {**failures, "sam2_encoder_jpeg": SHAPES}


def test_a_process_that_ended_has_the_last_words(tmp_path):
    log = f"{ERROR}other\nterminate called after throwing an instance of 'x'\n  what():  no luck\n"
    reason = "Stub process 'sam2_0_0' is not healthy."
    (text,) = explain({"sam2": reason}, log, tmp_path).values()
    assert text == f"{reason[:-1]}: terminate called after throwing an instance of 'x' /   what():  no luck"
