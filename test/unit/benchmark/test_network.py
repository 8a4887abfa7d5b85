"""How `triton-sam benchmark` treats URLs, networks and servers that die, without a Triton."""

import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from triton_sam import errors
from triton_sam._common.bundle import bundled

pytest.importorskip("psutil")
from triton_sam.benchmark import compare, speculative, stages
from triton_sam.benchmark.link import EmulatedLink, Link, parse_link
from triton_sam.benchmark.progress import Progress
from triton_sam.benchmark.results import Results
from triton_sam.benchmark.settings import Settings
from triton_sam.benchmark.target import Target

IMAGE = bundled("test/images") / "coffee.jpg"


def test_an_emulated_link_has_its_rate_and_delay_both_ways():
    """An echo of 500 kB over 20 Mbit/s and 30 ms takes 200 ms for the bytes, and the delay twice."""
    content = bytes(range(250)) * 2000

    def echo():
        connection, _ = listener.accept()
        with connection:
            while received := connection.recv(1 << 16):
                connection.sendall(received)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, daemon=True).start()
        url = f"http://localhost:{listener.getsockname()[1]}/triton"
        with EmulatedLink(url, parse_link("20mbit,30ms")) as link:
            parts = urlsplit(link.url)
            assert parts.path == "/triton"
            address = ("127.0.0.1", parts.port)
            with socket.create_connection(address) as client:
                began = time.perf_counter()
                client.sendall(content)
                answer = bytearray()
                while len(answer) < len(content):
                    answer += client.recv(1 << 16)
                seconds = time.perf_counter() - began
    assert answer == content
    assert seconds > 0.2 + 2 * 0.03
    assert seconds < 5


@pytest.mark.parametrize("text", ["fast", "1gbit", "0gbit,1ms", "1gbit,-1ms", "1 gbit,1ms"])
def test_a_link_that_makes_no_sense_is_refused(text):
    with pytest.raises(errors.ConfigurationError, match="is not a link"):
        Settings(link=text)
    assert parse_link("none") is None
    assert parse_link("1.5gbit,0.5ms") == Link(1.5e9, 0.0005)


def make_target(urls, family="sam2", **options):
    return Target(family, None, urls, IMAGE, **options)


def test_no_link_is_emulated_for_tls(monkeypatch):
    """No certificate names the address of the relay."""
    monkeypatch.setattr(compare, "EmulatedLink", lambda *_: pytest.fail("a relay for TLS"))
    results = Results({})
    compare._measure_over_link(make_target({"https": "https://localhost:8443"}), Settings(), results, True)
    assert results.rows == []
    assert "No network was emulated for https://localhost:8443" in results.notes[0]


class Client:
    """A client that answers at once."""

    image_embeddings = object()

    def encode(self, *_):
        """Stand in for this method of SAM2TritonClient, and for the others below."""

    set_image = predict = segment = encode


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_stages_are_recorded_by_protocol_also_over_tls(monkeypatch, protocol):
    target = make_target({protocol: f"{protocol}s://127.0.0.1:9"})
    monkeypatch.setattr(target, "client", lambda *_: contextlib.nullcontext(Client()))
    results = Results({})
    with Progress("latency", stages.steps(target), quiet=True) as progress:
        stages.measure_stages(target, Settings(0.01, ("latency",), least_rounds=1), results, True, progress)
    assert {row.protocol for row in results.rows} == {None, protocol}
    assert results.find("latency", "click", "session", protocol)


def test_a_mouse_moves_over_every_family(monkeypatch):
    asked = {}

    async def stress(url, name, image, **options):
        asked.update(options)
        return []

    monkeypatch.setattr(speculative, "stress", stress)
    target = make_target({"http": "localhost:1"}, "sam1", access={"ca_certs": None})
    results = Results({})
    with Progress("speculative", 1, quiet=True) as progress:
        speculative.measure_speculative(target, Settings(), results, True, progress)
    assert asked["model_type"] == "sam1"
    assert asked["access"] == {"ca_certs": None, "timeout": target.timeout}
    assert results.notes == []
