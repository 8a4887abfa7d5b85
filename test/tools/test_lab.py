"""Measurements of maintainers, without a Triton."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("psutil")
pytest.importorskip("onnxruntime")
from tools.lab import overload
from tools.lab.link import EmulatedLink, Link, parse_link
from triton_sam import errors
from triton_sam.benchmark.results import Results
from triton_sam.benchmark.timing import Crowd

pytestmark = pytest.mark.nightly


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
        parse_link(text)
    assert parse_link("1.5gbit,0.5ms") == Link(1.5e9, 0.0005)


class Users:
    """Users whose single clicks take the given milliseconds."""

    def __init__(self, alone):
        self.alone = iter(alone)

    def click(self, user, number):
        """Never called, because crowds are made up."""

    def click_alone(self):
        return next(self.alone)


@pytest.mark.parametrize(("timeout", "key"), [(60.0, "recovered_s"), (0.0, "not_recovered_s")])
def test_an_overload_tells_whether_the_server_recovered(monkeypatch, timeout, key):
    crowds = iter([Crowd([[1.0]], 1.0), Crowd([[2.0], []], 1.0, refused_ms=[1.0])])
    alone = [1.0] * 10 + [9.0] + ([1.5] * 3 if timeout else [9.0] * 100)
    monkeypatch.setattr(overload, "RECOVERY_TIMEOUT", timeout)
    monkeypatch.setattr(overload, "crowd", lambda *_: next(crowds))
    monkeypatch.setattr(overload, "_users", lambda *_: contextlib.nullcontext(Users(alone)))
    monkeypatch.setattr(overload, "max_pending_clicks", lambda *_: 2)
    results = Results({})
    overload.measure_overload(SimpleNamespace(protocols=["http"], pid=None), results, True, 64, 1.0)
    assert [row.what for row in results.rows] == ["before", "half load", "accepted", "refused", "after"]
    assert key in results.rows[-1].more
