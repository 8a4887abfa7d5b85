"""What listens where Triton was expected to speak another protocol."""

import concurrent.futures
import contextlib

import numpy as np
import pytest
from support.socket_server import Server, response

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.errors import InferenceError, ServerUnreachableError
from triton_sam.transport import probe
from triton_sam.transport.url import parse_url

IMAGE = np.zeros((8, 8, 3), np.uint8)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let a busy machine take longer to answer than a user should wait for a hint."""
    monkeypatch.setattr(probe, "SECONDS", 60.0)


@pytest.fixture
def address():
    """Return a function that starts an HTTP server which knows some paths, and returns its address."""
    with contextlib.ExitStack() as servers:

        def start(*paths, text="", status="200 OK", post="501 Not Implemented"):
            def serve(server, connection):
                while request := server.read(connection):
                    method, path, *_ = request[0].split()
                    known = status if path in paths else "404 Not Found"
                    answer = response(text.encode(), known) if method == "GET" else response(b"", post)
                    connection.sendall(answer)

            return servers.enter_context(Server(serve)).url.removeprefix("http://")

        yield start


METRICS = '# TYPE nv_inference_count counter\nnv_inference_count{model="sam2"} 1\n'
HEALTH = '{"status":"ok","triton":"localhost:8000","models":[],"detail":null}'
SERVICE = "; {} is `triton-sam service`: give the URL of its Triton"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize(
    ("path", "text", "status", "said"),
    [
        ("/metrics", METRICS, "200 OK", "; {} is the port of metrics: give "),
        ("/metrics", "# TYPE python_info gauge\npython_info 1\n", "200 OK", ""),  # of another program
        ("/health", HEALTH, "200 OK", SERVICE),
        ("/health", HEALTH, "503 Service Unavailable", SERVICE),  # its health needs no token
        ("/other", "", "200 OK", ""),
    ],
)
def test_what_listens_is_named(address, scheme, path, text, status, said):
    place = address(path, text=text, status=status)
    hint = probe.hint(parse_url(f"{scheme}://{place}"))
    assert hint.startswith(said.format(place))
    assert bool(hint) == bool(said)


def test_http_where_grpc_was_asked(address):
    place = address("/v2/health/live")
    assert probe.hint(parse_url(f"grpc://{place}")) == f"; HTTP answers there: give http://{place}"


def test_grpc_where_http_was_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(probe, "_is_live", lambda url: asked.append(str(url)) or True)
    assert probe.hint(parse_url("http://127.0.0.1:9")) == "; gRPC answers there: give grpc://127.0.0.1:9"
    assert asked == ["grpc://127.0.0.1:9"]
    assert probe.hint(parse_url("http://127.0.0.1:9/base")) == ""  # a gRPC URL has no path


@pytest.mark.parametrize("scheme", ["http", "grpc", "https"])
def test_nothing_is_said_of_an_address_that_nobody_uses(scheme):
    assert probe.hint(parse_url(f"{scheme}://127.0.0.1:9")) == ""


def test_the_command_line_says_it_once(address, capsys):
    place = address("/metrics", text="# HELP nv_gpu_utilization\n", post="405 Not Allowed")
    with pytest.raises(InferenceError, match="not that of metrics") as caught, SAM2TritonClient(place) as client:
        client.set_image(IMAGE)
    assert probe.hint(parse_url(place)).startswith(f"; {place} is the port of metrics")
    assert probe.hint(parse_url(place), caught.value) == ""
    assert main(["predict", str(bundled("test/images") / "shapes.jpg"), "--point", "5,5", "--url", place]) == 1
    assert capsys.readouterr().err.count("metrics") == 1


@pytest.fixture
def grpc_port():
    """The address of a gRPC server without services."""
    grpc = pytest.importorskip("grpc")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_python_is_told_of_http_at_the_port_of_grpc(grpc_port):
    said = f"http://{grpc_port} does not answer in HTTP: give .*, and write grpc:// before the latter"
    with SAM2TritonClient(grpc_port, retries=0) as client, pytest.raises(ServerUnreachableError, match=said):
        client.set_image(IMAGE)
