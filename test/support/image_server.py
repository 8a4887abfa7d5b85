"""The session model, the encoder and the decoder of a family in this process, with faults of a server.

The decoder draws a disc around the first point of each object. The disc's size and scores depend on the point, so that
every point and object has a different mask.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from support.in_process import InProcess
from support.pb_utils import Compute
from tritonclient.utils import InferenceServerException

from triton_sam import AsyncSAM2TritonClient, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.families import get_family
from triton_sam.wire import contract

Arrays = Mapping[str, npt.NDArray[Any]]


def discs(model: str, inputs: Arrays, wanted: tuple[str, ...]) -> Arrays:
    """Compute the encoder or the decoder of SAM2."""
    if model.endswith("_encoder"):
        specs = {spec.name: spec for spec in get_family("sam2").encoder.outputs}
        return {name: np.zeros((1, *map(int, specs[name].shape[1:])), np.float32) for name in wanted}
    candidates = 3 if wanted[0].startswith("multimask") else 1
    rows, columns = np.mgrid[:256, :256]
    logits, scores = [], []
    for x, y in inputs["point_coords"][:, 0] / 4:
        disc = np.float32(12 + x / 8 - np.hypot(columns - x, rows - y))
        logits.append(np.broadcast_to(disc, (candidates, 256, 256)))
        scores.append(np.array([x / 256, 0.1, y / 256], np.float32)[:candidates])
    return dict(zip(wanted, (np.stack(logits), np.stack(scores)), strict=True))


class ImageServer(InProcess):
    """A server of one family.

    Args:
        compute: computes the networks.
        family: name of the family and of the session model.
        keeps_images: whether it has a session model.
        parameters: parameters of the session model.

    Attributes:
        failures: errors of the next requests, in order; None for a request without an error.
    """

    def __init__(
        self, compute: Compute = discs, family: str = "sam2", *, keeps_images: bool = True, **parameters: str
    ) -> None:
        super().__init__(compute, {family: family})
        self._family, self._parameters = family, parameters
        self.failures: list[BaseException | None] = []
        self.before = self._fail
        if keeps_images:
            self.start_session_model()

    def start_session_model(self) -> None:
        """Serve the session model from now on."""
        self.program = self.add_session_model(self._family, **self._parameters)

    def lose_images(self) -> None:
        """Drop all images, as a restart does."""
        while self.program._model.images.cache.remove_oldest():
            pass

    def sent(self, name: str = contract.IMAGE) -> list[bool]:
        """Return for each request whether it contained an input."""
        return [name in request.inputs for request in self.requests]

    def _fail(self, number: int) -> None:
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error


def refusal(code: str, status: str = "INVALID_ARGUMENT") -> InferenceServerException:
    """Return the error of a model that refuses a request with a code of the contract."""
    return InferenceServerException(f"{code}: words of the server", f"StatusCode.{status}")


CLIENTS = {
    "sync": SAM2TritonClient,
    "async": AsyncSAM2TritonClient,
    "speculative": SpeculativeSAM2Client,
    "blocking": SpeculativeSAM2Client,
}
"""The speculative client has calls for an event loop, and two for callers without a loop."""
_BLOCKING = {"set_image": "set_image", "predict": "predict_sync"}


class Face:
    """A client whose calls all block and are named as in the sync client."""

    def __init__(self, kind: str, server: InProcess, **options: Any) -> None:
        self._kind = kind
        self.client: Any = CLIENTS[kind](server.url, **{"retries": 0, **options})

    def __enter__(self) -> Face:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def __getattr__(self, name: str) -> Any:
        is_speculative = self._kind in ("speculative", "blocking")
        if self._kind == "blocking" and name in _BLOCKING:
            return getattr(self.client, _BLOCKING[name])
        call = getattr(self.client, f"{name}_async" if is_speculative else name)
        return lambda *args, **options: asyncio.run(_wait(call, args, options))


async def _wait(call: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    answer = call(*args, **options)
    answer = await answer if inspect.isawaitable(answer) else answer
    is_queued = isinstance(answer, tuple) and asyncio.isfuture(answer[1])
    return await answer[1] if is_queued else answer
