"""Frames are read and sent before they are needed, while the server tracks the frame before them."""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

Stop = concurrent.futures.Future[None]


def look_ahead(
    order: Iterator[int], prepare: Callable[[int, bool], bool], ahead: int, stop: Stop
) -> Generator[int, None, None]:
    """Yield the frames of a pass, each once it is prepared. One thread prepares the next ones.

    When a frame is yielded, at most ``ahead`` frames behind it have been taken or wait to be taken.

    Args:
        order: indexes of frames.
        prepare: reads a frame, and with True sends it, too; returns False if the video ends before it.
        ahead: maximum number of frames that are prepared before they are needed.
        stop: ends the iteration.

    Raises:
        VideoError: a frame cannot be read; it is raised when the iteration reaches this frame.
    """
    executor = concurrent.futures.ThreadPoolExecutor(1, "triton-sam-frames")
    waiting: deque[tuple[int, concurrent.futures.Future[bool]]] = deque()
    sends = False  # the first frame travels with the request that tracks it
    try:
        while not stop.done():
            while len(waiting) <= ahead and (index := next(order, None)) is not None:
                waiting.append((index, executor.submit(prepare, index, sends)))
                sends = ahead > 0
            if not waiting:
                return
            index, prepared = waiting.popleft()
            waited: set[concurrent.futures.Future[Any]] = {prepared, stop}
            concurrent.futures.wait(waited, return_when=concurrent.futures.FIRST_COMPLETED)
            if stop.done() or not prepared.result():
                return
            yield index
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
