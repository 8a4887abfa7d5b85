"""Clicks whose embeddings lie in system shared memory: as fast as it gets with a decoder model alone, on one host."""

from __future__ import annotations

import secrets
from types import TracebackType

from ..inputs.embeddings import ImageEmbeddings
from ..transport.shared_memory import SharedMemoryTransport
from ..transport.url import parse_url
from ..wire.pair import Prediction
from .target import Point, Target


class SharedMemoryClicks:
    """Sends clicks to the decoder; the embeddings are put into shared memory once.

    Args:
        target: the server, on this machine.
        protocol: http or grpc.
        embeddings: of the image, on this side.

    Raises:
        ServerError: the server does not take shared memory, or is on another machine; or this one has none left.
    """

    def __init__(self, target: Target, protocol: str, embeddings: ImageEmbeddings) -> None:
        self._pair, self._embeddings = target.pair, embeddings
        self._transport = SharedMemoryTransport(
            parse_url(target.urls[protocol]),
            target.pair.family.embeddings(embeddings),
            region=f"triton_sam_benchmark_{secrets.token_hex(4)}",
            timeout=target.timeout,
            **target.access,
        )

    def click(self, point: Point) -> Prediction:
        """Return the masks of a click.

        Raises:
            ServerError: see triton_sam.errors.
        """
        prompts = self._pair.prompts(self._embeddings, [point], None, None, None)
        request = self._pair.decode(self._embeddings, prompts, False)
        outputs = self._transport.infer(request.model, request.inputs, request.outputs)
        return self._pair.read_masks(outputs, prompts, False)

    def __enter__(self) -> SharedMemoryClicks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()
