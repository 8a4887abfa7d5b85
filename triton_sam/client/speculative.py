"""The asynchronous client for mouse positions that arrive faster than masks. It predicts only the newest position."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..inputs.prompts import PromptArray
from ..masks.cleanup import Cleanup
from ..masks.segment import Segment
from ..transport.base import BaseTransport, Tensors
from ..transport.options import Busy, check_number
from .aio import ImagesInThreads
from .clicks import Click, make_click
from .dispatcher import Dispatcher, Work
from .lanes import Job, Lanes
from .spellings import also_spelled, timeout_in_second_place
from .sync import EmbeddingsPlace, SamTritonClient

if TYPE_CHECKING:
    from ..everything.search import FoundObjects, SearchProgress
    from .concepts import FoundInstances

Result = tuple[FloatArray, FloatArray]
"""(masks, iou) as SAM2TritonClient.predict() returns them."""
Queued = tuple[str, "asyncio.Task[Result]"]
"""(request id, task) of one prediction."""


class SpeculativeSAM2Client(ImagesInThreads):
    """Predicts masks while the mouse moves. Only the newest position of each mouse matters.

    Each prediction belongs to a lane, for example one for each user or window; ``session_id`` is the name of the lane.
    A new prediction replaces the one that waits in its lane: the replaced prediction is never sent, and its task raises
    CancelledError. A prediction that was already sent continues, so that masks keep coming while the mouse moves. If
    you cancel it, it is cancelled on the wire, and the newest prediction is sent at once. Lanes take turns.

    All calls run in threads, so that you can use a client from any thread and any event loop. A forked child process
    does not have these threads: create a new client there, because the parent's raises ConfigurationError.

    Examples:
        >>> async with SpeculativeSAM2Client("localhost:8000") as client:
        ...     await client.set_image_async("image.jpg")
        ...     for x, y in mouse_positions:
        ...         request_id, task = await client.predict_async([[x, y]], [1], session_id="user")
        ...     client.cancel_session_requests("user")  # the mouse rests: keep only the newest
        ...     masks, iou = await task

    Args:
        url: see SAM2TritonClient. Prefer gRPC: Triton then drops a cancelled request from its queue. Over HTTP, Triton
            notices a cancellation only while it still reads the request.
        timeout: seconds that one call may take after it was sent.
        max_in_flight: maximum number of requests of one lane on the wire.
        max_in_flight_total: maximum number of requests of all lanes on the wire.
        cancel_running: whether a new position also cancels a request on the wire if its lane has reached
            ``max_in_flight``. Use this if only the last mask counts: with ``max_in_flight=1``, no mask appears while
            positions arrive faster than masks. It needs gRPC: over HTTP, Triton still computes every request that it
            has read.

    The other arguments and the errors are those of SAM2TritonClient.
    """

    @timeout_in_second_place
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
        max_in_flight: int = 1,
        max_in_flight_total: int = 8,
        cancel_running: bool = False,
        embeddings: EmbeddingsPlace = "auto",
        transport: BaseTransport | None = None,
    ) -> None:
        check_number("max_in_flight", max_in_flight, whole=True)
        check_number("max_in_flight_total", max_in_flight_total, whole=True)
        if max_in_flight < 1 or max_in_flight_total < 1:
            raise ConfigurationError("max_in_flight and max_in_flight_total must be at least 1")
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
        lanes = Lanes[Work[Any]](per_lane=max_in_flight, total=max_in_flight_total, cancel_running=cancel_running)
        self._dispatcher = Dispatcher(self._threads, lanes)

    def close(self) -> None:
        """Cancel all requests and close the connections. This blocks; inside an event loop, use aclose() instead."""
        self._dispatcher.close()
        super().close()

    @property
    def requests_sent(self) -> int:
        """Number of predictions sent to the server so far. Replaced predictions that were never sent do not count."""
        return self._dispatcher.sent

    def is_ready(self) -> bool:
        """Whether the server answers and has this client's encoder and decoder ready. It blocks the event loop."""
        self._threads.check()
        return self._client.is_ready()

    @also_spelled(image_path="image")
    def set_image(self, image: ImageSource, image_size: int | None = None) -> ImageEmbeddings:
        """Encode an image and make it the current one of all lanes. After an error, the earlier image stays current.

        This method blocks. Inside an event loop, use set_image_async() instead. Arguments, result and errors are those
        of SAM2TritonClient.set_image().
        """
        self._threads.check()
        return self._client.set_image(image, image_size)

    @also_spelled(image_path="image")
    async def set_image_async(self, image: ImageSource, image_size: int | None = None) -> ImageEmbeddings:
        """Encode an image and make it the current one of all lanes. See set_image()."""
        return await self._run(self._client.set_image, image, image_size)

    async def encode_async(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image without making it the current one. Pass the result to ``predict_async(..., image=...)``.

        Cancelling a task that runs this method also cancels the call to the server.

        Raises:
            ImageError: the source is not a usable image.
            ServerError: see triton_sam.errors.
        """
        return await self._run(self._client.encode, image)

    async def encode_here_async(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image and return its tensors. See SAM2TritonClient.encode_here()."""
        return await self._run(self._client.encode_here, image)

    @also_spelled(point_coords="coords", point_labels="labels")
    async def segment_async(
        self,
        coords: PromptArray = None,
        labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
        logits: bool | None = None,
        cleanup: Cleanup | None = None,
    ) -> list[Segment]:
        """Predict full-size masks outside of all lanes, so that no other prediction replaces this one.

        Cancelling the task cancels the call. Arguments and errors are those of predict_async(), and the result,
        ``logits`` and ``cleanup`` are those of SAM2TritonClient.segment().
        """
        logits = self._client._sends_logits if logits is None else logits
        arguments = (coords, labels, box, mask_input, multimask_output, logits, cleanup)
        click, outputs = await self._sent(image, *arguments)
        return await asyncio.to_thread(click.segments, outputs)

    async def segment_each_async(
        self,
        coords: PromptArray = None,
        labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
        cleanup: Cleanup | None = None,
    ) -> Iterator[Segment]:
        """Predict as segment_async() does, but compute each full-size mask on demand.

        Only one mask has to be in memory. Each step is slow for a large image: run it in a thread.
        """
        click, outputs = await self._sent(
            image, coords, labels, box, mask_input, multimask_output, logits=True, cleanup=cleanup
        )
        return click.each_segment(outputs)

    async def _sent(self, image: ImageEmbeddings | None, *arguments: Any, **options: Any) -> tuple[Click, Tensors]:
        """Send a click outside of all lanes; return it with its answer."""
        client = self._client
        click = make_click(client._pair, client._embeddings, image, *arguments, **options)
        work = Work(lambda: client._carry(click.ask()))
        self._dispatcher.submit([work], None)
        self._dispatcher.start()
        return click, await asyncio.wrap_future(work.future)

    async def everything_async(
        self,
        image: ImageSource | ImageEmbeddings | None = None,
        *,
        progress: Callable[[SearchProgress], None] | None = None,
        **parameters: Any,
    ) -> FoundObjects:
        """Segment all objects, see SAM2TritonClient.everything(). Cancelling the task cancels the request at Triton."""
        return await self._everything(image, progress, parameters)

    async def find_async(
        self,
        text: str | Sequence[str] | None = None,
        *,
        boxes: PromptArray = None,
        box_labels: PromptArray = None,
        image: ImageSource | ImageEmbeddings | None = None,
        example: ImageSource | ImageEmbeddings | None = None,
        **parameters: Any,
    ) -> FoundInstances:
        """Find every instance of concepts, see SAM2TritonClient.find()."""
        return await self._run(
            self._client.find, text, boxes=boxes, box_labels=box_labels, image=image, example=example, **parameters
        )

    @also_spelled(point_coords="coords", point_labels="labels")
    async def predict_async(
        self,
        coords: PromptArray = None,
        labels: PromptArray = None,
        session_id: str | None = None,
        request_id: str | None = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> Queued:
        """Queue a prediction, and return at once. It replaces the prediction that waits in its lane.

        Like any asyncio task, it starts when the caller next awaits something.

        Args:
            coords: (N,2) points of one object, (P,N,2) of several, or P lists of different length; x, y in pixels of
                the original image. ``point_coords`` is a second spelling.
            labels: (N,) or (P,N): 1 foreground, 0 background, -2 no point. None: all foreground. ``point_labels`` is a
                second spelling.
            session_id: name of the lane. None: the prediction belongs to no lane and is never replaced.
            request_id: an id for cancel_request(); None: the client generates one.
            box: (4,) or (P,4) as x1,y1,x2,y2 in pixels of the original image.
            mask_input: logits of an earlier prediction that this one refines.
            multimask_output: whether to return three candidate masks for each object instead of one.
            image: embeddings of an image other than the current one.

        Returns:
            (request_id, task). The result of the task is (masks, iou): the logits and predicted IoU as
            SAM2TritonClient.predict() returns them. The task raises CancelledError if the request was replaced or
            cancelled, and a ServerError if it failed. ``task.cancel()`` cancels the request.

        Raises:
            NoImageError: no image has been set.
            PromptError: a prompt has a wrong shape, type or range.
            InputError: an earlier request with this id has not ended yet.
        """
        work = self._work(image, coords, labels, box, mask_input, multimask_output)
        (job,) = self._dispatcher.submit([work], session_id, request_id)
        return self._queued(job)

    @also_spelled(point_coords="coords", point_labels="labels")
    def predict_sync(
        self,
        coords: PromptArray = None,
        labels: PromptArray = None,
        session_id: str | None = None,
        request_id: str | None = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
        *,
        image: ImageEmbeddings | None = None,
    ) -> Result:
        """Predict and wait for the result, (masks, iou). Arguments and errors are those of predict_async().

        Raises:
            concurrent.futures.CancelledError: another thread replaced or cancelled the request.
        """
        work = self._work(image, coords, labels, box, mask_input, multimask_output)
        self._dispatcher.submit([work], session_id, request_id)
        self._dispatcher.start()
        try:
            return work.future.result()
        except BaseException:  # for example Ctrl-C: no caller waits for the result any more
            work.future.cancel()
            raise

    def cancel_request(self, request_id: str) -> bool:
        """Cancel one request, even on the wire. Return False if it is unknown or has ended."""
        return self._dispatcher.change(lambda lanes: lanes.cancel(request_id)) > 0

    def cancel_session_requests(self, session_id: str, keep_latest: bool = True) -> int:
        """Cancel the requests of a lane, even those on the wire. The newest one is then sent at once.

        Args:
            session_id: name of the lane; an unknown lane is treated as empty.
            keep_latest: whether to keep the newest request.

        Returns:
            The number of requests that this call cancelled. Requests that were replaced earlier do not count.
        """
        return self._dispatcher.change(lambda lanes: lanes.cancel_lane(session_id, keep_latest=keep_latest))

    def get_session_status(self, session_id: str) -> dict[str, int]:
        """Return the number of a lane's requests that are "pending", "running", "completed", "cancelled" and "failed".

        All counts are zero for an unknown lane. The client keeps the counts of the 256 most recently used idle lanes.
        """
        return self._dispatcher.counts(session_id)

    def cleanup_session(self, session_id: str) -> int:
        """Cancel all requests of a lane and remove the lane; return the number of cancelled requests."""
        return self._dispatcher.change(lambda lanes: lanes.forget(session_id))

    async def __aenter__(self) -> SpeculativeSAM2Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> SpeculativeSAM2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, image: ImageEmbeddings | None, *arguments: Any) -> Work[Result]:
        """Check the arguments of a prediction, and return its work."""
        client = self._client
        click = make_click(client._pair, client._embeddings, image, *arguments)
        return Work(lambda: click.pair.low_res(click.read(client._carry(click.ask()))))

    def _queue(self, works: Sequence[Work[Result]], session_id: str) -> list[Queued]:
        return [self._queued(job) for job in self._dispatcher.submit(works, session_id)]

    def _queued(self, job: Job[Work[Result]]) -> Queued:
        loop = asyncio.get_running_loop()
        # Start when the caller next awaits something, so that only the last of several queued positions is sent.
        loop.call_soon(self._dispatcher.start)
        task = loop.create_task(self._answer(job.work.future), name=job.id)
        task.add_done_callback(partial(_settle, job.work.future))
        return job.id, task

    async def _answer(self, future: concurrent.futures.Future[Result]) -> Result:
        # This is a method so that the task keeps its client alive.
        return await asyncio.wrap_future(future)


def _settle(future: concurrent.futures.Future[Any], task: asyncio.Task[Any]) -> None:
    """Cancel a future whose task was cancelled. Otherwise retrieve its error: asyncio logs errors never retrieved."""
    if task.cancelled():
        future.cancel()
    else:
        task.exception()
