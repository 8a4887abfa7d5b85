"""The asynchronous client for positions that come faster than masks: the newest wins, the rest is not computed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from ..errors import ConfigurationError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..masks.segment import Segment
from ..transport.aio import AsyncTransport
from ..transport.base import AsyncBaseTransport, Tensors
from ..wire.pair import Request
from .base import ClientCore, EmbeddingsPlace
from .clicks import Click
from .dispatcher import Dispatcher, Work
from .drivers import carry, carry_async
from .flows import ask, predict
from .lanes import Job, Lanes

Result = tuple[FloatArray, FloatArray]
"""(masks, iou) as SAM2TritonClient.predict() returns them."""
Queued = tuple[str, "asyncio.Task[Result]"]
"""(request id, task) of one prediction."""


class SpeculativeSAM2Client(ClientCore):
    """Predicts masks while the mouse moves: of each mouse, only the newest position matters.

    A prediction belongs to a lane, which ``session_id`` names: say, a user or a window. Within it a new one replaces
    the one that waits, which is then never sent; its task ends in CancelledError. One that is on its way to the server
    goes on, so that masks keep coming while positions do, until you cancel it: then it is cancelled on the wire and the
    newest one goes at once. Lanes take turns.

    All I/O runs in one thread of its own: use a client from any thread and any event loop.

    Examples:
        >>> async with SpeculativeSAM2Client("localhost:8000") as client:
        ...     await client.set_image_async("image.jpg")
        ...     for x, y in mouse_positions:
        ...         request_id, task = await client.predict_async([[x, y]], [1], session_id="user")
        ...     client.cancel_session_requests("user")  # the mouse rests: all but the newest
        ...     masks, iou = await task

    Args:
        url: ``host:port`` (HTTP), ``http://``, ``https://``, ``grpc://`` or ``grpcs://``. None: the environment
            variable TRITON_URL, else localhost:8000. gRPC is the better choice here: a cancelled request that waits
            in Triton is dropped there. Over HTTP Triton notices it only while it still reads the request.
        model_type: SAM family: "sam1", "sam2" or "sam3". All behave alike.
        model_name: a variant beside the default one, see SAM2TritonClient.
        timeout: seconds that one call may take, from the moment when it is sent.
        retries: how often a call is repeated when the connection could not be made or broke.
        headers: sent with every call.
        ca_certs: PEM file with certificates to trust, for https and grpcs.
        max_in_flight: requests of one lane on the wire at a time.
        max_in_flight_total: requests of all lanes on the wire at a time.
        cancel_running: True: a new position also cancels what its lane has on the wire, when all places are taken.
            Good where only the last mask counts: with ``max_in_flight=1`` none appears while positions come faster than
            masks. For gRPC: over HTTP, Triton computes what it has read, wanted or not.
        embeddings: where they are kept, see SAM2TritonClient.
        transport: carries the requests in place of a connection to ``url``, as in SAM2TritonClient; it is used on the
            client's own event loop alone. `triton_sam.transport.AsyncBaseTransport` says what it has to offer.

    Raises:
        ConfigurationError: an argument that cannot work. No connection is made yet.
    """

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
        max_in_flight: int = 1,
        max_in_flight_total: int = 8,
        cancel_running: bool = False,
        embeddings: EmbeddingsPlace = "auto",
        transport: AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, model_type, model_name, embeddings=embeddings)
        if max_in_flight < 1 or max_in_flight_total < 1:
            raise ConfigurationError("max_in_flight and max_in_flight_total must be at least 1")
        self._timeout = timeout
        if transport is None:
            transport = AsyncTransport(
                self._server,
                timeout=timeout,
                retries=retries,
                headers=headers,
                ca_certs=ca_certs,
                connections=max_in_flight_total + 1,  # and one for the encoder
            )
        lanes: Lanes[Work[Any]] = Lanes(
            per_lane=max_in_flight, total=max_in_flight_total, cancel_running=cancel_running
        )
        self._dispatcher = Dispatcher(transport, lanes)
        weakref.finalize(self, self._dispatcher.close_when_forgotten)

    @property
    def requests_sent(self) -> int:
        """How many predictions have gone to the server so far; the others were replaced or cancelled before."""
        return self._dispatcher.sent

    def set_image(self, image: ImageSource) -> None:
        """Encode an image and make it the current one of all lanes; after an error the earlier image stays.

        Blocks, also inside an event loop: there use set_image_async().

        Args:
            image: path, encoded bytes, Pillow image or uint8 RGB array (H,W,3).

        Raises:
            ImageError: not a usable image.
            ServerError: see triton_sam.errors.
        """
        send = self._sender(time.monotonic() + self._timeout)
        self._embeddings = carry(self._flows.encode(image, self._encode_here), send)

    async def set_image_async(self, image: ImageSource) -> None:
        """Encode an image and make it the current one of all lanes. See set_image()."""
        self._embeddings = await self.encode_async(image)

    async def encode_async(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image without making it the current one; hand the result to ``predict_async(..., image=...)``.

        A task that runs this may be cancelled: the call to the server is cancelled with it.

        Raises:
            ImageError: not a usable image.
            ServerError: see triton_sam.errors.
        """
        end = time.monotonic() + self._timeout

        async def send(request: Request) -> Tensors:
            return await asyncio.wrap_future(self._dispatcher.infer(request, end))

        # In a thread, since a step may have to prepare an image, which takes its time.
        return await carry_async(self._flows.encode(image, self._encode_here), send, asyncio.to_thread)

    async def segment_async(
        self,
        coords: Any = None,
        labels: Any = None,
        box: Any = None,
        mask_input: Any = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> list[Segment]:
        """Predict full-size masks; it stands alone, and nothing replaces it. Cancelling the task cancels the call.

        Arguments and errors as predict_async(); the result is that of SAM2TritonClient.segment().
        """
        click = await self._click_async(image, coords, labels, box, mask_input, multimask_output)
        work = Work(ask(click))
        self._dispatcher.submit([work], None)
        self._dispatcher.start()
        outputs = await asyncio.wrap_future(work.future)
        return await asyncio.to_thread(click.segments, outputs)

    async def predict_async(
        self,
        coords: Any = None,
        labels: Any = None,
        session_id: str | None = None,
        request_id: str | None = None,
        box: Any = None,
        mask_input: Any = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> Queued:
        """Queue a prediction; it replaces the one of its lane that waits. Returns at once.

        Like any asyncio task it starts when the caller next waits for something.

        Args:
            coords: (N,2) points of one object, (P,N,2) of several, or P lists of different length; x, y in pixels of
                the original image.
            labels: (N,) or (P,N): 1 foreground, 0 background, -2 no point. None: all foreground.
            session_id: lane of which this is the newest position. None: it stands alone and nothing replaces it.
            request_id: a name for cancel_request(); None: one is made up.
            box: (4,) or (P,4) as x1,y1,x2,y2 in pixels of the original image.
            mask_input: logits of an earlier prediction, to refine it.
            multimask_output: three candidates an object instead of one.
            image: embeddings of another image than the current one.

        Returns:
            (request_id, task). The task ends in (masks, iou), the logits and predicted IoU that
            SAM2TritonClient.predict() returns; in CancelledError when the request was replaced or cancelled; or in a
            ServerError. ``task.cancel()`` cancels the request.

        Raises:
            NoImageError: no image has been set.
            PromptError: a prompt of the wrong shape, type or range.
            InputError: a request of that id has not ended yet.
        """
        click = await self._click_async(image, coords, labels, box, mask_input, multimask_output)
        (job,) = self._dispatcher.submit([Work(predict(click))], session_id, request_id)
        return self._queued(job)

    def predict_sync(
        self,
        coords: Any = None,
        labels: Any = None,
        session_id: str | None = None,
        request_id: str | None = None,
        box: Any = None,
        mask_input: Any = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> Result:
        """Predict and wait; arguments, result and errors as predict_async().

        Raises:
            concurrent.futures.CancelledError: another thread replaced or cancelled the request.
        """
        work = Work(predict(self._prepared_click(image, coords, labels, box, mask_input, multimask_output)))
        self._dispatcher.submit([work], session_id, request_id)
        self._dispatcher.start()
        try:
            return work.future.result()
        except BaseException:  # Ctrl-C: nobody waits any more
            work.future.cancel()
            raise

    def cancel_request(self, request_id: str) -> bool:
        """Cancel one request, on the wire if it is there; False when there is none or it has ended."""
        return self._dispatcher.change(lambda lanes: lanes.cancel(request_id)) > 0

    def cancel_session_requests(self, session_id: str, keep_latest: bool = True) -> int:
        """Cancel the requests of a lane, on the wire if they are there; the newest then goes at once.

        Args:
            session_id: the lane; an unknown one has no requests.
            keep_latest: spare the newest, so that its mask is still answered.

        Returns:
            How many requests were cancelled. Those replaced before are not among them.
        """
        return self._dispatcher.change(lambda lanes: lanes.cancel_lane(session_id, keep_latest=keep_latest))

    def get_session_status(self, session_id: str) -> dict[str, int]:
        """Return how many of a lane's requests are "pending", "running", "completed", "cancelled" and "failed".

        All zero for an unknown lane. Of lanes without requests the 256 that were used last are remembered.
        """
        return self._dispatcher.counts(session_id)

    def cleanup_session(self, session_id: str) -> int:
        """Cancel all requests of a lane and forget it; return how many were cancelled."""
        return self._dispatcher.change(lambda lanes: lanes.forget(session_id))

    def close(self) -> None:
        """Cancel all requests and close the connections. Blocks; inside an event loop use aclose()."""
        self._dispatcher.close().result()

    async def aclose(self) -> None:
        """Cancel all requests and close the connections."""
        await asyncio.shield(asyncio.wrap_future(self._dispatcher.close()))

    async def __aenter__(self) -> SpeculativeSAM2Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> SpeculativeSAM2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _click_async(self, image: ImageEmbeddings | None, *arguments: Any) -> Click:
        """Return a click that can be sent, see _click(); one that waits for the server is prepared in a thread."""
        click = self._click(image, *arguments)
        if click.waits:
            await asyncio.to_thread(click.prepare)
        else:
            click.prepare()
        return click

    def _encode_here(self, content: bytes) -> ImageEmbeddings:
        return carry(self._flows.encode_here(content), self._sender(None))

    def _sender(self, end: float | None) -> Callable[[Request], Tensors]:
        """Return what sends a request and waits for the answer, until ``end`` as Dispatcher.infer() has it."""
        return lambda request: self._dispatcher.infer(request, end).result()

    def _queue(self, works: Sequence[Work[Result]], session_id: str) -> list[Queued]:
        return [self._queued(job) for job in self._dispatcher.submit(works, session_id)]

    def _queued(self, job: Job[Work[Result]]) -> Queued:
        loop = asyncio.get_running_loop()
        # Sent when the caller next gives up control: of positions that are queued at one stroke only the last is.
        loop.call_soon(self._dispatcher.start)
        task = loop.create_task(self._answer(job.work.future), name=job.id)
        task.add_done_callback(partial(_settle, job.work.future))
        return job.id, task

    async def _answer(self, future: concurrent.futures.Future[Result]) -> Result:
        # A method, so that a task keeps its client alive.
        return await asyncio.wrap_future(future)


def _settle(future: concurrent.futures.Future[Result], task: asyncio.Task[Result]) -> None:
    if task.cancelled():
        future.cancel()
    else:
        task.exception()  # seen: a position that nobody waits for may fail without a word
