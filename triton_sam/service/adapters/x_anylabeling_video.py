"""X-AnyLabeling's video models: all images of a folder are frames, and objects are clicked or named in one of them.

Reference: app/api/video.py of X-AnyLabeling-Server, used as a contract.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from ..._common import strict_json
from .. import events
from ..problems import Problem, meant_by
from . import x_anylabeling_sessions as sessions
from .bridge import Bridge, Lenient, json_answer
from .x_anylabeling_sessions import InitRequest, PromptRequest, State


class PropagateFrames(Lenient):
    """The frames through which objects are followed."""

    session_id: str = Field(max_length=128)
    model: str = Field(max_length=128)
    start_frame: int | None = None
    end_frame: int | None = None


def add_routes(api: APIRouter, bridge: Bridge) -> None:
    """Add the routes under /v1/video."""

    @api.post("/v1/video/init", summary="Send the frames of a video for X-AnyLabeling")
    async def init(request: Request) -> Response:
        """Store the frames of a new session."""
        body = await bridge.read(request, InitRequest)
        return _success(await sessions.begin(bridge, request, body))

    @api.post("/v1/video/prompt", summary="Prompt objects in a frame for X-AnyLabeling")
    async def prompt(request: Request) -> Response:
        """Return the shapes of the clicked object, or of all instances of words, in a frame."""
        body = await bridge.read(request, PromptRequest)
        body.params.check()
        state = sessions.find(bridge, body.session_id)
        if body.text_prompt and body.text_prompt.strip():
            shapes = await sessions.name(bridge, request, state, body)
        elif body.points:
            shapes = await bridge.run(request, sessions.click(bridge, state, body))
        else:
            raise Problem(422, "send a text_prompt, or points")
        return _success({"frame_index": body.frame_index, "masks": shapes, "num_objects": len(shapes)})

    @api.post(
        "/v1/video/propagate/stream", summary="Follow objects for X-AnyLabeling", response_class=StreamingResponse
    )
    async def stream(request: Request) -> events.EventStream:
        """Follow all objects, and send the progress and the shapes as server-sent events."""
        body = await bridge.read(request, PropagateFrames)
        state = sessions.find(bridge, body.session_id)
        walk = sessions.walk(bridge, state, state.propagate_request(body.start_frame, body.end_frame))
        return events.EventStream(_event_stream(walk, state))

    @api.post("/v1/video/cleanup/{session_id}", summary="End a session for X-AnyLabeling")
    async def cleanup(session_id: str) -> Response:
        """Delete a session and its frames."""
        sessions.find(bridge, session_id)
        await bridge.videos.sessions.remove(session_id)
        return _success({"message": f"Session {session_id} cleaned up"})


async def _event_stream(walk: AsyncGenerator[dict[str, Any], None], state: State) -> AsyncGenerator[bytes, None]:
    """Yield the tool's server-sent events. If the reader stops early, tracking stops."""
    start = {"type": "started", "total_frames": state.video.file.num_frames, "start_frame_index": state.first}
    yield _event(start)
    try:
        async with contextlib.aclosing(walk) as found:
            async for each in found:
                yield _event(each)
    except Exception as error:  # noqa: BLE001 - the response with status 200 has already started
        yield _event({"type": "error", "message": meant_by(error).detail})


def _event(members: dict[str, Any]) -> bytes:
    return f"data: {strict_json.dumps(members, separators=(',', ':'))}\n\n".encode()


def _success(data: dict[str, Any]) -> Response:
    return json_answer({"success": True, "data": data})
