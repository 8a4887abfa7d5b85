"""The parts that the asynchronous clients share: a synchronous client, whose calls run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import ConfigurationError
from ..everything.parameters import Parameters
from ..everything.search import Found, FoundObjects, Step
from ..families.base import Family
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..transport.base import BaseTransport
from ..transport.threads import Threads
from .sync import SamTritonClient

Value = TypeVar("Value")
P = ParamSpec("P")
_END = object()


class InThreads:
    """Base class of the asynchronous clients.

    Args:
        transport: of the synchronous client, which is closed when nobody refers to this client any more.
    """

    def __init__(self, transport: BaseTransport) -> None:
        self._threads = Threads()
        self._lasting: set[Future[Any]] = set()
        self._close = weakref.finalize(self, _close, self._threads, transport)

    def close(self) -> None:
        """Cancel all requests and close the connections. This blocks; inside an event loop, use aclose() instead."""
        self._close()

    async def aclose(self) -> None:
        """Cancel all requests and close the connections."""
        await asyncio.gather(*map(asyncio.wrap_future, list(self._lasting)), return_exceptions=True)
        await asyncio.to_thread(self.close)

    async def _run(self, call: Callable[P, Value], *arguments: P.args, **options: P.kwargs) -> Value:
        """Run a call. Cancelling this coroutine cancels the call on the wire."""
        return await asyncio.wrap_future(self._threads.submit(lambda: call(*arguments, **options)))

    async def _run_to_its_end(self, call: Callable[P, Value], *arguments: P.args, **options: P.kwargs) -> Value:
        """Run a call that goes on if this coroutine is cancelled. aclose() waits for its end."""
        running = self._threads.submit(lambda: call(*arguments, **options))
        self._lasting.add(running)
        running.add_done_callback(self._lasting.discard)
        return await shielded(running)

    async def _each(
        self, steps: Generator[Value, None, None], run: Callable[..., Any] | None = None
    ) -> AsyncGenerator[Value, None]:
        """Yield what a generator yields. Each step runs in a thread, by _run() or the given function.

        The generator is closed with this one.
        """
        run, turn = run or self._run, threading.Lock()

        def advance() -> Value | object:
            with turn:
                return next(steps, _END)

        def close() -> None:
            with turn:  # a step whose caller was cancelled may still run
                steps.close()

        try:
            while (value := await run(advance)) is not _END:
                yield cast(Value, value)
        finally:
            with contextlib.suppress(ConfigurationError):  # the client is closed
                await self._run_to_its_end(close)


class ImagesInThreads(InThreads):
    """Base class of the asynchronous clients of images.

    Args:
        client: the synchronous client.
    """

    def __init__(self, client: SamTritonClient) -> None:
        super().__init__(client._transport)
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}{repr(self._client).removeprefix(type(self._client).__name__)}"

    @property
    def url(self) -> str:
        """The server's URL, with scheme and port."""
        return self._client.url

    @property
    def family(self) -> Family:
        """The SAM family of this client, which defines tensor names, coordinate frame and value ranges."""
        return self._client.family

    @property
    def image_embeddings(self) -> ImageEmbeddings | None:
        """The embeddings of the current image; see SAM2TritonClient.image_embeddings."""
        return self._client.image_embeddings

    @image_embeddings.setter
    def image_embeddings(self, embeddings: ImageEmbeddings) -> None:
        self._client.image_embeddings = embeddings

    async def _everything(
        self,
        image: ImageSource | ImageEmbeddings | None,
        progress: Callable[[Step], None] | None,
        parameters: Mapping[str, Any],
    ) -> FoundObjects:
        """Find all objects, see SAM2TritonClient.everything(). ``progress`` is called on the event loop."""
        to_search = await self._run(self._client._to_search, image, parameters)
        async with contextlib.aclosing(self.search_steps(*to_search)) as steps:
            async for step in steps:
                if isinstance(step, Found):
                    return await self._run(FoundObjects, step)
                if progress is not None:
                    progress(step)
        raise AssertionError("a search ends with what it found")

    def search_steps(
        self, image: ImageSource, parameters: Parameters, embeddings: ImageEmbeddings | None
    ) -> AsyncGenerator[Step | Found, None]:
        """Yield the steps of a search for all objects, and at the end the result.

        Closing the generator ends the search, and cancels its requests at Triton.

        Args:
            image: the image.
            parameters: the grid and the filters.
            embeddings: embeddings of the image, or its handle on the server; None: the image is encoded.
        """
        from .everything import search

        return self._each(search(self._client, image, parameters, embeddings))


async def shielded(call: Future[Value]) -> Value:
    """Wait for a call, which goes on if this coroutine is cancelled."""
    waiting = asyncio.wrap_future(call)
    waiting.add_done_callback(_retrieve)
    return await asyncio.shield(waiting)


def _close(threads: Threads, transport: BaseTransport) -> None:
    if not threads.is_inherited:  # else the calls and connections are those of the parent process
        threads.close()
        transport.close()


def _retrieve(call: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call whose caller was cancelled, because asyncio would log it."""
    if not call.cancelled():
        call.exception()
