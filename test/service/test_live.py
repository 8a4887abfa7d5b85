"""The page's WebSocket: what it is sent that is no request, and requests that come faster than pictures are encoded."""

import asyncio

import pytest

from triton_sam.families import get_family

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from support.running_service import wait_until

from triton_sam.service.app import create_app
from triton_sam.service.engine import Pair, State
from triton_sam.service.settings import Settings
from triton_sam.service.store import StoredImage

CLICK = {"type": "segment", "lane": "click", "image": "a", "points": [[1, 1]]}


@pytest.fixture
def client(monkeypatch):
    """Of an application that knows a model and a picture; its encoder is never free."""
    monkeypatch.setattr("triton_sam.service.engine.WATCH_SECONDS", 3600)
    app = create_app(Settings(url="http://127.0.0.1:9"))
    with TestClient(app) as client:
        engine = app.state.engine
        engine.state = State({"sam2": Pair("sam2", get_family("sam2"), "1", keeps_images=True)}, None)
        engine.images.add(StoredImage("a", b"picture", (800, 600)))
        engine._encodes = asyncio.Semaphore(0)
        yield client


@pytest.fixture
def waiting(client):
    """Encodings that somebody waits for."""
    return client.app.state.engine._shared


@pytest.fixture
def socket(client):
    with client.websocket_connect("/live") as socket:
        assert socket.receive_json()["type"] == "status"
        yield socket


def test_what_is_no_message_is_answered_as_a_fault(socket):
    socket.send_bytes(b"\x00\x01")
    for text in ("", "no JSON", "[]", "[" * 60_000, "x" * 70_000, '{"type": "other"}'):
        socket.send_text(text)
    for _ in range(7):
        fault = socket.receive_json()
        assert (fault["type"], fault["status"]) == ("error", 422)
    socket.send_json({"type": "segment", "lane": "click", "seq": 3})
    fault = socket.receive_json()
    assert (fault["lane"], fault["seq"]) == ("click", 3)


def test_of_each_lane_the_newest_alone_waits_for_the_picture(waiting, socket):
    socket.send_json({**CLICK, "seq": 1})
    wait_until(lambda: waiting, 10)
    (encoding,) = waiting.values()
    for seq in range(100):
        socket.send_json({**CLICK, "seq": seq // 50})
        socket.send_json({**CLICK, "lane": "hover", "seq": 7})
    socket.send_text("handled when all of these are")
    assert socket.receive_json()["type"] == "error"
    wait_until(lambda: encoding.waiters == 2, 10)
    assert list(waiting.values()) == [encoding]  # it goes on for whoever still wants it
    assert not encoding.task.done()
    socket.send_json({"type": "cancel", "lane": "hover"})
    wait_until(lambda: encoding.waiters == 1, 10)


def test_nothing_is_left_of_a_page_that_went_away(client, waiting):
    with client.websocket_connect("/live") as socket:
        for _ in range(100):
            socket.send_json({**CLICK, "seq": 1})
        wait_until(lambda: waiting, 10)
        (encoding,) = waiting.values()
    assert waiting == {}
    assert encoding.waiters == 0
