"""The page's WebSocket: it receives positions and sends masks; stale requests are dropped or cancelled at Triton.

The messages are in service/messages.py. A page has two lanes, hover and click; each is a lane of the speculative
client: within it the newest request wins, so that hovering costs one decode for each mask that is shown, and nothing is
queued when the mouse rests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from ...client.speculative import SpeculativeSAM2Client
from ...errors import SamError
from .. import messages, problems
from ..answers import client_prompt
from ..engine import Engine
from ..messages import LANES, CancelMessage, Lane, MasksHeader, SegmentMessage, StatusMessage, pack, used_part
from ..middleware import allowed_origin, same_token
from ..problems import Problem
from ..schemas import SegmentRequest

MAX_MESSAGE = 1 << 16
POLICY_VIOLATION = 1008
SECONDS_FOR_HELLO = 10.0


def router(engine: Engine) -> APIRouter:
    """Return the route of the WebSocket."""
    api = APIRouter()

    @api.websocket("/live")
    async def live(socket: WebSocket) -> None:
        if not allowed_origin(socket.headers, engine.settings.origins):
            await socket.close(POLICY_VIOLATION)
            return
        await socket.accept()
        with engine.metrics.pages.track_inprogress():
            await _Page(engine, socket).serve()

    return api


class _Page:
    """One open page."""

    def __init__(self, engine: Engine, socket: WebSocket) -> None:
        self._engine = engine
        self._socket = socket
        self._name = uuid.uuid4().hex
        self._tasks: dict[asyncio.Task[None], Lane] = {}
        self._newest: dict[Lane, asyncio.Task[None]] = {}  # until it is with the client
        self._used: set[SpeculativeSAM2Client] = set()
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        """Handle messages until the page closes the connection."""
        status: asyncio.Task[None] | None = None
        try:
            refusal = await self._greet()
            if refusal is not None:
                await self._socket.close(POLICY_VIOLATION, refusal)
                return
            status = asyncio.create_task(self._tell_status())
            while True:
                await self._handle(await self._read())
        except (WebSocketDisconnect, RuntimeError):  # starlette's error for a socket that closed meanwhile
            pass
        finally:
            tasks = [*self._tasks, *([status] if status else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in self._used:
                for lane in LANES:
                    client.cleanup_session(self._lane_id(lane))

    async def _greet(self) -> str | None:
        """Read the page's hello; return why the socket is closed, None when the page may go on."""
        message: dict[str, Any] = {}
        with contextlib.suppress(asyncio.TimeoutError):
            message = await asyncio.wait_for(self._read(), SECONDS_FOR_HELLO)
        try:
            hello = messages.read_hello(message)
        except Problem as problem:
            await self._error(problem, message)
            return "version"
        token = self._engine.settings.token
        return None if token is None or same_token(hello.token or "", token) else "token"

    async def _read(self) -> dict[str, Any]:
        frame = await self._socket.receive()
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame["code"])
        text = frame.get("text") or ""  # a binary frame has none
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(text) if len(text) <= MAX_MESSAGE else None
            if isinstance(message, dict):
                return message
        return {}

    async def _handle(self, message: dict[str, Any]) -> None:
        try:
            request = messages.read_message(message)
        except Problem as problem:
            await self._error(problem, message)
            return
        if isinstance(request, CancelMessage):
            self._cancel(request.lane)
        else:
            self._replace(request)

    def _replace(self, request: SegmentMessage) -> None:
        """Work on a request in place of the lane's earlier one; once that is with the client, the client decides."""
        task = asyncio.create_task(self._segment(request))
        self._tasks[task] = request.lane
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        earlier = self._newest.get(request.lane)
        self._newest[request.lane] = task
        if earlier is not None:
            # Not at once: when nobody waits for the image, its encoding ends, and the new one wants it, too.
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
        except Problem as problem:
            await self._error(problem, request.model_dump())
        except SamError as error:
            await self._error(problems.as_problem(error), request.model_dump())
        finally:
            self._engine.metrics.live.labels(request.lane, outcome).inc()

    async def _answer(self, request: SegmentMessage) -> None:
        started = time.monotonic()
        engine = self._engine
        image = engine.image(request.image)
        pair = await engine.pair(request.model)
        prompt = client_prompt(
            SegmentRequest(points=request.points, labels=request.labels, box=request.box, multimask=request.multimask)
        )
        embeddings = await engine.embed(image, pair)
        if self._newest.get(request.lane) is asyncio.current_task():
            del self._newest[request.lane]
        client = engine.client_of(pair, embeddings)
        self._used.add(client)
        _, task = await client.predict_async(
            **prompt, multimask_output=request.multimask, session_id=self._lane_id(request.lane), image=embeddings
        )
        masks, scores = await task
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
        await self._send(pack(header, masks[0]))

    async def _tell_status(self) -> None:
        while True:
            changed = self._engine.changed
            state = self._engine.state
            status = StatusMessage(up=state.is_up, models=list(state.pairs), detail=state.error)
            await self._send(status.model_dump_json())
            await changed.wait()

    async def _error(self, problem: Problem, message: dict[str, Any]) -> None:
        answer = messages.error_message(problems.body(problem), message)
        await self._send(answer.model_dump_json(exclude_none=True))

    async def _send(self, message: bytes | str) -> None:
        async with self._sending:
            if isinstance(message, bytes):
                await self._socket.send_bytes(message)
            else:
                await self._socket.send_text(message)

    def _lane_id(self, lane: Lane) -> str:
        """Return the name of a lane at the speculative client, which many pages share."""
        return f"{self._name} {lane}"
