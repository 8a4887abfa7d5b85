"""Annotates many images concurrently, with a limited number of threads, and fills the shards in any order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Generic, TypeVar

from .._common.backoff import spread
from ..errors import (
    InferenceError,
    InputError,
    MissingDependencyError,
    ModelNotReadyError,
    SamError,
    ServerBusyError,
    ServerError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from .folder import ImageRecord, RunFolder, Shard
from .job import Progress
from .sources import ImageItem

Worker = TypeVar("Worker")

MAX_LATE = 2
"""Consecutive requests that may take too long before their server counts as gone."""
BUSY_PAUSE = 0.5
"""Maximum pause in seconds before a request to a busy server is repeated."""


def annotate(
    folder: RunFolder,
    shards: Iterable[Shard],
    work: Callable[[Worker, ImageItem], ImageRecord],
    workers: Sequence[Worker],
    done: Callable[[ImageRecord], None] = lambda _: None,
    progress: Progress = lambda *_: None,
    is_ready: Callable[[Worker], bool] = lambda _: False,
) -> None:
    """Annotate the images of shards that are missing in the folder.

    A free worker takes the next image, so fast servers process more images than slow ones. The number of images in
    progress or queued is at most twice the number of workers. If a server is gone, other workers take its image.

    Args:
        work: annotates one image with one of the workers. A refused image becomes a record with an error.
        workers: the first arguments of ``work``, for example clients of several servers. Each is used by one thread at
            a time.
        is_ready: asked after a request that took too long. If the worker is ready, the image becomes a record with an
            error, at most MAX_LATE in a row; otherwise the server counts as gone.
    """
    crew = _Crew(work, workers, progress, is_ready)
    pool = ThreadPoolExecutor(len(workers))
    try:
        _fill(folder, shards, lambda item: pool.submit(crew.annotate, item), 2 * len(workers), done)
    finally:
        crew.stop()
        pool.shutdown(cancel_futures=True)


class _Crew(Generic[Worker]):
    """Assigns a worker to each image."""

    def __init__(
        self,
        work: Callable[[Worker, ImageItem], ImageRecord],
        workers: Sequence[Worker],
        progress: Progress,
        is_ready: Callable[[Worker], bool],
    ) -> None:
        self._work = work
        self._progress = progress
        self._is_ready = is_ready
        self._free: SimpleQueue[Worker | None] = SimpleQueue()
        self._left = len(workers)
        self._late: Counter[int] = Counter()  # requests of each worker that took too long, since one that did not
        self._failure: ServerError | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        for worker in workers:
            self._free.put(worker)

    def stop(self) -> None:
        """Stop waiting for busy servers."""
        self._stopped.set()

    def annotate(self, item: ImageItem) -> ImageRecord:
        """Annotate an image with a free worker. Errors of the image or the request become a record with an error."""
        while True:
            worker = self._free.get()
            if worker is None:
                self._free.put(None)  # for the next waiting thread
                raise self._failure or ServerUnreachableError("all servers are gone")
            try:
                record = self._patiently(worker, item)
            except (ServerUnreachableError, ModelNotReadyError, ServerTimeoutError) as error:
                self._failure = error
                if self._dismiss():
                    raise
            except BaseException:
                self._free.put(worker)
                raise
            else:
                self._free.put(worker)
                self._progress(item, 1.0)
                return record

    def _dismiss(self) -> bool:
        """Drop the caller's worker and return whether it was the last one."""
        with self._lock:
            self._left -= 1
            if self._left:
                return False
        self._free.put(None)  # wakes the threads waiting for a worker
        return True

    def _patiently(self, worker: Worker, item: ImageItem) -> ImageRecord:
        while True:
            try:
                record = self._work(worker, item)
            except ServerBusyError:
                if self._stopped.wait(spread(BUSY_PAUSE)):
                    raise
            except ServerTimeoutError as error:
                with self._lock:
                    self._late[id(worker)] += 1
                    late = self._late[id(worker)]
                if late > MAX_LATE or not self._is_ready(worker):
                    raise
                return _failed(item, error)
            except (InputError, MissingDependencyError, InferenceError, OSError, MemoryError) as error:
                return _failed(item, error)
            else:
                self._late[id(worker)] = 0
                return record


def _failed(item: ImageItem, error: Exception) -> ImageRecord:
    return ImageRecord(item.id, item.name, (0, 0), error=" ".join(_reason(error).split()))


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "the image needs more memory than there is: lower --threads"
    if isinstance(error, OSError) and not isinstance(error, SamError):
        return f"the image cannot be read: {error.strerror or str(error) or 'the system gives no reason'}"
    if isinstance(error, ServerTimeoutError):
        return f"{error}: raise --timeout, or lower --threads"
    return str(error)


class _OpenShards:
    def __init__(self, folder: RunFolder, done: Callable[[ImageRecord], None]) -> None:
        self._folder = folder
        self._done = done
        self._shards: dict[int, tuple[Sequence[ImageItem], dict[int, ImageRecord]]] = {}

    def missing(self, shards: Iterable[Shard]) -> Iterator[tuple[int, ImageItem]]:
        """Yield each image without a record, with its shard's number. An earlier run may have begun the shard."""
        for number, wanted in shards:
            records, left = self._folder.state(number, wanted)
            if left:
                self._shards[number] = wanted, records
                for item in left:
                    yield number, item
            else:
                for item in wanted:
                    self._done(records[item.id])

    def add(self, number: int, record: ImageRecord) -> None:
        """Store a record, and write its shard if it is complete."""
        wanted, records = self._shards[number]
        records[record.id] = record
        if len(records) < len(wanted):
            return
        ordered = [records[item.id] for item in wanted]
        self._folder.write(number, ordered)
        del self._shards[number]
        for each in ordered:
            self._done(each)


def _fill(
    folder: RunFolder,
    shards: Iterable[Shard],
    submit: Callable[[ImageItem], Future[ImageRecord]],
    limit: int,
    done: Callable[[ImageRecord], None],
) -> None:
    """Submit the missing images, ``limit`` at a time, and write each shard when it is complete."""
    opened = _OpenShards(folder, done)
    missing = opened.missing(shards)
    running: dict[Future[ImageRecord], int] = {}
    while True:
        while len(running) < limit and (following := next(missing, None)) is not None:
            number, item = following
            running[submit(item)] = number
        if not running:
            return
        ended = wait(running, return_when=FIRST_COMPLETED).done
        for future in sorted(ended, key=lambda future: future.exception() is not None):  # keeps all finished records
            opened.add(running.pop(future), future.result())
