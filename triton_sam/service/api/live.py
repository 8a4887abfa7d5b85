"""The page's WebSocket: it receives positions and sends masks; stale requests are dropped or cancelled at Triton.

The messages are in service/messages.py. A page has two lanes, hover and click, which are lanes of the speculative
client: within a lane, the newest request replaces older ones. So hovering costs one decode per shown mask, and
nothing is queued when the mouse rests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from ...client.speculative import SpeculativeSAM2Client
from .. import messages, problems
from ..answers import clean_previews, coordinates
from ..budgets import PAGE_BURST, Pace
from ..engine import Engine
from ..logs import LOGGER
from ..messages import LANES, CancelMessage, Lane, MasksHeader, SegmentMessage, StatusMessage, pack, used_part
from ..middleware import bearer_token, no_token
from ..problems import MAX_FAULTS, Problem

MAX_MESSAGE = 1 << 16
MESSAGE_BYTES = 4096
"""A message counts as one more message for each of this many characters."""
POLICY_VIOLATION, ABNORMAL_CLOSURE = 1008, 1006
SECONDS_FOR_HELLO = 10.0
PROTOCOL = "triton-sam"
"""The subprotocol that the service chooses. A page that sends a token must also offer it."""
TOKEN_PROTOCOL = "triton-sam.token."  # noqa: S105 - the prefix before a token
"""The subprotocol of a token: this prefix, followed by the token in base64url without padding."""


def router(engine: Engine) -> APIRouter:
    api = APIRouter()

    @api.websocket("/live")
    async def live(socket: WebSocket) -> None:
        with contextlib.ExitStack() as held:
            try:
                name = _admit(engine, socket, held)
            except Problem as problem:
                await socket.send_denial_response(problems.response(problem))
                return
            await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
            started = time.monotonic()
            with engine.metrics.pages.track_inprogress():
                await _Page(engine, socket).serve()
            fields = {"path": "/live", "caller": name, "ms": round((time.monotonic() - started) * 1000, 1)}
            LOGGER.info("page closed", extra={"fields": fields})

    return api


def _admit(engine: Engine, socket: WebSocket, held: contextlib.ExitStack) -> str:
    """Return the name of the caller if it may open a page; ``held`` returns the page's leases."""
    given = bearer_token(socket.headers) or _token_in(socket.scope["subprotocols"])
    caller = engine.callers.find(given)
    if caller is None:
        raise no_token(given)
    held.enter_context(engine.budgets.pages.take())
    held.enter_context(caller.page())
    return caller.name


def _token_in(protocols: Sequence[str]) -> str:
    """Return the token in the subprotocols, because a browser sends no authentication header for a WebSocket."""
    for protocol in protocols:
        if protocol.startswith(TOKEN_PROTOCOL):
            text = protocol[len(TOKEN_PROTOCOL) :]
            with contextlib.suppress(ValueError):
                return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().strip()
    return ""


class _Outbox:
    """Pending messages to a page, one of each kind, so that a page that does not read costs little."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._slots: dict[str, bytes | str] = {}
        self._faults: deque[str] = deque(maxlen=MAX_FAULTS)
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._has_ended = False

    def put(self, kind: str, message: bytes | str) -> None:
        """Send a message soon; it replaces a pending one of its kind."""
        self._slots.pop(kind, None)
        self._slots[kind] = message
        self._filled.set()
        if not self._has_ended:
            self._emptied.clear()

    async def wait(self) -> None:
        """Wait until the page has read all pending masks."""
        await self._emptied.wait()
        if self._has_ended:
            raise WebSocketDisconnect(ABNORMAL_CLOSURE)

    def put_fault(self, message: str) -> None:
        """Send an error for a message without a lane. Only the last errors are kept."""
        self._faults.append(message)
        self._filled.set()

    async def send(self) -> None:
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._faults or self._slots:
                    await self._send(
                        self._faults.popleft() if self._faults else self._slots.pop(next(iter(self._slots)))
                    )
        finally:
            self._has_ended = True
            self._emptied.set()  # otherwise wait() would block for ever

    async def _send(self, message: bytes | str) -> None:
        if not self._slots:
            self._emptied.set()
        if isinstance(message, bytes):
            await self._socket.send_bytes(message)
        else:
            await self._socket.send_text(message)


class _Page:
    def __init__(self, engine: Engine, socket: WebSocket) -> None:
        self._engine = engine
        self._socket = socket
        self._name = uuid.uuid4().hex
        self._tasks: dict[asyncio.Task[None], Lane] = {}
        self._newest: dict[Lane, asyncio.Task[None]] = {}  # until the client has the request
        self._used: set[SpeculativeSAM2Client] = set()
        self._outbox = _Outbox(socket)
        self._pace = Pace(engine.settings.page_messages, PAGE_BURST)
        self._weight = 1.0  # of the last message

    async def serve(self) -> None:
        own: list[asyncio.Task[None]] = []
        try:
            refusal = await self._greet()
            if refusal:
                await self._socket.close(POLICY_VIOLATION, refusal)
                return
            own = [asyncio.create_task(part) for part in (self._tell_status(), self._outbox.send())]
            while True:
                await self._handle(await self._read())
                await self._pace.wait(self._weight)
                await self._engine.budgets.messages.wait(self._weight)
                await self._outbox.wait()  # a page that does not read its responses costs no decodes
        except (WebSocketDisconnect, RuntimeError):  # starlette's error for a socket that has closed
            pass
        finally:
            tasks = [*self._tasks, *own]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in self._used:
                for lane in LANES:
                    client.cleanup_session(self._lane_id(lane))

    async def _greet(self) -> str:
        """Read the page's hello; return the reason to close the connection, or "" if the version matches."""
        try:
            message = await asyncio.wait_for(self._read(), SECONDS_FOR_HELLO)
        except asyncio.TimeoutError:
            return "hello"  # the page may have the right version, and connects again
        try:
            messages.check_hello(message)
        except Problem as problem:
            await self._socket.send_text(messages.error_text(problem, message))
            return "version"
        return ""

    async def _read(self) -> dict[str, Any]:
        frame = await self._socket.receive()
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame["code"])
        text = frame.get("text") or ""  # a binary frame has no text
        self._weight = 1.0 + len(text) / MESSAGE_BYTES
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(text) if len(text) <= MAX_MESSAGE else None
            if isinstance(message, dict):
                return message
        return {}

    async def _handle(self, message: dict[str, Any]) -> None:
        try:
            request = messages.read_message(message)
        except Problem as problem:
            lane, text = message.get("lane"), messages.error_text(problem, message)
            if lane in LANES:  # an invalid message may still name its lane
                self._outbox.put(lane, text)
            else:
                self._outbox.put_fault(text)
            return
        if isinstance(request, CancelMessage):
            self._cancel(request.lane)
        else:
            self._replace(request)

    def _replace(self, request: SegmentMessage) -> None:
        """Start a request that replaces the lane's earlier one; once the client has both, it decides which to drop."""
        task = asyncio.create_task(self._segment(request))
        self._tasks[task] = request.lane
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        earlier = self._newest.get(request.lane)
        self._newest[request.lane] = task
        if earlier is not None:
            # Not at once: an image's encoding ends when its last request does, and the new request needs it.
            asyncio.get_running_loop().call_soon(earlier.cancel)

    def _cancel(self, lane: Lane) -> None:
        for client in self._used:
            client.cancel_session_requests(self._lane_id(lane), keep_latest=False)
        for task, its_lane in list(self._tasks.items()):
            if its_lane == lane:
                task.cancel()

    async def _segment(self, request: SegmentMessage) -> None:
        outcome = "failed"
        try:
            await self._answer(request)
            outcome = "answered"
        except asyncio.CancelledError:
            outcome = "replaced"
        except Exception as error:  # noqa: BLE001 - the page waits for a response, whatever a library raises
            self._outbox.put(request.lane, messages.error_text(problems.meant_by(error), request.model_dump()))
        finally:
            self._engine.metrics.live.labels(request.lane, outcome).inc()

    async def _answer(self, request: SegmentMessage) -> None:
        started = time.monotonic()
        engine = self._engine
        image = engine.image(request.image)
        pair = await engine.pair(request.model)
        prompt = coordinates([request])
        embeddings = await engine.embed(image, pair)
        if self._newest.get(request.lane) is asyncio.current_task():
            del self._newest[request.lane]
        client = engine.client_of(pair, embeddings)
        self._used.add(client)
        _, task = await client.predict_async(
            **prompt, multimask_output=request.multimask, session_id=self._lane_id(request.lane), image=embeddings
        )
        masks, scores = await task
        shown = masks[0]
        if request.cleanup is not None:
            cleanup, workers = request.cleanup.to_cleanup(), engine.budgets.workers
            shown = await workers.call(shown.size, clean_previews, shown, request, cleanup, pair.family, image.size)
        header = MasksHeader(
            lane=request.lane,
            seq=request.seq,
            image=request.image,
            model=pair.name,
            scores=[round(float(score), 4) for score in scores[0]],
            side=masks.shape[-1],
            used=used_part(pair.family, image.size),
            ms=round((time.monotonic() - started) * 1000, 1),
        )
        self._outbox.put(request.lane, pack(header, shown))

    async def _tell_status(self) -> None:
        while True:
            changed = self._engine.changed
            state = self._engine.state
            status = StatusMessage(up=state.is_up, models=list(state.pairs), detail=state.error)
            self._outbox.put("status", status.model_dump_json())
            await changed.wait()

    def _lane_id(self, lane: Lane) -> str:
        """Return the name of a lane at the speculative client, which many pages share."""
        return f"{self._name} {lane}"
