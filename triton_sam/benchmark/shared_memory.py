"""Clicks whose embeddings lie in system shared memory: as fast as it gets with a decoder model alone, on one host."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import ServerError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..transport.triton import Transport, infer_input, read_outputs
from ..transport.url import parse_url
from ..wire.pair import Request
from .target import Point, Target


class SharedMemoryClicks:
    """Sends clicks to the decoder; the embeddings are put into shared memory once.

    Args:
        target: the server, on this machine.
        protocol: http or grpc.
        embeddings: of the picture, on this side.

    Raises:
        ServerError: the server does not take shared memory, or is on another machine; or this one has none left.
    """

    def __init__(self, target: Target, protocol: str, embeddings: ImageEmbeddings) -> None:
        self._pair, self._embeddings = target.pair, embeddings
        self._held = {name: np.ascontiguousarray(a) for name, a in target.pair.family.embeddings(embeddings).items()}
        self._name = f"triton_sam_benchmark_{secrets.token_hex(4)}"
        self._server = _Server(parse_url(target.urls[protocol]), timeout=target.timeout, **target.access)
        with contextlib.ExitStack() as stack:
            stack.callback(self._server.close)
            size = stack.enter_context(_region(self._name, list(self._held.values())))
            self._server.register(self._name, size)
            stack.callback(self._server.unregister, self._name)
            self._stack = stack.pop_all()

    def click(self, point: Point) -> Any:
        """Return the masks of a click.

        Raises:
            ServerError: see triton_sam.errors.
        """
        prompts = self._pair.prompts(self._embeddings, [point], None, None, None)
        request = self._pair.decode(self._embeddings, prompts, False)
        return self._pair.read_masks(self._server.infer_held(request, self._name, self._held), prompts, False)

    def __enter__(self) -> SharedMemoryClicks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class _Server(Transport):
    """A transport that also knows regions of shared memory."""

    def register(self, region: str, size: int) -> None:
        """Tell the server of a region."""

        def call(client: Any) -> None:
            client.register_system_shared_memory(region, f"/{region}", size, **self._metadata())

        self._call(call, None, retries=0)

    def unregister(self, region: str) -> None:
        """Let the server forget a region; it may be gone itself."""
        with contextlib.suppress(ServerError):
            self._call(
                lambda client: client.unregister_system_shared_memory(region, **self._metadata()), None, retries=0
            )

    def infer_held(self, request: Request, region: str, held: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Run one inference as infer() does; the inputs in ``held`` lie in the region, in their order."""
        given, offset = [], 0
        for name, array in request.inputs.items():
            if name in held:
                tensor = self._module.InferInput(name, list(array.shape), "FP32")
                tensor.set_shared_memory(region, array.nbytes, offset)
                offset += array.nbytes
            else:
                tensor = infer_input(self._module, name, array)
            given.append(tensor)
        wanted = [self._module.InferRequestedOutput(name) for name in request.outputs]

        def call(client: Any) -> dict[str, Any]:
            infer = partial(self._infer_in_time, client) if self.url.is_grpc else client.infer
            answer = infer(request.model, given, outputs=wanted, **self._metadata())
            return read_outputs(answer, request.model, request.outputs)

        return self._call(call, request.model)


@contextlib.contextmanager
def _region(name: str, arrays: list[FloatArray]) -> Iterator[int]:
    """Keep arrays in a region of shared memory, one behind the other; yield its size."""
    import tritonclient.utils.shared_memory as regions

    size = sum(array.nbytes for array in arrays)
    region = None
    try:
        region = regions.create_shared_memory_region(name, f"/{name}", size)
        regions.set_shared_memory_region(region, arrays)
        yield size
    except regions.SharedMemoryException as error:
        raise ServerError(f"no {size / 1e6:.0f} MB of shared memory on this machine: {error}") from error
    finally:
        if region is not None:
            with contextlib.suppress(Exception):  # another program has removed it
                regions.destroy_shared_memory_region(region)
