"""Label Studio's events of 2026 for videos: single frames, and tracking whose frames the tool asks for bit by bit.

Each event is a call of `/predict` whose context has a member `event`. Reference:
label_studio_ml/examples/segment_anything_video_interactive of https://github.com/HumanSignal/label-studio-ml-backend.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from ...masks.segment import Segment, mask_to_png
from ..faults import first_fault
from ..problems import Problem
from ..videos.events import Event
from ..videos.propagation import Propagation
from ..videos.schemas import PropagateRequest, VideoPrompt
from ..videos.store import StoredVideo
from .bridge import Bridge, Target
from .task_videos import TaskVideos

CONTROLS = ("VideoVectorLabels", "VideoRectangle", "VideoVector")
"""The tags of a labelling setup that hold objects of videos, the preferred one first."""
WAIT_SECONDS, GATHER_SECONDS = 5.0, 0.25
"""A question about the progress waits so long for the first frame, and then for more."""
BATCH = 16
"""The most frames of one answer."""
MAX_TRACKED = 500
"""The most frames in each direction, as in Label Studio's own backend."""
IDLE_SECONDS = 300.0
"""Tracking ends if nobody has asked about it for so long."""
OBJECT = 1


@dataclass(frozen=True)
class VideoCall:
    """One event.

    Args:
        event: its name.
        task: id of the task.
        address: where the video of the task lies.
        names: the members ``from_name`` and ``to_name`` of results.
        context: the members of the event.
        target: the prompt, in percent of the frame.
    """

    event: str
    task: str
    address: str
    names: dict[str, str]
    context: dict[str, Any]
    target: Target

    def number(self, name: str, default: float) -> float:
        """Return a member that is a number.

        Raises:
            Problem: 422, it is none.
        """
        value = self.context.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
            raise Problem(422, f"{name} must be a number")
        return float(value)

    def frame(self, video: StoredVideo) -> int:
        """Return the frame that the user sees: that of ``time_ms``, or else ``frame``, which counts from 1."""
        last = video.file.num_frames - 1
        if self.context.get("time_ms") is not None:
            return min(last, max(0, math.floor(self.number("time_ms", 0) / 1000 * float(video.file.rate))))
        return min(last, max(0, int(self.number("frame", 1)) - 1))

    def placed(self, size: tuple[int, int]) -> dict[str, Any]:
        """Return the prompt as an object of `/v1`, in pixels.

        Raises:
            Problem: 422, there is none, or it cannot be used.
        """
        if self.target.is_empty:
            raise Problem(422, "set at least one point, or a box")
        across, down = size[0] / 100, size[1] / 100
        points = [[x * across, y * down] for x, y in self.target.points]
        box = self.target.box
        if box is not None:
            box = [box[0] * across, box[1] * down, box[2] * across, box[3] * down]
        return Target(points, self.target.labels, box).inside(size)


@dataclass(eq=False)
class Track:
    """A tracking that the tool asks about.

    Args:
        task: id of the task.
        video: the video.
        total: number of frames.
        rest: ways that follow the first one, each with the frame that it does not tell again.
        running: the way that runs.
        skipped: the frame that this way does not tell.
    """

    task: str
    video: StoredVideo
    total: int
    rest: list[tuple[PropagateRequest, int]]
    running: Propagation
    skipped: int | None = None
    produced: int = 0
    is_done: bool = False
    error: str | None = None
    timer: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def wait_for_questions(self) -> None:
        """End the tracking if nobody asks for a while."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.leave)

    def leave(self) -> None:
        """End the tracking after the frame that Triton computes."""
        if self.timer is not None:
            self.timer.cancel()
        self.is_done = True
        self.rest.clear()
        self.running.leave()

    async def frames(self) -> list[dict[str, Any]]:
        """Return the next frames: those that are there, or the first that comes within a few seconds."""
        found: list[dict[str, Any]] = []
        clock = asyncio.get_running_loop().time
        until = clock() + WAIT_SECONDS
        while not self.is_done and len(found) < BATCH:
            try:
                event = await asyncio.wait_for(self.running.events.get(), max(0.0, until - clock()))
            except asyncio.TimeoutError:
                break
            told = await self._take(event)
            if told is not None:
                found.append(told)
                until = min(until, clock() + GATHER_SECONDS) if len(found) == 1 else until
        self.produced += len(found)
        return found

    async def _take(self, event: Event) -> dict[str, Any] | None:
        if event.name == "error":
            self.is_done, self.error = True, str(json.loads(event.data)["detail"])
        elif event.name == "done" and self.rest:
            request, self.skipped = self.rest.pop(0)
            await asyncio.wait({self.running.task})
            self.running = await self.video.tracking.propagate(request)
        elif event.name == "done":
            self.is_done = True
        elif event.name == "frame":
            return self._told(json.loads(event.data))
        return None

    def _told(self, masks: dict[str, Any]) -> dict[str, Any] | None:
        """Return a frame as Label Studio expects it; None if the object is not in it."""
        found, frame = masks["objects"][0], masks["frame"]
        if frame == self.skipped or not found["area"] or found["object_score"] <= 0:
            return None
        width, height = self.video.file.size
        url = f"data:image/png;base64,{found['png']}"
        time_ms = float(frame * 1000 / self.video.file.rate)
        return {"frame": frame, "time_ms": time_ms, "imageDataURL": url, "width": width, "height": height}


class VideoEvents:
    """Answers events.

    Args:
        bridge: asks the engine.
        videos: the videos of tasks.
    """

    def __init__(self, bridge: Bridge, videos: TaskVideos) -> None:
        self._bridge = bridge
        self._videos = videos
        self._tracks: dict[str, Track] = {}

    async def answer(self, request: Request, call: VideoCall) -> list[dict[str, Any]]:
        """Return the results of an event.

        Raises:
            Problem: the event is not known, or its video or prompt cannot be used.
        """
        known: dict[str, Callable[[Request, VideoCall], Coroutine[Any, Any, list[dict[str, Any]]]]] = {
            "predict": self._predict,
            "prewarm": self._prewarm,
            "track": self._track,
            "track_progress": self._progress,
            "track_cancel": self._cancel,
            "release": self._release,
        }
        if call.event not in known:
            raise Problem(422, f"event: choose one of capabilities, {', '.join(known)}")
        return await known[call.event](request, call)

    async def _predict(self, request: Request, call: VideoCall) -> list[dict[str, Any]]:
        if call.target.is_empty:
            return []
        video = await self._videos.video(call.address, call.task)
        image = await self._videos.frame(video, call.frame(video))
        placed = call.placed(image.size)
        target = Target(placed["points"], placed["labels"], placed["box"])
        pair = await self._bridge.pair(video.model)
        [[found]] = await self._bridge.masks(request, image, pair, [target], _bitmask)
        return [{**_named(call), "type": "bitmask", "value": found}]

    async def _prewarm(self, request: Request, call: VideoCall) -> list[dict[str, Any]]:
        video = await self._videos.video(call.address, call.task)
        frame = call.frame(video)
        image = await self._videos.frame(video, frame)
        await self._bridge.embed(request, image, await self._bridge.pair(video.model))
        value = {"status": "ok", "cached": [frame], "pending": [], "frame_count": video.file.num_frames}
        return [_value(call, "prewarm_ack", value)]

    async def _track(self, request: Request, call: VideoCall) -> list[dict[str, Any]]:
        video = await self._videos.video(call.address, call.task)
        tracking = video.tracking
        if tracking.is_tracking:
            busy = {"error": "this video is being tracked", "active_or_queued": 1, "resident_sessions": 1}
            return [_value(call, "track_busy", {**busy, "max_sessions": 1})]
        frame, last = call.frame(video), video.file.num_frames - 1
        try:
            prompt = VideoPrompt(frame=frame, object_id=OBJECT, **call.placed(video.file.size))
        except ValidationError as error:
            raise Problem(422, f"the prompt cannot be used: {first_fault(error)}") from None
        most = self._most(call, video)
        ahead, behind = min(most, last - frame), min(most, frame)
        ways = {
            "forward": [PropagateRequest(start=frame, count=ahead + 1, format="png")],
            "backward": [PropagateRequest(start=frame, count=behind + 1, reverse=True, format="png")],
        }
        ways["both"] = ways["forward"] + ways["backward"]
        direction = call.context.get("direction")
        first, *rest = ways[direction if isinstance(direction, str) and direction in ways else "forward"]

        async def begin() -> Propagation:
            await tracking.reset()
            await tracking.add(prompt)
            return await tracking.propagate(first)

        total = (first.count or 0) + sum((way.count or 1) - 1 for way in rest)
        running = await self._bridge.run(request, begin())
        track = Track(call.task, video, total, [(way, frame) for way in rest], running)
        track.wait_for_questions()
        self._tracks = {name: each for name, each in self._tracks.items() if not each.is_done}
        name = uuid.uuid4().hex
        self._tracks[name] = track
        rate = float(video.file.rate)
        value = {"session_id": name, "total_frames": total, "fps": rate}
        return [_value(call, "track_started", {**value, "duration_ms": video.file.num_frames * 1000 / rate})]

    def _most(self, call: VideoCall, video: StoredVideo) -> int:
        most = call.number("max_frames", MAX_TRACKED)
        if call.context.get("max_duration_ms") is not None:
            most = round(call.number("max_duration_ms", 0) / 1000 * float(video.file.rate))
        return int(max(0, min(most, MAX_TRACKED)))

    async def _progress(self, request: Request, call: VideoCall) -> list[dict[str, Any]]:
        track = self._of(call)
        if track is None:
            error = "the session is not known (any more): track the object again"
            return [_value(call, "track_progress", {"error": error, "done": True})]
        track.wait_for_questions()
        async with track.lock:
            frames = await self._bridge.run(request, track.frames())
        known = {"frames": frames, "produced": track.produced, "total": track.total}
        if track.is_done:
            self._forget(call)
        return [_value(call, "track_progress", {**known, "done": track.is_done, "error": track.error})]

    async def _cancel(self, _: Request, call: VideoCall) -> list[dict[str, Any]]:
        track = self._of(call)
        if track is not None:
            self._forget(call)
            await track.video.tracking.cancel()
        return [_value(call, "track_cancel_ack", {"status": "cancelled" if track else "not_found"})]

    async def _release(self, _: Request, call: VideoCall) -> list[dict[str, Any]]:
        for name in [name for name, track in self._tracks.items() if track.task == call.task]:
            self._tracks.pop(name).leave()
        await self._videos.release(call.task)
        return [_value(call, "release_ack", {"status": "released"})]

    def _of(self, call: VideoCall) -> Track | None:
        track = self._tracks.get(str(call.context.get("session_id")))
        return track if track is not None and track.task == call.task else None

    def _forget(self, call: VideoCall) -> None:
        self._tracks.pop(str(call.context.get("session_id"))).leave()


def capabilities(names: list[str], version: str) -> dict[str, Any]:
    """Return the result that says what can be done: tracking, if there are video models of these names."""
    targets = [
        {"tag": "VideoRectangle", "output": "bbox", "features": ["track"]},
        {"tag": "VideoVectorLabels", "output": "polygon", "features": ["track"]},
    ]
    info = {"name": "triton_sam", "version": version}
    value = {"prompts": ["point", "box"], "targets": targets if names else [], "model_info": info}
    return {"id": uuid.uuid4().hex[:8], "type": "capabilities", "origin": "manual", "value": value}


def _bitmask(segment: Segment) -> dict[str, Any]:
    height, width = segment.mask.shape
    url = f"data:image/png;base64,{base64.b64encode(mask_to_png(segment.mask)).decode()}"
    return {"imageDataURL": url, "width": width, "height": height}


def _named(call: VideoCall) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex[:8], "origin": "manual", **call.names}


def _value(call: VideoCall, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    return {**_named(call), "type": kind, "value": value}
