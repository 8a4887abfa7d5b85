"""The page's WebSocket: what it is sent that is no request, and requests that come faster than pictures are encoded."""

import asyncio
import json
import re
import struct

import numpy as np
import pytest

from triton_sam._common.bundle import bundled
from triton_sam.families import get_family

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from support.conditions import wait_until

from triton_sam.service.app import create_app
from triton_sam.service.engine import Pair, State
from triton_sam.service.messages import VERSION, MasksHeader, pack, read_message
from triton_sam.service.problems import Problem
from triton_sam.service.settings import Settings
from triton_sam.service.store import StoredImage

HELLO = {"type": "hello", "version": VERSION}
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
        socket.send_json(HELLO)
        assert socket.receive_json() == {"type": "status", "up": True, "models": ["sam2"], "detail": None}
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
        socket.send_json(HELLO)
        for _ in range(100):
            socket.send_json({**CLICK, "seq": 1})
        wait_until(lambda: waiting, 10)
        (encoding,) = waiting.values()
    assert waiting == {}
    assert encoding.waiters == 0


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ({**HELLO, "version": VERSION + 1}, f"of version {VERSION + 1}"),
        ({"type": "hello"}, "without a hello"),
        ({"type": "token", "token": "x"}, "without a hello"),
        (CLICK, "without a hello"),
    ],
)
def test_a_page_of_another_version_is_told_to_reload(client, first, said):
    with client.websocket_connect("/live") as socket:
        socket.send_json(first)
        fault = socket.receive_json()
        assert (fault["type"], fault["code"], fault["status"]) == ("error", "version", 422)
        assert said in fault["detail"]
        assert fault["detail"].endswith(f"the service speaks version {VERSION}: reload the page")
        assert socket.receive() == {"type": "websocket.close", "code": 1008, "reason": "version"}


def test_a_page_that_says_nothing_is_told_to_reload(client, monkeypatch):
    monkeypatch.setattr("triton_sam.service.api.live.SECONDS_FOR_HELLO", 0.01)
    with client.websocket_connect("/live") as socket:
        assert socket.receive_json()["code"] == "version"
        assert socket.receive()["reason"] == "version"


def test_the_token_comes_with_the_hello(monkeypatch):
    monkeypatch.setattr("triton_sam.service.engine.WATCH_SECONDS", 3600)
    with TestClient(create_app(Settings(url="http://127.0.0.1:9", token="secret"))) as client:
        for token in ({}, {"token": "guess"}, {"token": None}):
            with client.websocket_connect("/live") as socket:
                socket.send_json({**HELLO, **token})
                assert socket.receive() == {"type": "websocket.close", "code": 1008, "reason": "token"}
        with client.websocket_connect("/live") as socket:
            socket.send_json({**HELLO, "token": "secret"})
            assert socket.receive_json()["type"] == "status"


def test_the_page_speaks_the_version_of_the_service():
    page = (bundled("triton_sam/service/static") / "live.js").read_text()
    assert re.findall(r"^const VERSION = (\d+);", page, re.MULTILINE) == [str(VERSION)]


def test_faults_of_messages_say_where():
    for message, said in (
        ({**CLICK, "seq": 1, "points": [[1]]}, "points.0: "),
        ({**CLICK, "seq": 1, "lane": "other"}, "lane: "),
        ({"type": "cancel"}, "lane: "),
        ({"type": "hello", "version": VERSION}, 'type must be "segment" or "cancel"'),
    ):
        with pytest.raises(Problem, match=said):
            read_message(message)


def test_masks_are_packed_in_steps_that_keep_the_sign():
    header = MasksHeader(lane="hover", seq=3, image="a", model="sam2", scores=[0.5], side=2, used=[1.0, 0.75], ms=1.5)
    content = pack(header, np.array([[[0.01, -0.01], [2.0, -99.0]]], np.float32))
    (length,) = struct.unpack_from("<I", content)
    assert json.loads(content[4 : 4 + length]) == header.model_dump()
    assert np.frombuffer(content[4 + length :], np.int8).tolist() == [1, 0, 8, -127]
