"""Clicks whose embeddings lie in system shared memory: as fast as it gets with a decoder model alone, on one host."""

from __future__ import annotations

import contextlib
import importlib
import secrets
from types import TracebackType
from typing import Any

import numpy as np

from ..embeddings import ImageEmbeddings
from ..server_url import parse_url
from ..transport import infer_input, map_error, read_outputs
from .target import Point, Target


class SharedMemoryClicks:
    """Sends clicks to the decoder; the embeddings are put into shared memory once.

    Args:
        target: the server, on this machine.
        protocol: http or grpc.
        embeddings: of the picture, on this side.

    Raises:
        ServerError: the server does not take shared memory, or is on another machine.
    """

    def __init__(self, target: Target, protocol: str, embeddings: ImageEmbeddings) -> None:
        import tritonclient.utils.shared_memory as regions

        self._target, self._embeddings, self._regions = target, embeddings, regions
        self._url = parse_url(target.urls[protocol])
        self._module = importlib.import_module(f"tritonclient.{protocol}")
        options = {} if self._url.is_grpc else {"network_timeout": target.timeout, "connection_timeout": 10.0}
        self._client = self._module.InferenceServerClient(self._url.address, **options)
        self._held = {name: np.ascontiguousarray(a) for name, a in target.calls.family.embeddings(embeddings).items()}
        self._name = f"triton_sam_benchmark_{secrets.token_hex(4)}"
        size = sum(array.nbytes for array in self._held.values())
        self._region = regions.create_shared_memory_region(self._name, f"/{self._name}", size)
        try:
            regions.set_shared_memory_region(self._region, list(self._held.values()))
            self._client.register_system_shared_memory(self._name, f"/{self._name}", size)
        except Exception as error:
            regions.destroy_shared_memory_region(self._region)
            raise map_error(error, self._url) or error from error

    def click(self, point: Point) -> Any:
        """Return the masks of a click."""
        calls = self._target.calls
        prompts = calls.prompts(self._embeddings, [point], None, None, None)
        request = calls.decode(self._embeddings, prompts, False)
        inputs, offset = [], 0
        for name, array in request.inputs.items():
            if name in self._held:
                tensor = self._module.InferInput(name, list(array.shape), "FP32")
                tensor.set_shared_memory(self._name, array.nbytes, offset)
                offset += array.nbytes
            else:
                tensor = infer_input(self._module, name, array)
            inputs.append(tensor)
        wanted = [self._module.InferRequestedOutput(name) for name in request.outputs]
        answer = self._client.infer(request.model, inputs, outputs=wanted)
        return calls.read_masks(read_outputs(answer, request.model, request.outputs), prompts, False)

    def __enter__(self) -> SharedMemoryClicks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # the server may be gone; the region is removed either way
            self._client.unregister_system_shared_memory(self._name)
        self._regions.destroy_shared_memory_region(self._region)
        with contextlib.suppress(Exception):
            self._client.close()
