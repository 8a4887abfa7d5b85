"""The parts that the asynchronous clients of images share: their I/O runs on the loop of a dispatcher."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..concepts.query import check_parameters
from ..transport.base import AsyncBaseTransport, Tensors
from ..wire.pair import Request
from .base import ClientCore
from .concepts import FoundInstances, current
from .dispatcher import Dispatcher, Work
from .drivers import RunStep, carry_async
from .flows import Flow
from .lanes import Lanes

if TYPE_CHECKING:
    from ..everything.search import FoundObjects
    from .everything import AsyncSearchClient, Progress

Value = TypeVar("Value")


class DispatchedCore(ClientCore):
    """Base class of the asynchronous clients. Their constructors end with _open_dispatcher()."""

    _dispatcher: Dispatcher
    _timeout: float

    def _open_dispatcher(self, transport: AsyncBaseTransport, lanes: Lanes[Work[Any]], timeout: float) -> None:
        """Let a dispatcher send the requests, and close it when nobody refers to this client any more.

        Args:
            transport: sends the requests; it is used on the I/O loop alone.
            lanes: the order of the predictions that belong to lanes.
            timeout: seconds that one call may take.
        """
        self._timeout = timeout
        self._dispatcher = Dispatcher(transport, lanes)
        weakref.finalize(self, self._dispatcher.close_when_forgotten)

    def close(self) -> None:
        """Cancel all requests and close the connections. This blocks; inside an event loop, use aclose() instead."""
        self._dispatcher.close().result()

    async def aclose(self) -> None:
        """Cancel all requests and close the connections."""
        await asyncio.shield(asyncio.wrap_future(self._dispatcher.close()))

    async def _carry(self, flow: Flow[Value], run_step: RunStep = asyncio.to_thread) -> Value:
        """Run a flow outside of all lanes. By default, its steps run in threads: preparing an image takes time."""
        end = time.monotonic() + self._timeout

        async def send(request: Request) -> Tensors:
            return await asyncio.wrap_future(self._dispatcher.infer(request, end))

        return await carry_async(flow, send, run_step)

    async def _find(
        self, concept: tuple[Any, Any, Any], image: Any, example: Any, parameters: Mapping[str, Any]
    ) -> FoundInstances:
        """Find instances of a concept (text, boxes, labels of the boxes), see SAM2TritonClient.find()."""
        query, chosen = check_parameters(*concept, parameters), current(image, self._embeddings)
        return await self._carry(self._concepts.find(query, chosen, example))

    async def _search(
        self, calls: AsyncSearchClient, image: Any, progress: Progress | None, given: Mapping[str, Any]
    ) -> FoundObjects:
        """Find all objects, see SAM2TritonClient.everything(); ``calls`` are those of this client."""
        from ..everything.parameters import parameters_of
        from ..everything.search import FoundObjects
        from .everything import to_search, told_everything_async

        chosen = parameters_of(self.family.name, given)
        source, embeddings = await asyncio.to_thread(to_search, image, self._embeddings, chosen)
        if embeddings is not None:
            self._pair.check_origin(embeddings)
        found = await told_everything_async(calls, source, chosen, progress, embeddings)
        return await asyncio.to_thread(FoundObjects, found)

    def _sender(self, end: float | None) -> Callable[[Request], Tensors]:
        """Return a function that sends a request and waits for the answer until ``end``, see Dispatcher.infer()."""
        return lambda request: self._dispatcher.infer(request, end).result()
