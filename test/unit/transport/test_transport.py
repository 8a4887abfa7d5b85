"""URLs, and what becomes of errors below us. The server here is a socket that misbehaves; no model is involved."""

import os
import re
import signal
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from support.conditions import settled
from support.socket_server import Server, always, reads_nothing, refusing_port, response, tensors
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam._common.bundle import bundled
from triton_sam.errors import ConfigurationError, InferenceError, ServerTimeoutError, ServerUnreachableError
from triton_sam.transport import Transport
from triton_sam.transport.failures import ADVICE, RETRY_PAUSE
from triton_sam.transport.timed_sockets import Call
from triton_sam.transport.triton import map_error
from triton_sam.transport.url import parse_url

INPUT = {"image": np.zeros((1, 3), np.float32)}


@pytest.mark.parametrize(
    ("text", "expected", "port", "is_local"),
    [
        ("localhost:8000", "http://localhost:8000", 8000, True),
        ("localhost", "http://localhost:8000", 8000, True),
        ("http://10.0.0.1:9000/", "http://10.0.0.1:9000", 9000, False),
        ("http://host/triton/", "http://host:8000/triton", 8000, False),
        ("https://localhost/sam", "https://localhost:443/sam", 443, True),
        ("http://localhost/a:b", "http://localhost:8000/a:b", 8000, True),
        ("grpc://127.0.0.1", "grpc://127.0.0.1:8001", 8001, True),
        ("grpcs://host:5001", "grpcs://host:5001", 5001, False),
        ("grpcs://example.org", "grpcs://example.org:443", 443, False),
        ("http://[::1]:9000/base/path", "http://[::1]:9000/base/path", 9000, True),
        ("http://localhost.example.org:80", "http://localhost.example.org:80", 80, False),
    ],
)
def test_url_forms(text, expected, port, is_local):
    parsed = parse_url(text)
    assert (str(parsed), parsed.port, parsed.is_local) == (expected, port, is_local)


ADDRESS = "is not a server URL: write host:port, http://host:port or grpc://host:port"
PORT = "is not a server URL: the port must be a number up to 65535, as in host:8000"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, f"'{text}' {ADDRESS}") for text in ("", "http://", "a b:8000", "http://h?x")),
        *((text, f"'{text}' {PORT}") for text in ("localhost:abc", "http://localhost:65536", "grpc://[::1]:-1")),
        ("http://user:secret@host", "a server URL has no user and password: send headers"),
        ("ftp://host", "'ftp://host': the scheme must be one of http, https, grpc, grpcs"),
        ("grpc://h/path", "'grpc://h/path': a gRPC URL has no path"),
    ],
)
def test_urls_that_cannot_work(text, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        parse_url(text)


def test_no_url_means_the_environment_then_the_default(monkeypatch):
    monkeypatch.delenv("TRITON_URL", raising=False)
    assert str(parse_url(None)) == "http://localhost:8000"
    monkeypatch.setenv("TRITON_URL", "grpc://gpu:8001")
    assert str(parse_url(None)) == "grpc://gpu:8001"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_nothing_listens(scheme):
    with refusing_port() as port:
        transport = Transport(parse_url(f"{scheme}://127.0.0.1:{port}"), retries=0, timeout=60)
        hint = (
            rf"nothing answers at {scheme}://127.0.0.1:{port} \(Connection refused\): start a server with `triton-sam"
        )
        with pytest.raises(ServerUnreachableError, match=hint):
            transport.infer("model", INPUT, ["out"])
        assert not transport.is_ready()


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(5, "words"), "words"), (OSError("words"), "words"), (OSError(), "OSError")]
)
def test_an_error_of_the_system_is_named(error, reason):
    assert str(map_error(error, parse_url("http://h"))).startswith(f"nothing answers at http://h:8000 ({reason}): ")


def test_an_error_of_tls_without_a_reason_is_named():
    assert "closed." in str(map_error(ssl.SSLError("Underlying socket has been closed."), parse_url("https://h")))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("errors resolving h:1: [field:lookup error:lookup failed for h:1: Not found]", "Not found"),
        ("DNS resolution failed for h:1: Domain name not found", "Domain name not found"),
        ("failed to connect to all addresses", "failed to connect to all addresses"),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: Tls handshake failed: VERSION",
            None,
        ),
    ],
)
def test_grpc_finds_no_server_or_one_that_does_not_speak_tls(message, reason):
    error = map_error(InferenceServerException(message, status="StatusCode.UNAVAILABLE"), parse_url("grpcs://h:1"))
    if reason is None:
        assert str(error) == f"grpcs://h:1 is not available: {message}"
    else:
        assert str(error).startswith(f"nothing answers at grpcs://h:1 ({reason}): start a server")


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_silent_server_is_a_timeout_and_not_retried(scheme, monkeypatch):
    attempts = []

    def counted(*arguments):
        attempts.append(1)
        return Call(*arguments)

    monkeypatch.setattr("triton_sam.transport.triton.Call", counted)
    with Server(reads_nothing) as server:
        transport = Transport(parse_url(server.url.replace("http", scheme)), retries=5, timeout=0.5)
        start = time.monotonic()
        with pytest.raises(ServerTimeoutError):
            transport.infer("model", INPUT, ["out"])
        assert time.monotonic() - start < 60
        assert len(attempts) == 1
        assert scheme == "grpc" or len(server.connections) <= 1  # a pause may use up the time before the connection
        transport.close()


def drop(server, connection):
    server.read(connection)
    connection.close()


@pytest.fixture
def pauses(monkeypatch):
    """Seconds between the tries of a call; none is waited."""
    waited = []
    monkeypatch.setattr("triton_sam.transport.triton.pause", waited.append)
    return waited


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_a_connection_that_breaks_is_retried_so_often_and_then_reported(pauses, retries):
    with Server(drop) as server:
        transport = Transport(parse_url(server.url), retries=retries)
        with pytest.raises(ServerUnreachableError):
            transport.infer("model", INPUT, ["out"])
        assert len(server.connections) == len(pauses) + 1 == retries + 1


def test_a_call_whose_server_is_gone_says_so_before_its_timeout(monkeypatch):
    """On a clock that only pauses move on: an attempt that itself takes long may reach the timeout."""
    clock = [1000.0]

    def pause(seconds):
        clock[0] += seconds

    monkeypatch.setattr("triton_sam.transport.triton.pause", pause)
    frozen = SimpleNamespace(**{**vars(time), "monotonic": lambda: clock[0]})
    for module in ("triton", "timed_sockets", "failures"):  # not for threads of other modules
        monkeypatch.setattr(f"triton_sam.transport.{module}.time", frozen)
    with refusing_port() as port:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]
        # The look-up itself waits for its thread on the real clock, for the rest of the timeout.
        monkeypatch.setattr("triton_sam.transport.timed_sockets.resolve", lambda *_: found)
        transport = Transport(parse_url(f"http://127.0.0.1:{port}"), timeout=1.0, retries=1)
        transport._answered.add("model")  # so that refused connections are waited for
        with pytest.raises(ServerUnreachableError, match="nothing answers"):
            transport.infer("model", INPUT, ["out"])
        assert clock[0] > 1000 + RETRY_PAUSE  # more than one pause
        transport.close()


def test_what_changes_the_server_is_asked_for_once(pauses):
    with Server(drop) as server:
        transport = Transport(parse_url(server.url), retries=5)
        with pytest.raises(ServerUnreachableError):
            transport.load_model("model")
        assert len(server.connections) == 1
    assert not pauses


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_on_this_machine_is_not_looked_for_behind_a_proxy(scheme, service_triton, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    url = service_triton.http_url if scheme == "http" else service_triton.grpc_url
    assert Transport(parse_url(url)).ready_models()
    with SpeculativeSAM2Client(url) as client:
        client.set_image(bundled("test/images") / "shapes.jpg")


@contextmanager
def http_server(answers):
    def serve(server, connection):
        while server.read(connection):
            outputs = answers.pop(0)
            described = {"datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}}
            connection.sendall(tensors(*({"name": name, **described} for name in outputs), data=b"a" * len(outputs)))

    with Server(serve) as server:
        yield server.url


@contextmanager
def grpc_server(answers):
    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelInfer(self, request, context):  # noqa: N802 - gRPC's name
            outputs = answers.pop(0)
            described = [{"name": name, "datatype": "UINT8", "shape": [1]} for name in outputs]
            return service_pb2.ModelInferResponse(outputs=described, raw_output_contents=[b"a"] * len(outputs))

    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("serve", [http_server, grpc_server])
@pytest.mark.parametrize(
    ("answers", "retries", "attempts"),
    [(["y", "yz"], 5, 2), (["y", "y"], 5, 2), (["y"], 0, 1)],
)
def test_an_answer_that_lacks_an_output_is_requested_once_more(serve, answers, retries, attempts, monkeypatch):
    ends, is_complete = [], answers[-1] == "yz"

    def counted(end, headers):
        ends.append(end)
        return Call(end, headers)

    monkeypatch.setattr("triton_sam.transport.triton.Call", counted)
    with serve(list(answers)) as url:
        transport = Transport(parse_url(url), retries=retries)
        if is_complete:
            assert transport.infer("model", INPUT, ["y", "z"]).keys() == {"y", "z"}
            assert transport._answered == {"model"}
        else:
            with pytest.raises(InferenceError, match=r"^model sent no output 'z'$"):
                transport.infer("model", INPUT, ["y", "z"])
        transport.close()
    assert ends == attempts * ends[:1]  # all attempts share one deadline


WITH_PATH = r" \(HTTP status 404\): leave the path /sam out, unless a proxy in front of Triton adds it"


@pytest.mark.parametrize(
    ("status", "body", "path", "words"),
    [
        ("200 OK", "hello", "", re.escape(f": {ADVICE}")),
        ("404 Not Found", "hello", "", r" \(HTTP status 404\)"),
        ("404 Not Found", "hello", "/sam", WITH_PATH),
        ("404 Not Found", '{"error":"Not Found"}', "/sam", WITH_PATH),  # as Triton itself answers
    ],
)
def test_a_server_that_is_no_triton(status, body, path, words):
    with Server(always(response(body.encode(), status))) as server:
        transport = Transport(parse_url(server.url + path), retries=0, timeout=60)
        with pytest.raises(InferenceError, match=f"does not answer like a Triton server{words}$"):
            transport.ready_models()


def test_threads_that_have_ended_keep_no_descriptors():
    def descriptors():
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    with Server(always(response(b""))) as server:
        transport = Transport(parse_url(server.url))
        assert transport.is_ready()
        before = descriptors()
        for _ in range(20):
            thread = threading.Thread(target=transport.is_ready)
            thread.start()
            thread.join()
        assert descriptors() <= before + 2  # one connection has two ends in this process
        assert transport.is_ready()
        transport.close()


def test_an_interrupted_call_does_not_stand_in_the_way_of_the_next():
    """Ctrl-C while a request is sent, to a server that reads none of it."""

    def interrupt(server, connection):
        settled(lambda: len(connection.recv(1 << 23, socket.MSG_PEEK)))
        server._serve = always(response(b""))
        os.kill(os.getpid(), signal.SIGINT)

    with Server(interrupt) as server:
        transport = Transport(parse_url(server.url), retries=0, timeout=60)
        with pytest.raises(KeyboardInterrupt):
            transport.infer("model", {"image": np.zeros((1, 5_000_000), np.float32)}, ["out"])
        assert transport.is_ready()
        transport.close()


@pytest.mark.parametrize(("kind", "scheme"), [(SAM2TritonClient, "https"), (SpeculativeSAM2Client, "grpcs")])
def test_certificates_that_are_none_are_found_out_at_once(kind, scheme, tmp_path):
    (tmp_path / "no.pem").write_text("no certificate")
    for name, reason in (("absent.pem", "No such file or directory"), ("no.pem", "no PEM file")):
        with pytest.raises(ConfigurationError, match=f"^no certificates at {tmp_path / name}: {reason}$"):
            kind(f"{scheme}://localhost", ca_certs=tmp_path / name)


@pytest.mark.parametrize(("kind", "scheme"), [(SAM2TritonClient, "http"), (SpeculativeSAM2Client, "grpc")])
@pytest.mark.parametrize("value", ["Bearer secretABC\r", "Bearer secret\nABC", "Bearer secretABC é"])
def test_a_header_that_cannot_be_sent_is_refused_and_not_shown(kind, scheme, value):
    with pytest.raises(ConfigurationError, match="the header 'Authorization' holds a character") as caught:
        kind(f"{scheme}://localhost", headers={"Authorization": value})
    assert "secret" not in str(caught.value)


def test_threads_that_call_first_at_once_share_one_channel(monkeypatch):
    made, start = [], threading.Barrier(8)

    class Channel:
        def __init__(self, *_, **__):
            time.sleep(0.05)  # the other threads arrive meanwhile
            made.append(self)

        def is_server_ready(self, **_):
            return True

        def close(self):
            made.remove(self)

    def call():
        start.wait()
        assert transport.is_ready()

    monkeypatch.setattr("tritonclient.grpc.InferenceServerClient", Channel)
    transport = Transport(parse_url("grpc://localhost:1"))
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(call) for _ in range(8)]:
            done.result()
    assert len(made) == 1
    transport.close()
    assert made == []


def test_a_call_that_grpc_forgets_ends_all_the_same(monkeypatch):
    """It cannot be brought about at will: a call that nobody ever answers stands for it."""
    cancelled = []
    forgotten = SimpleNamespace(cancel=lambda: cancelled.append(True))
    monkeypatch.setattr("tritonclient.grpc.InferenceServerClient.async_infer", lambda *_, **__: forgotten)
    transport = Transport(parse_url("grpc://localhost:1"), timeout=0.3, retries=2)
    while not cancelled:  # a pause may use up the time before the call begins
        began = time.monotonic()
        with pytest.raises(ServerTimeoutError, match="in time"):
            transport.infer("sam2_encoder", INPUT, ["y"])
        assert 0.3 <= time.monotonic() - began < 60
    transport.close()
