"""The page's WebSocket: what it is sent that is no request, and requests that come faster than pictures are encoded."""

import asyncio
import json
import re
import struct
import time

import numpy as np
import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from support.conditions import PATIENCE, wait_until
from support.running_service import service_without_triton

from triton_sam._common.bundle import bundled
from triton_sam.families import get_family
from triton_sam.service.api.live import _Outbox
from triton_sam.service.engine import Pair, State
from triton_sam.service.messages import VERSION, CancelMessage, MasksHeader, pack
from triton_sam.service.store import StoredImage

LIVE = "ws://localhost/live"
HELLO = {"type": "hello", "version": VERSION}
CANCEL = CancelMessage(type="cancel", lane="click")
CLICK = {"type": "segment", "lane": "click", "image": "a", "points": [[1, 1]]}


@pytest.fixture
def client():
    """Of an application that knows a model and a picture; its encoder is never free."""
    with service_without_triton() as client:
        engine = client.app.state.engine
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
    with client.websocket_connect(LIVE) as socket:
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
    wait_until(lambda: waiting)
    (encoding,) = waiting.values()
    for seq in range(100):
        socket.send_json({**CLICK, "seq": seq // 50})
        socket.send_json({**CLICK, "lane": "hover", "seq": 7})
    socket.send_text("handled when all of these are")
    assert socket.receive_json()["type"] == "error"
    wait_until(lambda: encoding.waiters == 2)
    assert list(waiting.values()) == [encoding]  # it goes on for whoever still wants it
    assert not encoding.task.done()
    socket.send_json({"type": "cancel", "lane": "hover"})
    wait_until(lambda: encoding.waiters == 1)


def test_any_failure_is_an_answer(client, socket, monkeypatch):
    async def embed(*_):
        raise ValueError("a bug of a library")

    monkeypatch.setattr(client.app.state.engine, "embed", embed)
    for lane in ("hover", "click"):
        socket.send_json({**CLICK, "lane": lane, "seq": 5})
        answer = socket.receive_json()
        assert (answer["type"], answer["status"], answer["lane"], answer["seq"]) == ("error", 500, lane, 5)
        assert "bug" not in answer["detail"]


@pytest.mark.parametrize(
    "first", [{**HELLO, "version": VERSION + 1}, {"type": "hello"}, {**HELLO, "type": "token"}, CLICK]
)
def test_a_page_of_another_version_is_told_to_reload(client, first):
    with client.websocket_connect(LIVE) as socket:
        socket.send_json(first)
        fault = socket.receive_json()
        assert (fault["type"], fault["code"], fault["status"]) == ("error", "version", 422)
        assert fault["detail"].endswith(f"the service speaks version {VERSION}: reload the page")
        assert socket.receive() == {"type": "websocket.close", "code": 1008, "reason": "version"}


def test_a_page_that_says_nothing_in_time_may_connect_again(client, monkeypatch):
    monkeypatch.setattr("triton_sam.service.api.live.SECONDS_FOR_HELLO", 0.01)
    with client.websocket_connect(LIVE) as socket:
        assert socket.receive() == {"type": "websocket.close", "code": 1008, "reason": "hello"}


@pytest.mark.parametrize(
    ("token", "headers", "protocols", "opens"),
    [
        ("secret", {"authorization": "Bearer secret"}, [], True),
        ("secret", {}, ["triton-sam", "triton-sam.token.c2VjcmV0"], True),
        ("s?>cret/~", {}, ["triton-sam", "triton-sam.token.cz8-Y3JldC9-"], True),
        ("secret", {}, ["triton-sam", "triton-sam.token.IHNlY3JldCA"], True),  # blanks around it
        ("secret", {"authorization": "Bearer guess"}, [], False),
        ("secret", {}, ["triton-sam.token.Z3Vlc3M"], False),
        ("secret", {}, ["triton-sam.token.%%%"], False),
    ],
)
def test_the_token_is_checked_before_the_page_opens(token, headers, protocols, opens):
    with service_without_triton(token=token) as client:
        if opens:
            with client.websocket_connect(LIVE, headers=headers, subprotocols=protocols) as socket:
                assert socket.accepted_subprotocol == ("triton-sam" if protocols else None)
                socket.send_json(HELLO)
                assert socket.receive_json()["type"] == "status"
            return
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect(LIVE, headers=headers, subprotocols=protocols),
        ):
            pass
        assert (refused.value.status_code, refused.value.json()["code"]) == (401, "token")


def test_pages_beyond_the_limit_are_refused_until_others_close():
    with service_without_triton(max_pages=1) as client:
        for _ in range(2):
            with client.websocket_connect(LIVE) as socket:
                socket.send_json(HELLO)
                assert socket.receive_json()["type"] == "status"
                with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(LIVE):
                    pass
                assert (refused.value.status_code, refused.value.json()["code"]) == (503, "busy")
                assert refused.value.headers["retry-after"] == "1"


def test_a_flood_of_messages_is_read_slowly(client, monkeypatch):
    handled = []
    monkeypatch.setattr("triton_sam.service.messages.read_message", lambda message: handled.append(message) or CANCEL)
    with client.websocket_connect(LIVE) as socket:
        socket.send_json(HELLO)
        assert socket.receive_json()["type"] == "status"
        began = time.monotonic()
        for _ in range(500):
            socket.send_json(CLICK)
        wait_until(lambda: len(handled) >= 30)
        time.sleep(0.5)
        count, took = len(handled), time.monotonic() - began
    assert count <= 30 + 60 * took + 1


@pytest.mark.anyio
async def test_a_page_ends_when_its_connection_breaks_while_it_reads_no_answers():
    broke = asyncio.Event()

    class Broken:
        async def send_text(self, message):
            await broke.wait()
            raise WebSocketDisconnect(1006)

    outbox = _Outbox(Broken())
    sending = asyncio.create_task(outbox.send())
    outbox.put("click", "on its way")
    await asyncio.sleep(0)
    outbox.put("click", "nobody reads this")
    waiting = asyncio.create_task(outbox.wait())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    broke.set()
    with pytest.raises(WebSocketDisconnect):
        await asyncio.wait_for(waiting, PATIENCE)
    outbox.put("click", "neither this")
    with pytest.raises(WebSocketDisconnect):
        await asyncio.wait_for(outbox.wait(), PATIENCE)
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.anyio
async def test_a_page_that_does_not_read_costs_one_message_of_each_kind():
    sent, reading = [], asyncio.Event()

    class Deaf:
        async def send_text(self, message):
            sent.append(message)
            await reading.wait()

        send_bytes = send_text

    outbox = _Outbox(Deaf())
    sending = asyncio.create_task(outbox.send())
    for number in range(1000):
        outbox.put("click", f"click {number}")
        outbox.put("hover", f"hover {number}")
        outbox.put_fault(f"fault {number}")
        await asyncio.sleep(0)
    assert len(outbox._slots) + len(outbox._faults) == 2 + 10
    reading.set()
    for _ in range(100):
        await asyncio.sleep(0)
    sending.cancel()
    assert sent[0] == "fault 0"
    assert set(sent[1:]) == {"click 999", "hover 999", *(f"fault {number}" for number in range(990, 1000))}


def test_the_page_speaks_the_version_of_the_service():
    page = (bundled("triton_sam/service/static") / "live.js").read_text()
    assert re.findall(r"^const VERSION = (\d+);", page, re.MULTILINE) == [str(VERSION)]


def test_masks_are_packed_in_steps_that_keep_the_sign():
    header = MasksHeader(lane="hover", seq=3, image="a", model="sam2", scores=[0.5], side=2, used=[1.0, 0.75], ms=1.5)
    content = pack(header, np.array([[[0.01, -0.01], [2.0, -99.0]]], np.float32))
    (length,) = struct.unpack_from("<I", content)
    assert json.loads(content[4 : 4 + length]) == header.model_dump()
    assert np.frombuffer(content[4 + length :], np.int8).tolist() == [1, 0, 8, -127]
