"""The page's WebSocket: positions in, masks out; what is stale is dropped here or cancelled at Triton.

The page sends JSON: ``{"type": "segment", "lane": "hover" | "click", "seq", "image", "model", "points", "labels",
"box", "multimask"}``, ``{"type": "cancel", "lane"}``, and first, where a token is needed, ``{"type": "token",
"token"}``. A lane is a session of the speculative client: within it the newest request wins, so that hovering costs one
decode for each mask that is shown, and nothing is queued when the mouse rests.

A mask comes as one binary message: the length of a JSON header (uint32, little endian), the header, and int8 logits
[candidates, side, side] in steps of 1/4. Everything else is JSON: ``status``, ``error``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
import uuid
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...client.speculative import SpeculativeSAM2Client
from ...errors import SamError
from ...families.base import Family, FloatArray, Size
from .. import problems
from ..answers import client_prompt
from ..engine import Engine
from ..middleware import allowed_origin, same_token
from ..problems import Problem
from ..schemas import Prompt, SegmentRequest

LOGIT_STEPS = 4
"""Steps of a logit of 1 in the int8 that the page gets; 32 is the bound of SAM2's logits."""
LANES = ("hover", "click")
MAX_MESSAGE = 1 << 16
POLICY_VIOLATION = 1008
SECONDS_FOR_TOKEN = 10.0

Lane = Literal["hover", "click"]


class LiveRequest(Prompt):
    """One position of the mouse, or one state of an object."""

    model_config = ConfigDict(extra="ignore")

    lane: Lane
    seq: int
    image: Annotated[str, Field(max_length=64)]
    model: Annotated[str | None, Field(max_length=128)] = None
    multimask: bool = False


class CancelRequest(BaseModel):
    """Nothing of a lane is wanted any more."""

    lane: Lane


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
        """Read until the page goes away."""
        status: asyncio.Task[None] | None = None
        try:
            if not await self._is_allowed():
                await self._socket.close(POLICY_VIOLATION, "token")
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
                    client.cleanup_session(self._session(lane))

    async def _is_allowed(self) -> bool:
        token = self._engine.settings.token
        if token is None:
            return True
        with contextlib.suppress(asyncio.TimeoutError):
            message = await asyncio.wait_for(self._read(), SECONDS_FOR_TOKEN)
            return message.get("type") == "token" and same_token(str(message.get("token", "")), token)
        return False

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
        kind = message.get("type")
        try:
            if kind == "segment":
                self._replace(LiveRequest.model_validate(message))
            elif kind == "cancel":
                self._cancel(CancelRequest.model_validate(message).lane)
            elif kind != "token":
                raise Problem(422, 'type must be "segment" or "cancel"')
        except ValidationError as error:
            await self._error(Problem(422, f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}"), message)
        except Problem as problem:
            await self._error(problem, message)

    def _replace(self, request: LiveRequest) -> None:
        """Work on a request in place of the lane's earlier one; once that is with the client, the client decides."""
        task = asyncio.create_task(self._segment(request))
        self._tasks[task] = request.lane
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        earlier = self._newest.get(request.lane)
        self._newest[request.lane] = task
        if earlier is not None:
            # Not at once: when nobody waits for the picture, its encoding ends, and the new one wants it, too.
            asyncio.get_running_loop().call_soon(earlier.cancel)

    def _cancel(self, lane: Lane) -> None:
        for client in self._used:
            client.cancel_session_requests(self._session(lane), keep_latest=False)
        for task, its_lane in list(self._tasks.items()):
            if its_lane == lane:
                task.cancel()

    async def _segment(self, request: LiveRequest) -> None:
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

    async def _answer(self, request: LiveRequest) -> None:
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
            **prompt, multimask_output=request.multimask, session_id=self._session(request.lane), image=embeddings
        )
        masks, scores = await task
        header = {
            "type": "masks",
            "lane": request.lane,
            "seq": request.seq,
            "image": request.image,
            "model": pair.name,
            "scores": [round(float(score), 4) for score in scores[0]],
            "side": masks.shape[-1],
            "used": used_part(pair.family, image.size),
            "ms": round((time.monotonic() - started) * 1000, 1),
        }
        await self._send(pack(header, masks[0]))

    async def _tell_status(self) -> None:
        while True:
            changed = self._engine.changed
            state = self._engine.state
            await self._send({"type": "status", "up": state.is_up, "models": list(state.pairs), "detail": state.error})
            await changed.wait()

    async def _error(self, problem: Problem, message: dict[str, Any]) -> None:
        known: dict[str, Any] = {key: message[key] for key in ("lane", "seq") if key in message}
        await self._send({**problems.body(problem), "type": "error", **known})

    async def _send(self, message: bytes | dict[str, Any]) -> None:
        async with self._sending:
            if isinstance(message, bytes):
                await self._socket.send_bytes(message)
            else:
                await self._socket.send_text(json.dumps(message))

    def _session(self, lane: str) -> str:
        return f"{self._name} {lane}"


def used_part(family: Family, size: Size) -> list[float]:
    """Return which part of the logits, as fractions of width and height, shows the picture; the rest is padding."""
    width, height = family.resized(size)
    return [width / family.image_size, height / family.image_size]


def pack(header: dict[str, Any], logits: FloatArray) -> bytes:
    """Return the binary message of masks (candidates, side, side)."""
    text = json.dumps(header).encode()
    steps = np.clip(np.rint(logits * LOGIT_STEPS), -127, 127)
    steps[(steps == 0) & (logits > 0)] = 1  # the sign is what counts
    return b"".join((struct.pack("<I", len(text)), text, steps.astype(np.int8).tobytes()))
