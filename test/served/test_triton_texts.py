"""A real Triton sends the messages that wire/triton_texts.py recognises.

`SEEN_ELSEWHERE` names the tests that provoke the others.
"""

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import psutil
import pytest
from support.conditions import wait_until
from support.tiny_models import CPU, MATRIX, WAITING_MODEL, config_of, model_of, scale_graph, write_model
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from triton_sam.errors import ModelNotReadyError, ServerBusyError, ServerUnreachableError
from triton_sam.local_server import LocalServer
from triton_sam.transport.failures import map_error
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url
from triton_sam.wire import triton_texts

SEEN_ELSEWHERE = {
    "DEADLINE": "test/served/test_faults.py",
    "NOT_CONNECTED": "test/unit/transport/test_transport.py",
    "SERVER_ENDS": "test/unit/transport/test_retry.py; a server says it for an instant only",
    "UNTRUSTED_CERTIFICATE": "test/unit/commands/test_doctor_health.py",
}
QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"


def huge_graph() -> Any:
    """y of a million rows for each row of x, in float32, squared: more than any machine has."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", "d"]) for name in "xy")
    shape = onnx.numpy_helper.from_array(np.array([1 << 20, 1 << 22], np.int64), "shape")
    return model_of([onnx.helper.make_node("Expand", ["x", "shape"], ["y"])], [x], [y], [shape])


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts") / "models"
    write_model(folder, "scale", scale_graph(), config_of(f"TYPE_FP32 {MATRIX}"))
    write_model(folder, "huge", huge_graph(), config_of(f"TYPE_FP32 {MATRIX}"))
    waiting = config_of(f"TYPE_FP32 {MATRIX}", more=QUEUE + CPU).replace("onnxruntime", "python")
    program = WAITING_MODEL.format(folder=str(folder.parent)).encode()
    write_model(folder, "waiting", program, waiting, "1/model.py")
    (folder.parent / "wanted").touch()
    return folder


@pytest.fixture(scope="module")
def texts_server(repository):
    with LocalServer(repository, models=["scale", "huge", "waiting"], heal=False) as texts_server:
        yield texts_server


def over_http(server: LocalServer, path: str, body: Any) -> str:
    """Return the error of a request; empty if there is none."""
    answer = httpx.post(f"{server.http_url}/v2/{path}", json=body, timeout=60)
    return "" if answer.is_success else str(answer.json()["error"])


def infer_http(server: LocalServer, model: str) -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0]}
    return over_http(server, f"models/{model}/infer", {"inputs": [tensor]})


def infer_grpc(server: LocalServer, model: str) -> str:
    tensor = grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
    with grpc.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        try:
            client.infer(model, [tensor])
        except InferenceServerException as error:
            return str(error.message())
    return ""


PROTOCOLS = pytest.mark.parametrize("infer", [infer_http, infer_grpc])


@PROTOCOLS
def test_a_model_that_is_not_there(texts_server, infer):
    assert infer(texts_server, "scale") == ""
    assert triton_texts.NOT_READY.search(infer(texts_server, "nobody"))


@PROTOCOLS
def test_a_model_without_memory(texts_server, infer):
    assert triton_texts.NO_ROOM.search(infer(texts_server, "huge"))


@PROTOCOLS
def test_a_full_queue(texts_server, repository, infer):
    (repository.parent / "wanted").unlink()
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(infer(texts_server, "waiting"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: any(list(answers)))
    (repository.parent / "wanted").touch()
    for thread in threads:
        thread.join(60)
    refused = [answer for answer in answers if answer]
    assert 0 < len(refused) < 6
    for answer in refused:
        assert triton_texts.QUEUE_IS_FULL.search(answer)
        meant = map_error(InferenceServerException(answer), parse_url(texts_server.http_url), "waiting")
        assert isinstance(meant, ServerBusyError)


def test_requests_for_administration(texts_server):
    assert triton_texts.LOADS_NO_MODELS.search(over_http(texts_server, "repository/models/scale/load", {}))
    assert triton_texts.RESTRICTED.search(over_http(texts_server, "logging", {"log_verbose_level": 4}))
    with grpc.InferenceServerClient(texts_server.grpc_url.removeprefix("grpc://")) as client:
        with pytest.raises(InferenceServerException) as load:
            client.load_model("scale")
        with pytest.raises(InferenceServerException) as settings:
            client.get_log_settings()
    assert triton_texts.LOADS_NO_MODELS.search(load.value.message())
    assert triton_texts.RESTRICTED.search(settings.value.message())


def test_a_process_that_is_gone(repository):
    with LocalServer(repository, models=["waiting"], heal=False) as server:
        for stub in psutil.Process(server.pid).children(recursive=True):
            stub.kill()
        for infer in (infer_http, infer_grpc):
            assert triton_texts.PROCESS_IS_GONE.search(infer(server, "waiting"))


def test_whatever_a_server_says_while_it_ends_means_that_it_is_gone(repository):
    said: set[str] = set()
    kinds: set[type] = set()
    stop = threading.Event()

    def hammer(transport: Transport) -> None:
        while not stop.is_set():
            try:
                transport.infer("waiting", {"x": np.zeros((1, 1), np.float32)}, ["y"])
            except Exception as error:
                kinds.add(type(error))
                said.add(str(error))

    with LocalServer(repository, models=["waiting"], heal=False) as server:
        transports = [Transport(parse_url(server.grpc_url), retries=0) for _ in range(3)]
        threads = [threading.Thread(target=hammer, args=(transport,)) for transport in transports]
        for thread in threads:
            thread.start()
        server.stop()  # not a signal: now and then, Triton does not end for a minute under load
        wait_until(lambda: any("nothing answers" in each for each in list(said)))
        stop.set()
        for thread in [*threads]:
            thread.join(60)
    assert kinds <= {ServerUnreachableError, ModelNotReadyError, ServerBusyError}, said  # the queue has one place


def test_every_pattern_is_provoked():
    here = Path(__file__).read_text("utf-8")
    names = [name for name, value in vars(triton_texts).items() if isinstance(value, re.Pattern)]
    assert [name for name in names if f"triton_texts.{name}." not in here and name not in SEEN_ELSEWHERE] == []
