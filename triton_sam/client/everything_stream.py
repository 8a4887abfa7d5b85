"""The parts of a search as a stream: the server computes the next part while the answer to this one travels.

A stream saves the way to the server and back before each part, but nothing else. So whatever goes wrong with it, the
search goes on with single requests, whose errors say what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Future

from ..errors import ServerError
from ..everything.parts import Seen
from ..transport.base import Tensors
from .dispatcher import Item, Put
from .everything_job import JobFlows


class PartStream:
    """The answers to some parts of a search, in their order.

    Args:
        jobs: reads the answers.
        answers: receives them; None for no stream.
    """

    def __init__(self, jobs: JobFlows, answers: Generator[Tensors, None, None] | None = None) -> None:
        self._jobs = jobs
        self._answers = answers

    def next(self) -> Seen | None:
        """Wait for the objects of the next part; return None if they have to be asked for."""
        if self._answers is None:
            return None
        try:
            outputs = next(self._answers, None)
            if outputs is not None:
                return self._jobs.read_streamed(outputs)
        except ServerError as error:
            self._jobs.stream_failed(error)
        self.close()
        return None

    def close(self) -> None:
        """End the stream. The server ends after the part that it computes."""
        if self._answers is not None:
            self._answers.close()
            self._answers = None


class AsyncPartStream:
    """The same for a task. Its requests are sent elsewhere, see Dispatcher.stream().

    Args:
        jobs: reads the answers.
        begin: begins the stream; is given a function that takes each item, from any thread. None for no stream.
    """

    def __init__(self, jobs: JobFlows, begin: Callable[[Put], Future[None]] | None = None) -> None:
        self._jobs = jobs
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._running = None if begin is None else begin(self._put)

    async def next(self) -> Seen | None:
        """Do as PartStream.next()."""
        if self._running is None:
            return None
        item = await self._items.get()
        try:
            if isinstance(item, ServerError):
                self._jobs.stream_failed(item)
            elif item is not None:
                return self._jobs.read_streamed(item)
        except ServerError as error:
            self._jobs.stream_failed(error)
        self.close()
        return None

    def close(self) -> None:
        """Do as PartStream.close()."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def _put(self, item: Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop of the caller is closed
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
