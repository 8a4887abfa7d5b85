"""Answers a request of the video model: finds the session, runs the operation, writes the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import InputError, PromptError, UnknownImageError, UnknownSessionError
from ...families.base import Family, FloatArray
from ...families.tracking import Tracking
from ...inputs.frames import frame_input
from ...wire import video
from ..cache import ImageCache
from ..images import ImageStore
from ..metrics import Metrics
from ..reply import Reply, Tensors
from .answers import write_result, write_rows
from .limits import Limits
from .models import Embeddings, TrackingModels
from .requests import MAX_FRAMES, WITH_STEP, VideoRequest, read_operation, read_request
from .sessions import SessionTable, VideoSession
from .snapshot import read_snapshot, write_snapshot
from .tracker import Row, Tracker

Result = TypeVar("Result")


@dataclass(frozen=True)
class Settings:
    """The parameters of a video model; see wire.video.parameters."""

    sessions: int = video.DEFAULT_MAX_SESSIONS
    idle_seconds: float = video.DEFAULT_IDLE_SECONDS
    limits: Limits = field(default_factory=Limits)


class VideoModel:
    """Answers requests. Operations of one session must come one after the other, see sessions.Strand.

    Args:
        family: the family at the size of its encoder's image; it must have a tracker.
        models: calls the models.
        cache: keeps the embeddings of frames.
        metrics: receives the metrics.
        identity: text that identifies the models and their weights.
        settings: the limits.
        workers: runs the operations of all sessions.
    """

    def __init__(
        self,
        family: Family,
        models: TrackingModels,
        cache: ImageCache,
        metrics: Metrics,
        identity: str,
        settings: Settings,
        workers: Executor,
    ) -> None:
        self.sessions = SessionTable(settings.sessions, settings.idle_seconds, workers)
        self.images = ImageStore(
            models, cache, self._prepare, family.embeddings, f"{identity} {family.image_size} frame"
        )
        self._family = family
        self._models = models
        self._metrics = metrics
        self._identity = f"{identity} {family.image_size}"
        self._settings = settings
        metrics.set("cache_limit_bytes", cache.limit)

    def find_session(self, tensors: Mapping[str, npt.NDArray[Any]]) -> VideoSession | None:
        """Return the session of a request, which thereby counts as used; None for start_session.

        Raises:
            InputError: the operation is unknown, or there is no session id.
            UnknownSessionError: the session does not exist (any more).
        """
        operation, session_id = read_operation(tensors)
        return None if operation == video.START_SESSION else self.sessions.find(session_id)

    def answer(
        self,
        tensors: Mapping[str, npt.NDArray[Any]],
        session: VideoSession | None = None,
        wants_snapshot: bool = False,
    ) -> Reply:
        """Answer one request. Errors become part of the reply.

        Args:
            tensors: the inputs.
            session: from find_session(), if the request has waited since then.
            wants_snapshot: whether the output ``snapshot`` is requested.
        """
        reply = Reply()
        try:
            request = read_request(tensors, wants_snapshot)
            session = session or self.find_session(tensors)
            if session is None:
                reply.tensors = self._start(request, reply)
            else:
                reply.tensors = self._answer(request, session, reply)
        except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
            reply.counts["failures"] += 1
            reply.error = error.with_traceback(None)  # which refers to this reply, and to frames
            reply.tensors = {}
        return reply

    def report(self, reply: Reply) -> None:
        """Add the counts of a reply to the metrics. Call this after answering: each metric is a call to the server."""
        for name, value in reply.counts.items():
            self._metrics.add(name, value)
        self.images.report(reply, self._metrics)
        self._metrics.set("sessions", len(self.sessions))
        self._metrics.set("session_bytes", self.sessions.nbytes)

    def close_idle(self) -> Reply:
        """Close idle sessions; return a reply with their number, for report()."""
        reply = Reply()
        reply.counts["sessions_expired"] += self.sessions.close_idle()
        return reply

    def _prepare(self, frame: Image.Image) -> Mapping[str, FloatArray]:
        (spec,) = self._family.encoder.inputs
        return {spec.name: frame_input(frame, self._family.image_size)}

    @property
    def _table(self) -> Tracking:
        assert self._family.tracking is not None  # noqa: S101 - for the type checker
        return self._family.tracking

    def _start(self, request: VideoRequest, reply: Reply) -> Tensors:
        limits = self._settings.limits
        tracker = Tracker(self._models, self._table, self._family.image_size, request.num_frames, limits)
        size = request.frame_size
        if request.snapshot is not None:
            if request.arguments:
                raise InputError("a snapshot has all arguments of start_session: give it alone")
            size = read_snapshot(request.snapshot, tracker, self._identity)
        reply.counts["sessions_expired"] += self.sessions.close_idle()
        try:
            session = self.sessions.start(tracker, size)
        except Exception:
            reply.counts["sessions_refused"] += 1
            raise
        reply.undo = partial(self.sessions.close, session)
        reply.counts["sessions_started"] += 1
        reply.counts["sessions_restored"] += request.snapshot is not None
        tracker.kept_bytes = tracker.nbytes
        return write_result(
            {
                "session_id": session.session_id,
                "limits": {
                    **limits.as_json(),
                    "max_sessions": self._settings.sessions,
                    "idle_seconds": self._settings.idle_seconds,
                    "max_frames": MAX_FRAMES,
                },
                "image_size": self._family.image_size,
                "frame_size": size,
                "num_frames": tracker.num_frames,
                "object_ids": list(tracker.objects),
                video.FIRST_PROMPTED_FRAME: tracker.first_prompted,
                "next_step": 1,
            }
        )

    def _answer(self, request: VideoRequest, session: VideoSession, reply: Reply) -> Tensors:
        if session.is_closed:
            raise UnknownSessionError(f"the video session {session.session_id} was closed: start a session")
        try:
            if request.operation not in WITH_STEP:
                return self._other_operation(request, session, reply)
            step = request.whole("step", least=1)
            answer = session.repeated(step, request.operation)
            if answer is not None:
                reply.counts["repeats"] += 1
                return answer
            answer = self._step(request, session, reply)
            if request.wants_snapshot:
                answer |= self._snapshot(session)
            session.finish(step, request.operation, answer)
            return answer
        finally:
            if request.operation in WITH_STEP:  # other operations change no outputs
                session.tracker.kept_bytes = session.tracker.nbytes
            session.used = time.monotonic()

    def _other_operation(self, request: VideoRequest, session: VideoSession, reply: Reply) -> Tensors:
        if request.operation == video.ADD_FRAMES:
            frames = _RequestFrames(self.images, session, request.frames, reply)
            return write_result({"frame_ids": frames.encode_all(), "frame_size": session.known_size})
        if request.operation == video.GET_SNAPSHOT:
            return write_result({"object_ids": list(session.tracker.objects)}) | self._snapshot(session)
        if request.operation == video.CLOSE_SESSION:
            self.sessions.close(session)
            return write_result({"closed": True})
        return write_result({"cancelled": False})  # a request tracks one frame, and the client sends no more

    def _step(self, request: VideoRequest, session: VideoSession, reply: Reply) -> Tensors:
        """Run an operation that changes what the session computes."""
        tracker = session.tracker
        result: dict[str, Any] = {}
        rows: list[Row]
        if request.operation == video.ADD_PROMPT:
            rows = self._add_prompt(request, session, reply)
        elif request.operation == video.PROPAGATE:
            rows, result = self._propagate(request, session, reply)
        elif request.operation == video.CLEAR_PROMPTS:
            rows = tracker.clear(request.whole("frame_index"), request.object_id)
        elif request.operation == video.REMOVE_OBJECT:
            rows = tracker.remove(request.object_id)
        else:
            tracker.reset()
            rows = []
        result = {
            "object_ids": list(tracker.objects),
            video.FIRST_PROMPTED_FRAME: tracker.first_prompted,
            "step": request.arguments["step"],
            **result,
        }
        size = session.known_size or (1, 1)  # without a frame there are no rows with masks
        return write_result(result) | write_rows(rows, request.output_format, self._family, size)

    def _add_prompt(self, request: VideoRequest, session: VideoSession, reply: Reply) -> list[Row]:
        tracker = session.tracker
        frame, object_id = self._frame_index(request, session), request.object_id
        frames = _RequestFrames(self.images, session, request.frames, reply)
        with reply.timed("prompt"):
            frames.find(frame)
            if request.mask is not None:
                rows = tracker.add_mask(frame, object_id, request.mask_of(session.frame_size), frames)
            else:
                points = request.points(session.frame_size, self._family.image_size)
                rows = tracker.add_points(frame, object_id, points, request.flag("clear_old_points", True), frames)
        reply.counts["prompts"] += 1
        reply.counts["prompt_seconds"] += reply.seconds["prompt"]
        return rows

    def _propagate(
        self, request: VideoRequest, session: VideoSession, reply: Reply
    ) -> tuple[list[Row], dict[str, Any]]:
        tracker, reverse = session.tracker, request.flag("reverse", False)
        frame = self._frame_index(request, session)
        if request.whole("frame_count", 1) != 1:
            raise InputError("arguments: frame_count must be 1: a request tracks one frame")
        frames = _RequestFrames(self.images, session, request.frames, reply)
        with reply.timed("track"):
            if request.flag("first", False):
                tracker.begin_pass(frames)
            rows = tracker.track(frame, reverse, frames)
        reply.counts["frames_tracked"] += 1
        reply.counts["objects_tracked"] += len(rows)
        reply.counts["track_seconds"] += reply.seconds["track"]
        return rows, {"frames": [frame], "cancelled": False}

    @staticmethod
    def _frame_index(request: VideoRequest, session: VideoSession) -> int:
        frame = request.whole("frame_index")
        check_frame(frame, session.tracker.num_frames)
        return frame

    def _snapshot(self, session: VideoSession) -> Tensors:
        content = write_snapshot(session.tracker, session.known_size, self._identity)
        return {video.SNAPSHOT: np.array([content], np.object_)}


def check_frame(frame: int, num_frames: int | None) -> None:
    """Refuse the index of a frame behind the end of the video."""
    if num_frames is not None and frame >= num_frames:
        raise PromptError(f"there is no frame {frame}: the video has {num_frames} frames, 0 to {num_frames - 1}")


class _RequestFrames:
    """The frames of one request: those that it brings, and those that the session has.

    Args:
        images: finds or encodes images.
        session: the session.
        contents: image files by index of the frame.
        reply: counts hits, encodes and evictions.
    """

    def __init__(self, images: ImageStore, session: VideoSession, contents: Mapping[int, bytes], reply: Reply) -> None:
        self._images = images
        self._session = session
        self._contents = contents
        self._reply = reply
        for index in contents:
            check_frame(index, session.tracker.num_frames)

    def find(self, frame: int) -> Embeddings:
        """See tracker.Frames."""
        content = self._contents.get(frame)
        if content is not None:
            image = self._images.find(content, self._reply)
            self._session.add_frame(frame, image.image_id, image.image_size)
            return image.tensors
        image_id = self._session.image_id(frame)
        held = None if image_id is None else self._images.get(image_id, self._reply)
        if held is None:
            raise UnknownImageError(f"frame {frame} is not here (any more): send it again", frame=frame)
        return held.tensors

    def with_room(self, step: str, call: Callable[[], Result]) -> Result:
        """See tracker.Frames."""
        return self._images.with_room(step, call, self._reply)

    def encode_all(self) -> list[str]:
        """Encode all frames of the request; return their ids."""
        for frame in self._contents:
            self.find(frame)
        return [self._session.image_id(frame) or "" for frame in self._contents]
