"""The HTTP client against sockets that misbehave: one deadline for a whole call, and the right bytes both ways."""

import contextlib
import gzip
import json
import shutil
import socket
import ssl
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from support.conditions import PATIENCE
from support.socket_server import (
    DONE,
    LARGE,
    SMALL,
    Server,
    always,
    call,
    client_of,
    dribbles,
    echo,
    infer,
    reads_nothing,
    response,
    self_signed,
    silent,
    tensors,
)
from tritonclient.utils import InferenceServerException

from triton_sam.errors import InputError
from triton_sam.transport.failures import ForeignAnswerError
from triton_sam.transport.kserve import JSON_LENGTH, KServeClient
from triton_sam.transport.url import parse_url

TIMEOUT = 0.4
LIMIT = 50.0
"""Seconds. A call that misses its timeout takes as long as its server misbehaves: a minute, or without an end."""


ARRAYS = {
    "bool": np.array([[True, False]]),
    **{
        name: np.array([[1, 2], [3, 4]], name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    **{name: np.array([[1.5, -2.25]], name) for name in ("float16", "float32", "float64")},
    "bytes": np.array([[b"", b"\x00\xff", "né".encode()]], object),
    "fixed": np.array([b"ab", b"c"]),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(7, np.int32),
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3],
    "transposed": np.arange(6).reshape(2, 3).T,
    "large": np.arange(100_000, dtype=np.float32),
}


def test_arrays_of_every_type_arrive_and_come_back():
    with Server(echo) as server:
        client = client_of(server)
        for inputs in (ARRAYS, *({name: array} for name, array in ARRAYS.items())):
            outputs = infer(client, inputs, list(inputs))
            assert list(outputs) == list(inputs)
            for name, array in inputs.items():
                np.testing.assert_array_equal(outputs[name], array)
                assert outputs[name].dtype == (object if array.dtype.kind in "SO" else array.dtype)
                assert outputs[name].flags.aligned
        assert len(server.connections) == 1
        client.close()


def test_the_request_is_the_one_that_triton_knows():
    with Server(always(DONE)) as server:
        client = KServeClient(parse_url(f"{server.url}/base/"), headers={"Authorization": "Bearer x"})
        outputs = client.infer("a model/1", {"x": np.array([1, 2], np.uint8)}, ["y"], call())
        head, fields, body = server.requests[0]
        assert outputs["y"].tolist() == [97, 98]
        assert head.startswith("POST /base/v2/models/a%20model%2F1/infer HTTP/1.1\r\n")
        assert fields["authorization"] == "bearer x"
        assert fields["accept-encoding"] == "identity"
        end = int(fields[JSON_LENGTH.lower()])
        assert body[end:] == b"\x01\x02"
        assert json.loads(body[:end]) == {
            "inputs": [
                {"name": "x", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}},
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }


@pytest.mark.parametrize("dtype", ["U3", ">f4", "complex64"])
def test_an_array_that_no_tensor_can_be(dtype):
    with pytest.raises(InputError, match="x is an array of"):
        infer(KServeClient(parse_url("localhost:1")), {"x": np.zeros(2, dtype)})


def test_outputs_in_json_between_others_and_unasked_compression():
    described = [
        {"name": "a", "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}},
        {"name": "b", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
        {"name": "c", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    head = json.dumps({"outputs": described}).encode()
    packed = gzip.compress(head + b"\x05" + np.float32(3).tobytes())
    options = {JSON_LENGTH.replace("-", "_"): len(head), "Content_Encoding": "gzip"}
    for answer in (tensors(*described, data=b"\x05" + np.float32(3).tobytes()), response(packed, **options)):
        with Server(always(answer)) as server:
            outputs = infer(client_of(server))
        assert {name: array.tolist() for name, array in outputs.items()} == {"a": [5], "b": [[1, 2]], "c": [3]}
        assert outputs["c"].flags.aligned


@pytest.mark.parametrize(
    "answer",
    [
        response(b"hello"),
        response(b"[]"),
        response(b"{}"),
        response(b"\xff\xfe"),
        tensors("y"),
        tensors({"name": "y"}),
        tensors({"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}, data=b"1234"),
        tensors({"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 5}}, data=b"12345"),
        tensors({"name": "y", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 2}}, data=b"12"),
    ],
)
def test_a_success_that_is_no_answer(answer):
    with Server(always(answer)) as server, pytest.raises(ValueError):  # noqa: PT011 - of several libraries
        infer(client_of(server))


@pytest.mark.parametrize(
    ("answer", "message", "status"),
    [
        (response(b'{"error":"no such model"}', "404 Not Found"), "no such model", "404"),
        (response(b"<html>", "502 Bad Gateway"), None, "502"),
        (response(b'["error"]', "400 Bad Request"), None, "400"),
        (response(b"", "302 Found", Location="http://127.0.0.1:1/"), None, "302"),
    ],
)
def test_errors_keep_their_words_and_status(answer, message, status):
    with Server(always(answer)) as server:
        client = client_of(server)
        for ask in (infer, lambda client: client.index(call()), lambda client: client.load_model("m", None, call())):
            with pytest.raises(ForeignAnswerError if message is None else InferenceServerException) as caught:
                ask(client)
            if message is None:
                assert caught.value.status == status
            else:
                assert (caught.value.message(), caught.value.status()) == (message, status)
        assert not client.is_ready(call())
        assert len(server.connections) == 1


def test_an_answer_before_the_body_is_read_is_heard():
    def refuse(server, connection):
        connection.recv(1000)
        connection.sendall(response(b'{"error":"too large"}', "413 Payload Too Large", Connection="close"))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):  # a server that closed at once would make its answer disappear
            pass

    with Server(refuse) as server, pytest.raises(InferenceServerException, match="too large"):
        infer(client_of(server), LARGE)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with openssl")
    return self_signed(tmp_path_factory.mktemp("certificate"))


WAYS = {"silent": silent, "full": reads_nothing, "head": dribbles("head"), "body": dribbles("body")}
WAYS["full again"] = reads_nothing  # large bodies: over TLS, and here without


@pytest.mark.parametrize("inputs", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_ends_with_its_time_whatever_the_server_does(request, way, inputs):
    """Half of them over TLS: each way, and each size."""
    has_tls = (list(WAYS).index(way) + (inputs is LARGE)) % 2 == 0
    path, context = request.getfixturevalue("certificate") if has_tls else (None, None)
    with Server(WAYS[way], context) as server:
        client = client_of(server, ca_certs=path and str(path))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            infer(client, inputs, seconds=TIMEOUT)
        assert TIMEOUT - 0.01 <= time.monotonic() - began < LIMIT
        server._serve = always(DONE)
        assert infer(client)["y"].tolist() == [97, 98]  # on another connection
        server.ended.set()


def test_tls_asks_for_a_certificate_that_is_trusted(certificate):
    path, context = certificate
    with Server(echo, context) as server:
        inputs = {"x": np.arange(1_000_000)}
        np.testing.assert_array_equal(infer(client_of(server, ca_certs=str(path)), inputs, ["x"])["x"], inputs["x"])
        with pytest.raises(ssl.SSLCertVerificationError):
            infer(client_of(server))
        elsewhere = parse_url(server.url.replace("localhost", "127.0.0.1"))
        with pytest.raises(ssl.SSLCertVerificationError):
            infer(KServeClient(elsewhere, ca_certs=str(path)))


def test_a_tls_handshake_that_never_ends_and_a_server_without_tls():
    with Server(silent) as server:
        client = KServeClient(parse_url(server.url.replace("http://127.0.0.1", "https://localhost")))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            infer(client, seconds=TIMEOUT)
        assert time.monotonic() - began < LIMIT
        server._serve = lambda _, connection: connection.sendall(b"no TLS here" * 10)
        with pytest.raises(ssl.SSLError):
            infer(client)


def test_an_attempt_to_connect_ends_with_the_time_of_the_call():
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # those that fit into its queue; of any other, Linux ignores the first packet
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        client = KServeClient(parse_url(f"http://127.0.0.1:{full.getsockname()[1]}"))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            infer(client, seconds=TIMEOUT)
        assert time.monotonic() - began < LIMIT


def test_a_name_that_nobody_finds_ends_with_the_time_of_the_call(monkeypatch):
    never, daemons = threading.Event(), []
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: never.wait(PATIENCE) and [])
    while not daemons:  # a pause may use up the time before the look-up
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            infer(KServeClient(parse_url("http://somewhere")), seconds=TIMEOUT)
        assert time.monotonic() - began < LIMIT
        daemons = [each.daemon for each in threading.enumerate() if each.name == "triton-sam-name"]
    assert all(daemons)
    never.set()


def test_a_name_with_a_part_that_is_too_long_is_refused():
    with pytest.raises(OSError, match=r"^x{64}\.example is not a host name: "):
        infer(KServeClient(parse_url(f"http://{'x' * 64}.example")))


def test_the_next_address_of_a_host_is_tried_in_the_rest_of_the_time(monkeypatch):
    waits = []

    def connect(sock, address):
        waits.append(sock.gettimeout())
        return socket.socket.connect(sock, address)

    monkeypatch.setattr("triton_sam.transport.timed_sockets.CONNECT_TIMEOUT", 1000)
    monkeypatch.setattr("triton_sam.transport.timed_sockets.TimedSocket.connect", connect)
    with Server(always(DONE)) as server:
        port = parse_url(server.url).address.rpartition(":")[2]
        absent = (255, socket.SOCK_STREAM, 0, "", ("address of a family that this machine lacks", port))
        found = [absent, *socket.getaddrinfo("127.0.0.2", port, type=socket.SOCK_STREAM)]
        found += socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
        client = KServeClient(parse_url(f"http://two.example:{port}"))
        assert infer(client, seconds=1000)["y"].tolist() == [97, 98]
    assert waits[0] <= 500 < waits[1] <= 1000
    found.append(absent)
    monkeypatch.setattr("triton_sam.transport.timed_sockets.TimedSocket.connect", Mock(side_effect=TimeoutError))
    with pytest.raises(ConnectionError, match="no connection within 1000 s"):  # which is tried again
        infer(KServeClient(parse_url(f"http://two.example:{port}")), seconds=2000)
