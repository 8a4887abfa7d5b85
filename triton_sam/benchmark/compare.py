"""Compare the session model with its alternatives.

All contenders take turns in one run, with the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

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

OPERATIONS = ENCODE, CLICK, FULL_SIZE = "encode", "click", "click, full-size mask"
MAX_ENCODES = 7

Contender = Mapping[str, Act]
"""The functions of a contender by operation; operations that it does not offer are absent."""


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
        for operation in OPERATIONS:
            progress.step(operation)
            acts = {name: contender[operation] for name, contender in contenders.items() if operation in contender}
            _measure(operation, acts, settings, results)


def _measure(operation: str, acts: dict[str, Act], settings: BenchmarkSettings, results: Results) -> None:
    times: dict[str, list[float]] = {}
    max_rounds = MAX_ENCODES if operation == ENCODE else MAX_ROUNDS
    try:
        take_turns(acts, times, settings.duration, min_rounds=settings.least_rounds, max_rounds=max_rounds)
    finally:
        for name, values in times.items():
            who, _, protocol = name.partition(" ")
            results.add(*times_row("comparison", operation, who, values, protocol=protocol or None))


def _contenders(
    target: Target, settings: BenchmarkSettings, results: Results, session: bool, stack: contextlib.ExitStack
) -> dict[str, Contender]:
    """Return the contenders by "name" or "name protocol". A note explains why a contender is left out."""
    found: dict[str, Contender] = {}
    points = target.points()
    for name in settings.compare:
        if name == "naive":
            for protocol in target.protocols:
                client = stack.enter_context(target.client(protocol, "client"))
                found[f"naive {protocol}"] = _client(client, target, points)
            continue
        if target.weights is None:
            results.note(
                f"{name} was left out, because the server's weights are not known here: name them in --weights."
            )
            continue
        try:
            if name in ("inprocess", "openvino"):
                client = stack.enter_context(_client_here(name, target.weights, target.family))
                found[name] = _client(client, target, points)
            else:
                found[name] = _predictor(name, target.weights.reference(target.family), target, points, results)
        except SamError as error:
            results.note(f"{name} was left out: {error}")
    if session:
        for protocol in target.protocols:
            client = stack.enter_context(target.client(protocol, "server"))
            found[f"session {protocol}"] = _client(client, target, points)
    return found


def _client(client: SAM2TritonClient, target: Target, points: Iterator[Point]) -> Contender:
    """Return the operations of a client of this package."""
    return {
        ENCODE: lambda: client.set_image(target.unseen_content()),
        CLICK: lambda: client.predict([next(points)]),
        FULL_SIZE: lambda: client.segment([next(points)]),
    }


def _client_here(name: str, weights: Weights, family: str) -> SAM2TritonClient:
    """Return a client that runs weights in this process."""
    if name == "inprocess":
        from ..verify.compare import OnnxClient

        return OnnxClient(weights.files, family)
    from ..verify.accelerated import openvino_client

    return openvino_client(weights.files, family, "bf16")


def _predictor(name: str, reference: Reference, target: Target, points: Iterator[Point], results: Results) -> Contender:
    """Return the operations of the official predictor in eager PyTorch on the CPU, which returns only full-size masks.

    Args:
        name: "torch", or "torch-bf16" under autocast to bfloat16, as in the official examples for GPUs.
        results: receives a note if the predictor cannot segment a click.
    """
    precision = in_bf16 if name == "torch-bf16" else contextlib.nullcontext

    def encode() -> object:
        with precision():
            return reference.set_image(open_image(target.unseen_content()))  # type: ignore[func-returns-value]

    def mask() -> object:
        with precision():
            return reference.answer({"point_coords": [next(points)], "point_labels": [1]}, False)

    encode()
    try:
        mask()
    except (TypeError, RuntimeError) as error:
        results.note(f"{name}: only encodes are measured, because the official predictor refuses a click: {error}")
        return {ENCODE: encode}
    return {ENCODE: encode, FULL_SIZE: mask}
