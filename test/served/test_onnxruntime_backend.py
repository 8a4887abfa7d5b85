"""The Python-based onnxruntime backend, in the real Triton."""

import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from support.tiny_models import (
    CPU,
    TYPED_CONFIG,
    add_graph,
    config_of,
    http,
    infer,
    ones,
    scale_graph,
    tritonclient_utils,
    typed_graph,
    write_model,
    write_repository,
)

from triton_sam._common import onnx_session
from triton_sam._common.bundle import bundled
from triton_sam.errors import LocalServerError
from triton_sam.local_server import LocalServer
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.repository.config import parse_config

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("model_repository"))


@pytest.fixture(scope="module")
def backend_server(repository):
    with LocalServer(repository) as running:
        yield running


@pytest.fixture(scope="module")
def backend_client(backend_server):
    with http.InferenceServerClient(backend_server.http_url.removeprefix("http://")) as connected:
        yield connected


def test_models_with_weights_are_ready_and_the_rest_is_left_out(backend_server, repository):
    ready = {model.name for model in backend_server.served_models()}
    assert ready == {path.name for path in repository.iterdir()} - {"weightless"}
    assert {model.device for model in backend_server.served_models() if model.name == "scale"} == {"CPU"}


def test_onnxruntime_reports_nothing_to_its_makers(backend_server):
    stubs = psutil.Process(backend_server.pid).children()
    assert stubs
    assert {stub.environ()["ORT_DISABLE_TELEMETRY"] for stub in stubs} == {os.environ.get("ORT_DISABLE_TELEMETRY", "1")}


def test_numbers_too_small_for_full_precision_count_as_zero(backend_client):
    x = np.array([[1e-40, 1e-30]], np.float32)  # computing with the first takes many times as long as with the second
    assert x[0, 0] > 0
    (y,) = infer(backend_client, "scale", x=x).as_numpy("y")
    assert y[0] == 0
    assert y[1] == 2 * x[0, 1]


@pytest.mark.parametrize(
    ("model", "version", "arrays", "answer"),
    [
        ("scale", "", {"x": ones(2, 3)}, np.full((2, 3), 2)),
        ("scale", "", {"x": ones(1, 2), "scale": np.float32([9])}, np.full((1, 2), 9)),  # the optional input
        ("scale", "", {"x": ones(0, 3)}, ones(0, 3)),
        ("external", "", {"x": ones(1, 512)}, 1 + np.arange(512)[None]),  # its data are beside the model
        ("renamed", "", {"x": ones(1, 1)}, [[3]]),  # default_model_filename
        ("versions", "1", {"x": ones(1, 1)}, [[1]]),
        ("versions", "7", {"x": ones(1, 1)}, [[7]]),
        ("versions", "", {"x": ones(1, 1)}, [[7]]),  # the highest
        ("bls", "", {"x": ones(1, 1)}, [[4]]),  # it calls the ONNX model twice
    ],
)
def test_each_feature_has_its_answer(backend_client, model, version, arrays, answer):
    np.testing.assert_array_equal(infer(backend_client, model, version=version, **arrays).as_numpy("y"), answer)


def test_an_ensemble_calls_the_onnx_model(backend_client):
    assert infer(backend_client, "chain", a=ones(1, 1)).as_numpy("b").item() == 2


def test_missing_config_is_derived_from_the_graph(tmp_path):
    write_model(tmp_path, "no_config", scale_graph(5), None)
    write_model(tmp_path, "half_config", add_graph(), 'backend: "onnxruntime"\nmax_batch_size: 4\n')
    with LocalServer(tmp_path) as server, http.InferenceServerClient(server.http_url[7:]) as client:
        inputs = client.get_model_config("no_config")["input"]
        assert [(entry["name"], entry["dims"], entry["optional"]) for entry in inputs] == [
            ("x", [-1, -1], False),
            ("scale", [1], True),
        ]
        assert infer(client, "no_config", x=ones(1, 1)).as_numpy("y").item() == 5
        assert [entry["dims"] for entry in client.get_model_config("half_config")["input"]] == [[-1]]


def test_fp16_int64_and_bytes(backend_client):
    arrays = {
        "half": np.float16([1.5, -2]),
        "long": np.array([2**40], np.int64),
        "text": np.array([b"click", "ä".encode()], np.object_),
    }
    answer = infer(backend_client, "typed", **arrays)
    for name, array in arrays.items():
        assert answer.as_numpy(f"{name}_out").tolist() == array.tolist()


def test_only_requested_outputs_come_back(backend_client):
    arrays = {"half": np.float16([1]), "long": np.array([1]), "text": np.array([b"a"], np.object_)}
    answer = infer(backend_client, "typed", ["long_out"], **arrays).get_response()
    assert [output["name"] for output in answer["outputs"]] == ["long_out"]


def test_each_request_of_a_batch_gets_its_own_answer(backend_server):
    address = backend_server.http_url.removeprefix("http://")
    with http.InferenceServerClient(address, concurrency=4) as many:
        calls = []
        for value in range(8):
            tensor = http.InferInput("x", [1 + value % 2, 2], "FP32")
            tensor.set_data_from_numpy(np.full((1 + value % 2, 2), value, np.float32))
            calls.append(many.async_infer("batched", [tensor]))
        answers = [call.get_result().as_numpy("y") for call in calls]
    assert [answer.shape[0] for answer in answers] == [1, 2] * 4
    assert [answer[0, 0] for answer in answers] == [2 * value for value in range(8)]


def test_a_failing_request_gets_one_line_and_the_model_stays_ready(backend_client):
    with pytest.raises(tritonclient_utils.InferenceServerException, match="Add") as caught:
        infer(backend_client, "add", x=ones(1, 3))
    assert "\n" not in caught.value.message()
    assert "onnxruntime_src" not in caught.value.message()
    assert caught.value.status() == "500"  # as from the C++ backend
    assert infer(backend_client, "add", x=ones(1, 4)).as_numpy("y").tolist() == [[1, 2, 3, 4]]


def test_a_shape_that_the_config_refuses_is_a_wrong_request(backend_client):
    with pytest.raises(tritonclient_utils.InferenceServerException, match="unexpected shape") as caught:
        infer(backend_client, "add", x=ones(1, 4, 1))
    assert caught.value.status() == "400"


# --- models that do not load


def test_each_model_that_does_not_load_says_why(tmp_path):
    write_model(tmp_path, "wrong", scale_graph(), config_of().replace('"y"', '"mask"'))
    write_model(tmp_path, "other", scale_graph(), config_of().replace('"x"', '"z"'))
    partial = "\n".join(line for line in TYPED_CONFIG.splitlines() if 'name: "text"' not in line)
    write_model(tmp_path, "partial", typed_graph(), partial)
    threads = CPU + 'parameters { key: "intra_op_thread_count" value: { string_value: "many" } }'
    write_model(tmp_path, "threads", add_graph(), config_of(more=threads))
    write_model(tmp_path, "fast", add_graph(), config_of(more="instance_group { kind: KIND_GPU count: 1 }"))
    with pytest.raises(LocalServerError) as caught:
        LocalServer(tmp_path).start()
    for words in (
        "config.pbtxt names output mask; the ONNX file has y",
        "config.pbtxt names input z; the ONNX file has scale, x",
        "config.pbtxt leaves out input text, which the ONNX file needs",
        "intra_op_thread_count must be a whole number, not 'many'",
    ):
        assert words in str(caught.value)
    if not HAS_GPU:
        assert re.search("'fast' failed to load: .*GPU", str(caught.value))


def test_the_memory_limit_of_triton_sam_config_reaches_cuda(backend, monkeypatch):
    """No GPU is needed: the providers of ONNX Runtime are those of a machine with CUDA."""
    cuda = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(backend, "import_onnxruntime", lambda: cuda)
    text = (bundled("model_repository") / "sam2_encoder" / "config.pbtxt").read_text()
    config = parse_config(tune(text, Tuning("cuda", "cuda", memory_limit=3 << 30)))
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    instance = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}
    assert backend.choose_providers(instance, parameters) == [
        ("CUDAExecutionProvider", {"device_id": 1, "gpu_mem_limit": 3 << 30}),
        "CPUExecutionProvider",
    ]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_containers_limit_of_the_processor(monkeypatch, tmp_path, files, cores):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(onnx_session, "CGROUP", tmp_path)
    assert onnx_session.cgroup_quota() == cores


@pytest.mark.parametrize(
    ("file", "content", "limit"),
    [
        ("memory.max", "1000000\n", 1_000_000),
        ("memory/memory.limit_in_bytes", "2000000\n", 2_000_000),
        ("memory.max", "max\n", None),
    ],
)
def test_the_containers_limit_of_memory(monkeypatch, tmp_path, file, content, limit):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    monkeypatch.setattr(onnx_session, "CGROUP", tmp_path)
    assert onnx_session.usable_memory() == (limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def test_a_cancelled_request_is_not_computed(backend):
    model = backend.TritonPythonModel()  # it has no runtime session, so computing would raise AttributeError
    gone, alive = (SimpleNamespace(is_cancelled=lambda state=state: state) for state in (True, False))
    with pytest.raises(backend.pb_utils.TritonModelException, match="cancelled"):
        model.execute([gone, gone])
    model.answer = lambda request: "computed"
    answers = model.execute([gone, alive])
    assert isinstance(answers[0].error, backend.pb_utils.TritonError)
    assert answers[1] == "computed"
