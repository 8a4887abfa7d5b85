"""The asynchronous clients, which run the calls of a synchronous client in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ..errors import ConfigurationError
from ..families.base import Family, FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..inputs.prompts import PromptArray
from ..masks.cleanup import Cleanup
from ..masks.segment import Segment
from ..transport.base import BaseTransport
from ..transport.options import Busy
from ..transport.threads import Threads
from .spellings import also_spelled
from .sync import EmbeddingsPlace, SamTritonClient

if TYPE_CHECKING:
    from ..everything.parameters import Parameters
    from ..everything.search import Found, FoundObjects, SearchProgress
    from .concepts import FoundInstances
    from .server_models import ServerModels

Value = TypeVar("Value")
P = ParamSpec("P")
_END = object()


class InThreads:
    """Base class of the asynchronous clients.

    Args:
        transport: the synchronous client's transport, which is closed when this client is garbage-collected.
    """

    def __init__(self, transport: BaseTransport) -> None:
        self._threads = Threads()
        self._lasting: set[Future[Any]] = set()
        self._close = weakref.finalize(self, _close, self._threads, transport)

    def close(self) -> None:
        """Cancel all requests and close the connections. This blocks; inside an event loop, use aclose() instead."""
        self._end_waits()
        self._close()

    async def aclose(self) -> None:
        """Cancel all requests and close the connections."""
        self._end_waits()
        await asyncio.gather(*map(asyncio.wrap_future, list(self._lasting)), return_exceptions=True)
        await asyncio.to_thread(self.close)

    def _end_waits(self) -> None:
        """End the waits for frames of streams."""

    async def _run(self, call: Callable[P, Value], *arguments: P.args, **options: P.kwargs) -> Value:
        """Run a call. Cancelling this coroutine cancels the call on the wire."""
        return await asyncio.wrap_future(self._threads.submit(lambda: call(*arguments, **options)))

    async def _run_to_its_end(self, call: Callable[P, Value], *arguments: P.args, **options: P.kwargs) -> Value:
        """Run a call that continues if this coroutine is cancelled. aclose() waits for it."""
        return await shielded(self._start(lambda: call(*arguments, **options)))

    def _start(self, call: Callable[[], Value]) -> Future[Value]:
        """Start a call that aclose() waits for."""
        running = self._threads.submit(call)
        self._lasting.add(running)
        running.add_done_callback(self._lasting.discard)
        return running

    async def _each(
        self, steps: Generator[Value, None, None], run: Callable[..., Any] | None = None
    ) -> AsyncGenerator[Value, None]:
        """Iterate over a generator. Each step runs in a thread, by _run() or the given function.

        Closing this generator closes the other.
        """
        run, turn = run or self._run, threading.Lock()

        def advance() -> Value | object:
            with turn:
                return next(steps, _END)

        def close() -> None:
            with turn:  # a step may still run after its caller was cancelled
                steps.close()

        try:
            while (value := await run(advance)) is not _END:
                yield cast(Value, value)
        finally:
            with contextlib.suppress(ConfigurationError):  # the client is closed
                await ended(self._start(close))


class ImagesInThreads(InThreads):
    """Base class of the asynchronous image clients."""

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
        progress: Callable[[SearchProgress], None] | None,
        parameters: Mapping[str, Any],
    ) -> FoundObjects:
        """Find all objects, see SAM2TritonClient.everything(). ``progress`` is called on the event loop."""
        from ..everything.search import Found, FoundObjects
        from .everything import to_search

        steps = self.search_steps(*to_search(self._client._pair, image, self._client._embeddings, parameters))
        async with contextlib.aclosing(steps):
            async for step in steps:
                if isinstance(step, Found):
                    return await self._run(FoundObjects, step)
                if progress is not None:
                    progress(step)
        raise AssertionError("a search ends with what it found")

    def search_steps(
        self, image: ImageSource, parameters: Parameters, embeddings: ImageEmbeddings | None
    ) -> AsyncGenerator[SearchProgress | Found, None]:
        """Yield the steps of a search for all objects, and finally the result.

        Closing the generator ends the search, and cancels its requests at Triton. Without embeddings, the image is
        encoded.
        """
        return self._each(self._client.search_steps(image, parameters, embeddings))


class AsyncSamTritonClient(ImagesInThreads):
    """Segments images on a Triton server: the twin of SAM2TritonClient for asyncio.

    Any number of tasks may use one client, on any event loop: all calls run in threads. ``set_image`` sets the image
    for all of them; tasks that work on different images call ``encode`` and pass the result to
    ``segment(..., image=...)``. Cancelling a task cancels its request on the wire. This client sends every call; for
    mouse positions that arrive faster than masks, use SpeculativeSAM2Client.

    Examples:
        >>> async with AsyncSAM2TritonClient("grpc://localhost:8001") as client:
        ...     await client.set_image("image.jpg")
        ...     (segment,) = await client.segment(point_coords=[[512, 512]], point_labels=[1])
        ...     segment.to_png("mask.png")

    Arguments and errors are those of SAM2TritonClient.
    """

    @also_spelled(ConfigurationError, triton_url="url")
    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam2",
        *,
        model_name: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
        busy: Busy = "raise",
        embeddings: EmbeddingsPlace = "auto",
        transport: BaseTransport | None = None,
    ) -> None:
        client = SamTritonClient(
            url,
            model_type,
            model_name=model_name,
            timeout=timeout,
            retries=retries,
            headers=headers,
            ca_certs=ca_certs,
            busy=busy,
            embeddings=embeddings,
            transport=transport,
        )
        super().__init__(client)

    async def encode(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image without making it the current one. See SAM2TritonClient.encode().

        Raises:
            ImageError: the source is not a usable image.
            ServerError: see triton_sam.errors.
        """
        return await self._run(self._client.encode, image)

    async def encode_here(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image and return its tensors. See SAM2TritonClient.encode_here()."""
        return await self._run(self._client.encode_here, image)

    @also_spelled(image_path="image")
    async def set_image(self, image: ImageSource, image_size: int | None = None) -> ImageEmbeddings:
        """Encode an image and make it the current one, see encode(). After an error, the earlier image stays."""
        return await self._run(self._client.set_image, image, image_size)

    async def predict(
        self,
        point_coords: PromptArray = None,
        point_labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Predict low-resolution masks for P objects. Arguments, result and errors: see SAM2TritonClient.predict()."""
        arguments = (point_coords, point_labels, box, mask_input, multimask_output)
        return await self._run(self._client.predict, *arguments, image=image)

    async def segment(
        self,
        point_coords: PromptArray = None,
        point_labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
        logits: bool | None = None,
        cleanup: Cleanup | None = None,
    ) -> list[Segment]:
        """Predict full-size masks. Arguments, result and errors: see SAM2TritonClient.segment()."""
        arguments = (point_coords, point_labels, box, mask_input, multimask_output)
        return await self._run(self._client.segment, *arguments, image=image, logits=logits, cleanup=cleanup)

    async def everything(
        self,
        image: ImageSource | ImageEmbeddings | None = None,
        *,
        progress: Callable[[SearchProgress], None] | None = None,
        **parameters: Any,
    ) -> FoundObjects:
        """Segment all objects of an image by a grid of clicks, see SAM2TritonClient.everything().

        Cancelling the task ends the search, and cancels its request at Triton.
        """
        return await self._everything(image, progress, parameters)

    async def find(
        self,
        text: str | Sequence[str] | None = None,
        *,
        boxes: PromptArray = None,
        box_labels: PromptArray = None,
        image: ImageSource | ImageEmbeddings | None = None,
        example: ImageSource | ImageEmbeddings | None = None,
        **parameters: Any,
    ) -> FoundInstances:
        """Find every instance of concepts, see SAM2TritonClient.find(). Cancelling the task cancels its request."""
        return await self._run(
            self._client.find, text, boxes=boxes, box_labels=box_labels, image=image, example=example, **parameters
        )

    async def is_ready(self) -> bool:
        """Whether the server answers and has this client's encoder and decoder ready."""
        return await self._run(self._client.is_ready)

    async def models(self) -> ServerModels:
        """Return the models that the server has ready, see SAM2TritonClient.models()."""
        return await self._run(self._client.models)

    async def __aenter__(self) -> AsyncSamTritonClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


AsyncSAM2TritonClient = AsyncSamTritonClient
"""The same class under the more common name of its synchronous twin. It supports every family, not only SAM2."""


async def shielded(call: Future[Value]) -> Value:
    """Wait for a call, which continues if this coroutine is cancelled."""
    waiting = asyncio.wrap_future(call)
    waiting.add_done_callback(_retrieve)
    return await asyncio.shield(waiting)


async def ended(call: Future[Any]) -> bool:
    """Wait for a call as shielded() does, but return False if somebody else has cancelled it, and otherwise True."""
    waiting = asyncio.wrap_future(call)
    waiting.add_done_callback(_retrieve)
    await asyncio.wait([waiting])
    if waiting.cancelled():
        return False
    waiting.result()
    return True


def _close(threads: Threads, transport: BaseTransport) -> None:
    if not threads.is_inherited:  # otherwise the calls and connections belong to the parent process
        threads.close()
        transport.close()


def _retrieve(call: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call whose caller was cancelled; otherwise asyncio logs it."""
    if not call.cancelled():
        call.exception()
