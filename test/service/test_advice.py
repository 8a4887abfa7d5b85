"""What `triton-sam service` prints when it starts: faults of Triton, and what people on other computers need."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from triton_sam.errors import ServerTimeoutError
from triton_sam.local_server import ports
from triton_sam.service import run
from triton_sam.service.settings import ServiceSettings
from triton_sam.service.tokens import NO_QUOTA, Token


class Triton:
    """A transport to a Triton that is ready, or not, or that fails."""

    def __init__(self, is_up=True):
        self._is_up = is_up
        self.is_closed = False

    def ready_models(self):
        return dict.fromkeys(("sam2", "sam2_encoder", "sam2_decoder"), "1")

    def close(self):
        self.is_closed = True

    def is_ready(self):
        if isinstance(self._is_up, Exception):
            raise self._is_up
        return self._is_up


@pytest.mark.parametrize(
    ("triton", "model", "words"),
    [
        (Triton(), "sam2", []),
        (Triton(), "sam9", ["--model sam9: Triton has no such model ready, but sam2, sam2_decoder, sam2_encoder"]),
        (
            Triton(False),
            "sam2",
            ["nothing answers at grpc://127.0.0.1:9; `triton-sam service --local` starts a Triton"],
        ),
        (Triton(ServerTimeoutError("no answer in 3 s")), "sam2", ["no answer in 3 s"]),
    ],
)
def test_what_is_wrong_with_triton(triton, model, words, monkeypatch):
    monkeypatch.setattr(run, "Transport", lambda *_, **__: triton)
    lines = list(run.advice(ServiceSettings(url="grpc://127.0.0.1:9", model=model)))
    assert len(lines) == len(words)
    assert all(line.startswith(start) for line, start in zip(lines, words, strict=True))
    assert triton.is_closed


def test_http_at_the_port_of_grpc_is_named(monkeypatch):
    monkeypatch.setattr(run, "Transport", lambda *_, **__: Triton(False))
    monkeypatch.setattr(run.probe, "_read", lambda url, *_: "" if url == "http://127.0.0.1:9/v2/health/live" else None)
    (line,) = run.advice(ServiceSettings(url="grpc://127.0.0.1:9"))
    assert line.startswith("nothing answers at grpc://127.0.0.1:9; HTTP answers there: give http://127.0.0.1:9; ")


URLS = "for other computers: http://192.0.2.7:5000/ or http://gpu:5000/"
LAB = Token("lab", "secret of the lab", NO_QUOTA)


@pytest.mark.parametrize(
    ("options", "address", "show_token", "words"),
    [
        ({}, "127.0.0.1", True, []),
        (
            {},
            "0.0.0.0",
            True,
            [URLS, "triton-sam service: warning: everyone who reaches port 5000 may use the service"],
        ),
        ({"token": "abc\n"}, "0.0.0.0", True, [f"{URLS}   token: abc"]),
        ({"token": "abc"}, "0.0.0.0", False, [f"{URLS}   token: that of --token or $TRITON_SAM_TOKEN"]),
        ({"tokens": (LAB,)}, "0.0.0.0", True, [f"{URLS}   token: one of --tokens for each caller"]),
        ({"token": "abc"}, "198.51.100.2", True, ["for other computers: http://198.51.100.2:5000/   token: abc"]),
    ],
)
def test_what_other_computers_need(options, address, show_token, words, monkeypatch):
    monkeypatch.setattr(ports, "own_address", lambda: "192.0.2.7")
    monkeypatch.setattr(ports.socket, "gethostname", lambda: "gpu")
    lines = list(run.for_others(ServiceSettings(**options), address, 5000, show_token=show_token))
    assert [line[: len(start)] for line, start in zip(lines, words, strict=True)] == words
    assert show_token or "abc" not in "".join(lines)
    assert LAB.secret not in "".join(lines)
