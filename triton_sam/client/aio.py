"""The asynchronous client: the calls of the synchronous one, to be awaited."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..errors import ConfigurationError
from ..everything.search import FoundObjects, Step
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource
from ..inputs.prompts import PromptArray
from ..masks.cleanup import Cleanup
from ..masks.segment import Segment
from ..transport.base import BaseTransport
from ..transport.options import Busy
from .base import EmbeddingsPlace
from .concepts import FoundInstances
from .in_threads import ImagesInThreads
from .spellings import also_spelled
from .sync import SamTritonClient


class AsyncSamTritonClient(ImagesInThreads):
    """Segments images on a Triton server: the twin of SAM2TritonClient for asyncio.

    Any number of tasks may use one client, on any event loop: all calls run in threads. ``set_image`` sets the image
    for all of them; tasks that work on different images call ``encode`` and pass the result to
    ``segment(..., image=...)``. Cancelling a task cancels its request on the wire. For positions of a mouse that come
    faster than masks, use SpeculativeSAM2Client: here, every call is sent and answered.

    Examples:
        >>> async with AsyncSAM2TritonClient("grpc://localhost:8001") as client:
        ...     await client.set_image("image.jpg")
        ...     (segment,) = await client.segment(point_coords=[[512, 512]], point_labels=[1])
        ...     segment.to_png("mask.png")

    Args:
        url: see SAM2TritonClient.
        model_type: see SAM2TritonClient.
        model_name: see SAM2TritonClient.
        timeout: seconds that one call may take.
        retries: how often a call is repeated if the connection cannot be made or breaks.
        headers: HTTP headers or gRPC metadata for every call.
        ca_certs: PEM file with the certificates to trust, for https and grpcs.
        busy: see SAM2TritonClient.
        embeddings: where they are kept, see SAM2TritonClient.
        transport: sends the requests instead of a connection to ``url``, see SAM2TritonClient.

    Raises:
        ConfigurationError: an argument is invalid. The constructor opens no connection.
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
    async def set_image(self, image: ImageSource) -> ImageEmbeddings:
        """Encode an image and make it the current one, see encode(). After an error, the earlier image stays."""
        return await self._run(self._client.set_image, image)

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
        logits: bool = True,
        cleanup: Cleanup | None = None,
    ) -> list[Segment]:
        """Predict full-size masks. Arguments, result and errors: see SAM2TritonClient.segment()."""
        arguments = (point_coords, point_labels, box, mask_input, multimask_output)
        return await self._run(self._client.segment, *arguments, image=image, logits=logits, cleanup=cleanup)

    async def everything(
        self,
        image: ImageSource | ImageEmbeddings | None = None,
        *,
        progress: Callable[[Step], None] | None = None,
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
        """Whether the server answers and has the encoder and the decoder of this client ready."""
        return await self._run(self._client.is_ready)

    async def __aenter__(self) -> AsyncSamTritonClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


AsyncSAM2TritonClient = AsyncSamTritonClient
"""The same class under the older, more common name of its twin. It supports every family, not only SAM2."""
