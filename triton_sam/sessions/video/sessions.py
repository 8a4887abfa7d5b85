"""The table of sessions: ids, limits, idle time, and the data of each session in addition to its tracker."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from concurrent.futures import Executor

from ...errors import ServerBusyError, UnknownSessionError, VideoError
from ...families.base import Size
from ...wire import video
from ..messages import Tensors
from ..tasks import SerialQueue
from .messages import VideoRequest
from .tracker import Tracker

KNOWN_FRAMES = 1024
"""A session stores the ids of this many frames, the most recent ones."""


class VideoSession:
    """One session. Its operations run in sequence, in a SerialQueue; only add_frame() may run at the same time.

    Args:
        frame_size: width and height of the frames, if known.
    """

    def __init__(self, session_id: str, tracker: Tracker, frame_size: Size | None, strand: SerialQueue) -> None:
        self.session_id = session_id
        self.tracker = tracker
        self.strand = strand
        self.used = time.monotonic()
        self.is_closed = False
        self.known_size = frame_size
        """Width and height of the frames in pixels; None if no frame is known yet."""
        self.image_ids: OrderedDict[int, str] = OrderedDict()
        """The ids of the images of frames. Only add_frame() changes it."""
        self._lock = threading.Lock()
        self.last: tuple[int, str, Tensors] = (0, "", {})
        """Number, operation and answer of the last step."""

    @property
    def frame_size(self) -> Size:
        """Width and height of the frames in pixels."""
        if self.known_size is None:
            raise VideoError("the session has no frame yet: send one first")
        return self.known_size

    def add_frame(self, index: int, image_id: str, size: Size) -> None:
        """Store the image id of a frame."""
        with self._lock:
            expected = self.known_size or size
            if size != expected:
                raise VideoError(
                    f"frame {index} has {size[0]} x {size[1]} pixels, and earlier frames have {expected[0]} x "
                    f"{expected[1]}: all frames of a video must have one size"
                )
            self.known_size = size
            self.image_ids[index] = image_id
            self.image_ids.move_to_end(index)
            while len(self.image_ids) > KNOWN_FRAMES:
                self.image_ids.popitem(last=False)


class SessionTable:
    """All sessions of a model, from any number of threads."""

    def __init__(self, limit: int, idle_seconds: float, executor: Executor) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._executor = executor
        self.by_id: dict[str, VideoSession] = {}
        self._lock = threading.Lock()

    def start(self, tracker: Tracker, frame_size: Size | None) -> VideoSession:
        """Add a session."""
        session = VideoSession(secrets.token_hex(16), tracker, frame_size, SerialQueue(self._executor))
        with self._lock:
            if len(self.by_id) >= self._limit:
                raise ServerBusyError(
                    f"{self._limit} video sessions are open here, the limit of this server: close one, or wait until "
                    f"one has been idle for {self._idle_seconds:g} s"
                )
            self.by_id[session.session_id] = session
        return session

    def find(self, request: VideoRequest) -> VideoSession | None:
        """Return the session of a request, and mark it as used; None for start_session."""
        if request.operation == video.START_SESSION:
            return None
        with self._lock:
            session = self.by_id.get(request.session_id)
            if session is None:
                unknown = repr(request.session_id[:64])
                raise UnknownSessionError(f"unknown or expired video session {unknown}: start a session")
            session.used = time.monotonic()
        return session

    def close(self, session: VideoSession) -> None:
        """Remove a session after its running operation has ended."""
        session.is_closed = True
        with self._lock:
            self.by_id.pop(session.session_id, None)

    def close_idle(self) -> int:
        """Close the sessions that were unused for the idle time; return their number."""
        earliest = time.monotonic() - self._idle_seconds
        with self._lock:
            idle = [each for each in self.by_id.values() if each.used < earliest and not each.strand.is_busy]
        for session in idle:
            self.close(session)
        return len(idle)
