"""Answers a request of the video model: finds the session, runs the operation, writes the answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError, PromptError, UnknownImageError, UnknownSessionError
from ...families.base import Family
from ...families.tracking import Tracking
from ...inputs.images import frame_input
from ...wire import video
from ..concepts import Concepts, ConceptSearch
from ..images import ImageStore
from ..messages import Reply, Tensors, json_tensor
from ..tasks import TaskCancelledError
from .memory import Limits
from .messages import MAX_FRAMES, WITH_STEP, VideoRequest, read_request, write_rows
from .models import Embeddings, TrackingModels
from .sessions import SessionTable, VideoSession, read_snapshot, write_snapshot
from .tracker import Frames, Row, Tracker
from .words import FrameSearch


@dataclass(frozen=True)
class VideoModelSettings:
    """The parameters of a video model; see wire.video.parameters."""

    sessions: int = video.DEFAULT_MAX_SESSIONS
    idle_seconds: float = video.DEFAULT_IDLE_SECONDS
    limits: Limits = field(default_factory=Limits)


class VideoModel:
    """Answers requests. Operations of one session must run in sequence, see tasks.SerialQueue.

    Args:
        family: the family at the size of its encoder's image; it must have a tracker.
        cache_bytes: maximum size of the cached embeddings of frames, in bytes.
        concepts: the settings of searches for concepts; None if the family has no models for them.
    """

    def __init__(
        self,
        family: Family,
        models: TrackingModels,
        cache_bytes: int,
        identity: str,
        settings: VideoModelSettings,
        workers: Executor,
        concepts: Concepts | None = None,
    ) -> None:
        self.sessions = SessionTable(settings.sessions, settings.idle_seconds, workers)
        prepare = partial(frame_input, side=family.image_size, value_range=family.value_range)
        self.images = ImageStore(models.encode, cache_bytes, prepare, f"{identity} {family.image_size} frame")
        self._words = None
        if concepts is not None:
            search = ConceptSearch(family, models.run, concepts, self.images, contextlib.nullcontext)
            self._words = FrameSearch(search)
        self._family = family
        self._models = models
        self._identity = f"{identity} {family.image_size}"
        self._settings = settings
        self._changes: Mapping[str, Callable[[VideoRequest, VideoSession, Frames, Reply], list[Row]]] = {
            video.ADD_PROMPT: self._add_prompt,
            video.PROPAGATE: self._propagate,
            video.UPDATE_MEMORIES: self._update_memories,
            video.CLEAR_PROMPTS: self._clear,
            video.REMOVE_OBJECT: self._remove,
            video.RESET_SESSION: self._reset,
        }

    def answer(self, tensors: Mapping[str, npt.NDArray[Any]], wants_snapshot: bool = False) -> Reply:
        """Read a request and answer it. Errors become part of the reply."""
        try:
            request = read_request(tensors, wants_snapshot)
            session = self.sessions.find(request)
        except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
            return Reply().fail(error)
        return self.carry_out(request, session)

    def carry_out(
        self, request: VideoRequest, session: VideoSession | None, stopped: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Answer a request of a session. Errors become part of the reply, except TaskCancelledError.

        Args:
            stopped: returns whether the answer to a search is no longer needed.
        """
        reply = Reply()
        try:
            if session is None:
                reply.tensors = self._start(request, reply)
            else:
                session.running.append(request)
                try:
                    reply.tensors = self._answer(request, session, reply, stopped)
                finally:
                    session.running.pop()
        except TaskCancelledError as end:
            end.reply = reply
            raise
        except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
            reply.fail(error)
        return reply

    def gauges(self, reply: Reply | None = None) -> dict[str, float]:
        """Return the gauges of the sessions by name, and those of the cache if the request of a reply changed it."""
        sessions = list(self.sessions.by_id.values())  # other threads start and close sessions
        return {
            "sessions": len(sessions),
            "session_bytes": sum(session.tracker.kept_bytes for session in sessions),
            **self.images.gauges(reply),
        }

    def close_idle(self) -> Reply:
        """Close idle sessions; return a reply with their number, for report()."""
        reply = Reply()
        reply.counts["sessions_expired"] += self.sessions.close_idle()
        return reply

    @property
    def _table(self) -> Tracking:
        assert self._family.tracking is not None  # noqa: S101 - for the type checker
        return self._family.tracking

    def _start(self, request: VideoRequest, reply: Reply) -> Tensors:
        limits = self._settings.limits
        size: list[int] | None = request.arguments.get("frame_size")
        frame_size = None if size is None else (size[0], size[1])
        num_frames = request.arguments.get("num_frames")
        tracker = Tracker(self._models, self._table, self._family.image_size, num_frames, limits)
        if request.snapshot is not None:
            frame_size = read_snapshot(request.snapshot, tracker, self._identity)
        reply.counts["sessions_expired"] += self.sessions.close_idle()
        try:
            session = self.sessions.start(tracker, frame_size)
        except Exception:
            reply.counts["sessions_refused"] += 1
            raise
        reply.undo = partial(self.sessions.close, session)
        reply.counts["sessions_started"] += 1
        reply.counts["sessions_restored"] += request.snapshot is not None
        result = {
            "session_id": session.session_id,
            "limits": {
                **asdict(limits),
                "max_sessions": self._settings.sessions,
                "idle_seconds": self._settings.idle_seconds,
                "max_frames": MAX_FRAMES,
            },
            "image_size": self._family.image_size,
            "frame_size": frame_size,
            "num_frames": tracker.num_frames,
            "object_ids": list(tracker.objects),
            video.FIRST_PROMPTED_FRAME: tracker.first_prompted,
            video.WORDS: self._words is not None and self._words.is_possible(),
            "next_step": 1,
        }
        return {video.RESULT: json_tensor(result)}

    def _answer(
        self, request: VideoRequest, session: VideoSession, reply: Reply, stopped: Callable[[], bool]
    ) -> Tensors:
        if session.is_closed:
            raise UnknownSessionError(f"the video session {session.session_id} was closed: start a session")
        tracker, operation = session.tracker, request.operation
        last = max((request.arguments.get("frame_index", 0), *request.frames))
        if tracker.num_frames is not None and last >= tracker.num_frames:
            count = tracker.num_frames
            raise PromptError(f"there is no frame {last}: the video has {count} frames, 0 to {count - 1}")
        find = partial(self._find, session, request.frames, reply)
        if operation not in WITH_STEP:
            try:
                if operation == video.FIND or request.arguments.get(video.WORDS):
                    return self._search(request, session, reply, stopped)
                return self._other_operation(request, session, find)
            finally:
                session.used = time.monotonic()
        step = request.arguments["step"]
        last_step, last_operation, answer = session.last
        if (step, operation) == (last_step, last_operation):
            reply.counts["repeats"] += 1
            return answer
        if step != last_step + 1:
            after = f"step {last_step + 1} after {last_step} ({last_operation})"
            raise InputError(f"step {step} ({operation}): the session expects {after}")
        frames = Frames(find, partial(self.images.with_room, reply=reply))
        try:
            rows = self._changes[operation](request, session, frames, reply)
        finally:
            session.used = time.monotonic()
        result = {
            "object_ids": list(tracker.objects),
            video.FIRST_PROMPTED_FRAME: tracker.first_prompted,
            "step": step,
        }
        size = session.known_size or (1, 1)  # without a frame, no row has a mask
        answer = {
            video.RESULT: json_tensor(result),
            **write_rows(rows, request.output_format, self._family, size),
        }
        if request.wants_snapshot:
            answer |= self._snapshot(session)
        session.last = step, operation, answer
        return answer

    def _search(
        self, request: VideoRequest, session: VideoSession, reply: Reply, stopped: Callable[[], bool]
    ) -> Tensors:
        if self._words is None:
            raise InputError(f"{self._family.name} cannot search words: use a SAM3 model")
        if request.operation == video.FIND:
            return self._words.answer(request, session, reply, stopped)
        self._words.encode(session, request.frames, reply)
        return {video.RESULT: json_tensor({"frame_size": session.known_size})}

    def _other_operation(
        self, request: VideoRequest, session: VideoSession, find: Callable[[int], Embeddings]
    ) -> Tensors:
        if request.operation == video.ADD_FRAMES:
            for index in request.frames:
                find(index)
            return {video.RESULT: json_tensor({"frame_size": session.known_size})}
        if request.operation == video.GET_SNAPSHOT:
            return {video.RESULT: json_tensor({"object_ids": list(session.tracker.objects)}), **self._snapshot(session)}
        self.sessions.close(session)
        return {video.RESULT: json_tensor({"closed": True})}

    def _find(self, session: VideoSession, contents: Mapping[int, bytes], reply: Reply, frame: int) -> Embeddings:
        """Return the embeddings of a frame that the request contains, or that the session has."""
        content = contents.get(frame)
        if content is not None:
            image = self.images.find(content, reply)
            session.add_frame(frame, image.image_id, image.image_size)
            return image.tensors
        image_id = session.image_ids.get(frame)
        held = None if image_id is None else self.images.get(image_id, reply)
        if held is None:
            raise UnknownImageError(f"frame {frame} is unknown or expired: send it again", frame=frame)
        return held.tensors

    def _add_prompt(self, request: VideoRequest, session: VideoSession, frames: Frames, reply: Reply) -> list[Row]:
        tracker, arguments = session.tracker, request.arguments
        frame, object_id = arguments["frame_index"], arguments["object_id"]
        with reply.timed("prompt"):
            frames.find(frame)
            if request.mask is not None:
                rows = tracker.add_mask(frame, object_id, request.mask_of(session.frame_size), frames)
            else:
                points = request.points(session.frame_size, self._family.image_size)
                rows = tracker.add_points(frame, object_id, points, arguments["clear_old_points"], frames)
        reply.counts["prompts"] += 1
        reply.counts["prompt_seconds"] += reply.seconds["prompt"]
        return rows

    @staticmethod
    def _propagate(request: VideoRequest, session: VideoSession, frames: Frames, reply: Reply) -> list[Row]:
        tracker, arguments = session.tracker, request.arguments
        with reply.timed("track"):
            if arguments["first"]:
                tracker.begin_pass(frames)
            rows = tracker.track(arguments["frame_index"], arguments["reverse"], frames, arguments["remember"])
        reply.counts["frames_tracked"] += 1
        reply.counts["objects_tracked"] += len(rows)
        reply.counts["track_seconds"] += reply.seconds["track"]
        return rows

    @staticmethod
    def _update_memories(request: VideoRequest, session: VideoSession, frames: Frames, _: Reply) -> list[Row]:
        absent, confirmed = (set(request.arguments.get(name) or ()) for name in ("absent", "confirmed"))
        session.tracker.update_memories(request.arguments["frame_index"], absent, confirmed, frames)
        return []

    @staticmethod
    def _clear(request: VideoRequest, session: VideoSession, *_: object) -> list[Row]:
        return session.tracker.clear(request.arguments["frame_index"], request.arguments["object_id"])

    @staticmethod
    def _remove(request: VideoRequest, session: VideoSession, *_: object) -> list[Row]:
        return session.tracker.remove(request.arguments["object_id"])

    @staticmethod
    def _reset(_: VideoRequest, session: VideoSession, *__: object) -> list[Row]:
        session.tracker.reset()
        return []

    def _snapshot(self, session: VideoSession) -> Tensors:
        content = write_snapshot(session.tracker, session.known_size, self._identity)
        return {video.SNAPSHOT: np.array([content], np.object_)}
