"""A local server refuses administrative requests: it computes and lists its models, but clients cannot change it."""

import base64
import json

import httpx
import psutil
import pytest
from support.tiny_models import SCALE_CONFIG, add_graph, config_of, scale_graph, write_model
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from triton_sam.cli import main
from triton_sam.local_server import LocalServer

PROGRAM = base64.b64encode(b"raise SystemExit").decode()
CONFIG = json.dumps({"name": "scale", "backend": "python", "max_batch_size": 0})
# Requests that change a server, or let it read or write elsewhere. A page in a browser can send them without headers.
ADMIN_REQUESTS = {
    "load": ("/v2/repository/models/scale/load", {}),
    "load a program": (
        "/v2/repository/models/scale/load",
        {"parameters": {"config": CONFIG, "file:1/model.py": PROGRAM}},
    ),
    "load another model": ("/v2/repository/models/add/load", {}),
    "unload": ("/v2/repository/models/scale/unload", {}),
    "share memory": ("/v2/systemsharedmemory/region/a/register", {"key": "/a", "offset": 0, "byte_size": 8}),
    "shared memory": ("/v2/systemsharedmemory/status", None),
    "shared memory of a GPU": ("/v2/cudasharedmemory/status", None),
    "logging": ("/v2/logging", {"log_verbose_level": 4}),
    "trace": ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed")
    write_model(folder, "scale", scale_graph(), SCALE_CONFIG)
    write_model(folder, "add", add_graph(), config_of())
    return folder


@pytest.fixture(scope="module")
def closed(repository):
    with LocalServer(repository, models=["scale"]) as server:
        yield server


def send(server: LocalServer, name: str) -> int:
    path, body = ADMIN_REQUESTS[name]
    content, method = (None, "GET") if body is None else (json.dumps(body), "POST")
    return httpx.request(method, server.http_url + path, content=content, timeout=60).status_code


def test_admin_requests_are_refused_and_change_nothing(closed):
    for name in ADMIN_REQUESTS:
        assert send(closed, name) in (400, 403, 503), name
        assert [model.name for model in closed.served_models()] == ["scale"], name


def test_admin_requests_over_grpc_are_refused(closed):
    with grpc.InferenceServerClient(closed.grpc_url.removeprefix("grpc://")) as client:
        for refused in (
            lambda: client.load_model("scale"),
            lambda: client.unload_model("scale"),
            client.get_system_shared_memory_status,
            client.get_cuda_shared_memory_status,
            lambda: client.register_system_shared_memory("a", "/a", 8),
            client.get_log_settings,
            client.get_trace_settings,
        ):
            with pytest.raises(InferenceServerException):
                refused()
        assert client.is_model_ready("scale")


def test_reload_from_another_machine_says_what_to_do(closed, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("triton_sam.local_server.control.SHARED_MEMORY", tmp_path)  # the server is not on this machine
    for url in (closed.http_url, closed.grpc_url):
        assert main(["reload", "scale", "--url", url]) == 1
        error = capsys.readouterr().err
        assert "triton-sam serve --admin" in error
        assert error.count("\n") == 1


def test_the_server_listens_on_loopback_alone(closed):
    places = psutil.Process(closed.pid).net_connections()
    listening = {place.laddr.ip for place in places if place.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}  # gRPC shows a mapped IPv6 address


def test_a_server_with_admin_accepts_admin_requests(repository):
    with LocalServer(repository, models=["scale"], admin=True) as server:
        assert send(server, "unload") == 200
        assert server.served_models() == []
        assert send(server, "load another model") == 200
        assert [model.name for model in server.served_models()] == ["add"]
        for name in ("shared memory", "logging"):
            assert send(server, name) == 200


def test_a_key_of_the_caller_replaces_our_own(repository):
    """Triton refuses an option that is given twice, so the server leaves out its own."""
    options = ["--http-restricted-api=logging:key=secret"]
    with LocalServer(repository, models=["scale"], extra_args=options) as server:
        assert httpx.get(f"{server.http_url}/v2/logging", headers={"key": "secret"}, timeout=60).status_code == 200
        assert send(server, "logging") == 403
        assert send(server, "unload") == 503
