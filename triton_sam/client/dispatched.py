"""The parts that the asynchronous clients of images share: their I/O runs on the loop of a dispatcher."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..concepts.query import check_parameters
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..transport.base import AsyncBaseTransport, Tensors
from ..wire.pair import Request
from .base import ClientCore
from .clicks import Click
from .concepts import FoundInstances, current
from .dispatcher import Dispatcher, Work
from .drivers import RunStep, carry, carry_async
from .everything_stream import AsyncPartStream
from .flows import Flow
from .lanes import Lanes

if TYPE_CHECKING:
    from ..everything.search import Coming, FoundObjects
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

    async def _click_async(self, image: ImageEmbeddings | None, *arguments: Any, **options: Any) -> Click:
        """Return a click that is ready to be sent, see _click(). If preparing may wait for the server, use a thread."""
        click = self._click(image, *arguments, **options)
        if click.waits:
            await asyncio.to_thread(click.prepare)
        else:
            click.prepare()
        return click

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
        return await self._carry(self._concepts.find(query, chosen, example, self._encode_here))

    async def _search(
        self, calls: AsyncSearchClient, image: Any, progress: Progress | None, given: Mapping[str, Any]
    ) -> FoundObjects:
        """Find all objects, see SAM2TritonClient.everything(); ``calls`` are those of this client."""
        from ..everything.parameters import parameters_of
        from ..everything.search import FoundObjects
        from .everything import is_at_hand, to_search, told_everything_async

        chosen = parameters_of(self.family.name, given)
        source, embeddings = await asyncio.to_thread(to_search, image, self._embeddings, chosen)
        if embeddings is not None:
            self._pair.check_origin(embeddings)
        found = None
        if progress is None and is_at_hand(embeddings):
            found = await self._carry(self._jobs.find_everything(source, chosen))
        found = found or await told_everything_async(calls, source, chosen, progress, embeddings)
        return await asyncio.to_thread(FoundObjects, found)

    def _stream_parts(self, coming: Coming) -> AsyncPartStream:
        """Let the server stream the next parts of a search, if it can; see SAM2TritonClient.stream_parts()."""
        request = self._jobs.stream(coming)
        if request is None or not self._dispatcher.can_stream:
            return AsyncPartStream(self._jobs)
        return AsyncPartStream(self._jobs, partial(self._dispatcher.stream, request))

    def _encode_here(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image and wait for its embeddings, for an image that the server keeps."""
        return carry(self._flows.encode_here(image), self._sender(None))

    def _sender(self, end: float | None) -> Callable[[Request], Tensors]:
        """Return a function that sends a request and waits for the answer until ``end``, see Dispatcher.infer()."""
        return lambda request: self._dispatcher.infer(request, end).result()
