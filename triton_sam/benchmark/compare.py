"""Compare the session model with its alternatives.

All contenders take turns in one run, with the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from ..client.sync import SAM2TritonClient
from ..errors import SamError
from ..export.reference import Reference, in_bf16
from ..inputs.images import open_image
from .progress import Progress
from .results import Results, times_row
from .settings import MAX_ROUNDS, BenchmarkSettings
from .target import Point, Target
from .timing import Act, take_turns
from .weights import Weights

OPERATIONS = ("encode", "click", "click, full-size mask")
MAX_ENCODES = 7


class ClientContender:
    """A client of this package, which calls a server or runs ONNX Runtime in this process."""

    def __init__(self, client: SAM2TritonClient) -> None:
        self._client = client

    def encode(self, content: bytes) -> object:
        return self._client.set_image(content)

    def click(self, point: Point) -> object:
        return self._client.predict([point])

    def mask(self, point: Point) -> object:
        return self._client.segment([point])

    def close(self) -> None:
        self._client.close()


class TorchContender:
    """The official predictor in eager PyTorch on the CPU. It returns only full-size masks, so it has no ``click``.

    Args:
        bf16: whether it runs under autocast to bfloat16, as in the official examples for GPUs.
    """

    def __init__(self, reference: Reference, *, bf16: bool = False) -> None:
        self._reference = reference
        self._bf16 = bf16

    def encode(self, content: bytes) -> object:
        with self._precision():
            return self._reference.set_image(open_image(content))  # type: ignore[func-returns-value]

    def mask(self, point: Point) -> object:
        with self._precision():
            return self._reference.answer({"point_coords": [point], "point_labels": [1]}, False)

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return in_bf16() if self._bf16 else contextlib.nullcontext()


class EncodingContender:
    """A contender of which only encodes are measured."""

    def __init__(self, contender: TorchContender) -> None:
        self.encode = contender.encode


AnyContender: TypeAlias = "ClientContender | TorchContender | EncodingContender"


def measure_comparison(
    target: Target, settings: BenchmarkSettings, results: Results, session: bool, progress: Progress
) -> None:
    """Measure every operation. The contenders take turns.

    Args:
        results: receives the rows of the section "comparison", and notes about contenders that are left out.
    """
    progress.step("preparing the contenders")
    with contextlib.ExitStack() as stack:
        contenders = _contenders(target, settings, results, session, stack)
        points = target.points()
        for operation in OPERATIONS:
            progress.step(operation)
            acts: dict[str, Act] = {}
            for name, contender in contenders.items():
                act = _act(contender, operation, target, lambda: next(points))
                if act is not None:
                    acts[name] = act
            _measure(operation, acts, settings, results)


def _measure(operation: str, acts: dict[str, Act], settings: BenchmarkSettings, results: Results) -> None:
    times: dict[str, list[float]] = {}
    max_rounds = MAX_ENCODES if operation == "encode" else MAX_ROUNDS
    try:
        take_turns(acts, times, settings.duration, min_rounds=settings.least_rounds, max_rounds=max_rounds)
    finally:
        for name, values in times.items():
            who, _, protocol = name.partition(" ")
            results.add(*times_row("comparison", operation, who, values, protocol=protocol or None))


def _act(contender: object, operation: str, target: Target, point: Callable[[], Point]) -> Act | None:
    if operation == "encode":
        encode = contender.encode  # type: ignore[attr-defined]
        return lambda: encode(target.unseen_content())
    call = getattr(contender, "click" if operation == "click" else "mask", None)
    return None if call is None else lambda: call(point())


def _contenders(
    target: Target, settings: BenchmarkSettings, results: Results, session: bool, stack: contextlib.ExitStack
) -> dict[str, AnyContender]:
    """Return the contenders by "name" or "name protocol". A note explains why a contender is left out."""
    found: dict[str, AnyContender] = {}
    for name in settings.compare:
        if name == "naive":
            for protocol in target.protocols:
                found[f"naive {protocol}"] = ClientContender(stack.enter_context(target.client(protocol, "client")))
            continue
        if target.weights is None:
            results.note(
                f"{name} was left out, because the server's weights are not known here: name them in --weights."
            )
            continue
        try:
            contender = _of_weights(name, target.weights, target.family)
        except SamError as error:
            results.note(f"{name} was left out: {error}")
            continue
        found[name] = contender
        if isinstance(contender, ClientContender):
            stack.callback(contender.close)
        elif reason := _refuses_clicks(contender, target):
            results.note(f"{name} encodes alone, because the official predictor does not answer a click so: {reason}")
            found[name] = EncodingContender(contender)
    if session:
        for protocol in target.protocols:
            found[f"session {protocol}"] = ClientContender(stack.enter_context(target.client(protocol, "server")))
    return found


def _of_weights(name: str, weights: Weights, family: str) -> ClientContender | TorchContender:
    """Return a contender that runs weights in this process."""
    if name == "inprocess":
        from ..verify.compare import OnnxClient

        return ClientContender(OnnxClient(weights.files, family))
    if name == "openvino":
        from ..verify.accelerated import openvino_client

        return ClientContender(openvino_client(weights.files, family, "bf16"))
    return TorchContender(weights.reference(family), bf16=name == "torch-bf16")


def _refuses_clicks(contender: TorchContender, target: Target) -> str | None:
    """Return why an official predictor cannot segment a click; None if it can."""
    contender.encode(target.content)
    try:
        contender.mask(next(target.points()))
    except (TypeError, RuntimeError) as error:
        return str(error)
    return None
