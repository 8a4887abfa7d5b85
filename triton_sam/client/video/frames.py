"""The frames of a video, numbered as in its session: those that may be sent again, and those that are read ahead."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError, PromptError
from ...inputs.video.base import FrameSource
from ...inputs.video.sequences import DEFAULT_WINDOW
from ...transport.options import check_number

Stop = concurrent.futures.Future[None]
"""Done when a pass has to stop. Any thread may set it."""
_Job = tuple[int, bool, "concurrent.futures.Future[bool]"]
"""A frame to prepare, and whether to send it."""


def end(stop: Stop, error: ConfigurationError | None = None) -> None:
    """Set a stop. A pass that has frames left raises the error, if there is one."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):  # another thread has set it
        if error is None:
            stop.set_result(None)
        else:
            stop.set_exception(error)


@dataclass(frozen=True)
class VideoOptions:
    """The options of SAM2VideoClient.open()."""

    quality: int | None = None
    every: int = 1
    ahead: int = 2
    snapshot_every: int = 16
    window: int = DEFAULT_WINDOW

    def __post_init__(self) -> None:
        for name in ("every", "ahead", "snapshot_every", "window", *(["quality"] if self.quality is not None else [])):
            check_number(name, getattr(self, name), whole=True)
            object.__setattr__(self, name, int(getattr(self, name)))  # JSON takes no numbers of NumPy
        for name, least in (("every", 1), ("ahead", 0), ("snapshot_every", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} must be at least {least}, not {getattr(self, name)}")


class SessionFrames:
    """Provides the frames of a source to a session. Several threads may use it.

    With ``every`` = n, the session contains every n-th frame: frame n of the source is its frame 1.

    Args:
        recent: number of the most recently read frames that stay in memory in addition to the pinned ones.
    """

    def __init__(self, source: FrameSource, every: int, recent: int) -> None:
        self.source = source
        self.every = every
        self.pinned: set[int] = set()
        """The frames that stay in memory, because the session may need them again."""
        self._recent = recent
        self._read: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def count(self) -> int | None:
        """Number of frames of the session; None for a stream."""
        frames = self.source.num_frames
        return None if frames is None else -(-frames // self.every)

    def outside(self, index: int) -> int:
        """Return the index that a frame of the session has in the source."""
        return index * self.every

    def inside(self, frame: int) -> int:
        """Return the index that a frame of the source has in the session."""
        total = self.source.num_frames
        if frame < 0 or (total is not None and frame >= total):
            known = "" if total is None else f": the video has the frames 0 to {total - 1}"
            raise PromptError(f"there is no frame {frame}{known}")
        index, rest = divmod(frame, self.every)
        if rest:
            near = index * self.every
            raise PromptError(
                f"frame {frame} is left out, because the video was opened with every={self.every}: give {near} or "
                f"{near + self.every}"
            )
        return index

    def content(self, index: int) -> bytes:
        """Return a frame of the session as an image file.

        Raises:
            PromptError: the video ends before it.
        """
        with self._lock:
            if index in self._read:
                self._read.move_to_end(index)
                return self._read[index]
        frame = self.source.frame(self.outside(index))
        if frame is None:
            raise PromptError(f"there is no frame {self.outside(index)}: the video ends before it")
        with self._lock:
            self._read[index] = frame.content
            loose = [index for index in self._read if index not in self.pinned]
            for other in loose[: max(0, len(loose) - self._recent)]:
                del self._read[other]
        return frame.content


def look_ahead(
    order: Iterator[int], prepare: Callable[[int, bool], bool], ahead: int, stop: Stop
) -> Generator[int, None, None]:
    """Yield the frames of a pass, each once it is prepared. One thread prepares the next ones.

    When a frame is yielded, at most ``ahead`` later frames have been scheduled.

    Args:
        prepare: reads a frame, and with True also sends it; returns False if the video ends before it.
        ahead: maximum number of frames that are prepared before they are needed.
    """
    jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    # A daemon thread, because a stream that waits for its next frame must not delay the end of the process.
    threading.Thread(target=_prepare_all, args=(jobs, prepare), name="triton-sam-frames", daemon=True).start()
    waiting: deque[_Job] = deque()
    sends = False  # the first frame is sent with the request that tracks it
    try:
        while not stop.done():
            while len(waiting) <= ahead and (index := next(order, None)) is not None:
                waiting.append((index, sends, concurrent.futures.Future()))
                jobs.put(waiting[-1])
                sends = ahead > 0
            if not waiting:
                return
            index, _, prepared = waiting[0]
            waited: set[concurrent.futures.Future[Any]] = {prepared, stop}
            concurrent.futures.wait(waited, return_when=concurrent.futures.FIRST_COMPLETED)
            if stop.done():
                break
            if not prepared.result():
                return
            waiting.popleft()
            yield index
        if waiting or next(order, None) is not None:
            stop.result()  # raises the error of a closed video
    finally:
        for _, _, prepared in waiting:
            prepared.cancel()
        jobs.put(None)


def _prepare_all(jobs: queue.SimpleQueue[_Job | None], prepare: Callable[[int, bool], bool]) -> None:
    while (job := jobs.get()) is not None:
        index, sends, prepared = job
        if prepared.set_running_or_notify_cancel():
            try:
                prepared.set_result(prepare(index, sends))
            except BaseException as error:  # noqa: BLE001 - the pass raises it
                prepared.set_exception(error)
