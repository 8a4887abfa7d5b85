"""Measure one user: the stages of a click, the session model beside its alternatives, and searches for words.

All contenders take turns in one run, with the same weights.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from PIL import Image

from ..client.sync import SAM2TritonClient
from ..errors import SamError
from ..export.reference import Reference, in_bf16
from ..inputs.images import encoder_input, open_image
from .results import Results, times_row
from .settings import MAX_ROUNDS, BenchmarkSettings
from .target import Point, Target, Weights
from .timing import Act, Progress, milliseconds, take_turns

MAX_ENCODES = 10

Series = dict[tuple[str, str], list[float]]
"""Milliseconds by stage and contender."""


def measure_stages(target: Target, settings: BenchmarkSettings, results: Results, progress: Progress) -> None:
    """Measure every stage over every protocol."""
    progress.step("read and resize")
    _client_stages(target, settings, results)
    for protocol in target.protocols:
        with target.client(protocol, "client") as plain, target.client(protocol, "server") as served:
            progress.step(f"encode, {protocol}")
            _encodes(target, settings, results, protocol, plain, served if target.has_session else None)
            progress.step(f"clicks, {protocol}")
            _clicks(target, settings, results, protocol, plain, served if target.has_session else None)


def steps(target: Target) -> int:
    """Return the number of steps that measure_stages() shows."""
    return 1 + 2 * len(target.protocols)


def _client_stages(target: Target, settings: BenchmarkSettings, results: Results) -> None:
    acts: dict[tuple[str, str], Act] = {
        ("read", "client"): lambda: open_image(target.content),
        ("resize", "client"): lambda: encoder_input(target.image, target.pair.family),
    }
    times: Series = {}
    try:
        take_turns(acts, times, settings.duration / 2, min_rounds=settings.least_rounds)
    finally:
        _add_rows(results, times, None)


def _encodes(
    target: Target,
    settings: BenchmarkSettings,
    results: Results,
    protocol: str,
    plain: SAM2TritonClient,
    served: SAM2TritonClient | None,
) -> None:
    """Measure encodes and, with a session model, also the first click and an upload without encoding."""
    series: Series = {}
    points = target.points()

    def encode_plain() -> None:
        plain.set_image(target.unseen_content())

    def use_session() -> None:
        assert served is not None  # noqa: S101 - for the type checker
        content = target.unseen_content()
        stages: dict[str, Act] = {
            "encode": lambda: served.set_image(content),
            "first click": lambda: served.predict([next(points)]),
            "upload": lambda: served.encode(content),
        }
        for stage, act in stages.items():
            series.setdefault((stage, "session"), []).append(milliseconds(act))

    times: dict[str, list[float]] = {}
    acts: dict[str, Act] = {"request": encode_plain}
    if served is not None:
        acts["session"] = use_session
    for act in acts.values():
        act()
    series.clear()
    try:
        take_turns(
            acts, times, settings.duration, min_rounds=settings.least_rounds, max_rounds=MAX_ENCODES, warm_up=False
        )
    finally:
        series["encode", "request"] = times.get("request", [])
        _add_rows(results, series, protocol)


def _clicks(
    target: Target,
    settings: BenchmarkSettings,
    results: Results,
    protocol: str,
    plain: SAM2TritonClient,
    served: SAM2TritonClient | None,
) -> None:
    points = target.points()
    acts: dict[tuple[str, str], Act] = {(CLICK, "request"): lambda: plain.predict([next(points)])}
    if served is not None:
        served.set_image(target.content)
        acts[CLICK, "session"] = lambda: served.predict([next(points)])
        acts[FULL_SIZE, "session"] = lambda: served.segment([next(points)])
    else:
        acts[FULL_SIZE, "request"] = lambda: plain.segment([next(points)])
    times: Series = {}
    try:
        take_turns(acts, times, settings.duration / 2, min_rounds=settings.least_rounds)
    finally:
        _add_rows(results, times, protocol)


def _add_rows(results: Results, series: Series, protocol: str | None) -> None:
    for (stage, who), values in series.items():
        results.add(*times_row("latency", stage, who, values, protocol=protocol))


OPERATIONS = ENCODE, CLICK, FULL_SIZE = "encode", "click", "click, full-size mask"
MAX_COMPARED_ENCODES = 7

Contender = Mapping[str, Act]
"""The functions of a contender by operation; operations that it does not offer are absent."""


def measure_comparison(target: Target, settings: BenchmarkSettings, results: Results, progress: Progress) -> None:
    """Measure every operation. The contenders take turns.

    Args:
        results: receives the rows of the section "comparison", and notes about contenders that are left out.
    """
    if target.pid is None:
        results.note("The contenders in process compute on this machine's CPU; the server may have another computer.")
    progress.step("preparing the contenders")
    with contextlib.ExitStack() as stack:
        contenders = _contenders(target, settings, results, stack)
        for operation in OPERATIONS:
            progress.step(operation)
            acts = {name: contender[operation] for name, contender in contenders.items() if operation in contender}
            _measure(operation, acts, settings, results)


def _measure(operation: str, acts: dict[str, Act], settings: BenchmarkSettings, results: Results) -> None:
    times: dict[str, list[float]] = {}
    max_rounds = MAX_COMPARED_ENCODES if operation == ENCODE else MAX_ROUNDS
    try:
        take_turns(acts, times, settings.duration, min_rounds=settings.least_rounds, max_rounds=max_rounds)
    finally:
        for name, values in times.items():
            who, _, protocol = name.partition(" ")
            results.add(*times_row("comparison", operation, who, values, protocol=protocol or None))


def _contenders(
    target: Target, settings: BenchmarkSettings, results: Results, stack: contextlib.ExitStack
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
    if target.has_session:
        for protocol in target.protocols:
            client = stack.enter_context(target.client(protocol))
            found[f"session {protocol}"] = _client(client, target, points)
    return found


def _client(client: SAM2TritonClient, target: Target, points: Iterator[Point]) -> Contender:
    return {
        ENCODE: lambda: client.set_image(target.unseen_content()),
        CLICK: lambda: client.predict([next(points)]),
        FULL_SIZE: lambda: client.segment([next(points)]),
    }


def _client_here(name: str, weights: Weights, family: str) -> SAM2TritonClient:
    if name == "inprocess":
        from ..verify.compare import OnnxClient

        return OnnxClient(weights.files, family)
    from ..verify.accelerated import openvino_client

    return openvino_client(weights.files, family, "bf16")


def _predictor(name: str, reference: Reference, target: Target, points: Iterator[Point], results: Results) -> Contender:
    """Return the operations of the official predictor in eager PyTorch on the CPU, which returns only full-size masks.

    "torch-bf16" runs under autocast to bfloat16, as in the official examples for GPUs.
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


COUNTS = (1, 20)
"""Numbers of words per search."""
CASES: dict[str, dict[str, Any]] = {
    "no instance": {"threshold": 1.0},
    "two instances a word": {"threshold": 0.0, "limit": 2},
}
"""Parameters of the searches. Scores of random weights are meaningless, so the threshold passes none or two of them."""
MAX_SEARCHES = 5
_Search = tuple[str, "str | None", str, int]
"""Contender, protocol, case and number of words."""


def measure_words(target: Target, settings: BenchmarkSettings, results: Results, progress: Progress) -> None:
    """Measure searches. The numbers of words, the protocols and the official detector take turns.

    The official detector has no limit and always computes all masks of a word, so it takes part only without instances.

    Args:
        results: receives the rows of the section "words", or a note that the server cannot find words.
    """
    if not target.pair.family.concepts:
        return
    if not target.has_session or not target.finds_concepts():
        name = target.family
        results.note(f"No words were searched: set the models up with `triton-sam setup {name} --concepts`.")
        return
    progress.step("words")
    numbers, times = itertools.count(), dict[_Search, list[float]]()
    with contextlib.ExitStack() as stack:
        acts: dict[_Search, Act] = {}
        for protocol in target.protocols:
            client = stack.enter_context(target.client(protocol))
            for case, count in itertools.product(CASES, COUNTS):
                acts["session", protocol, case, count] = lambda client=client, case=case, count=count: client.find(  # type: ignore[misc]
                    _words(numbers, count), image=target.unseen_content(), **CASES[case]
                )
        acts |= _official(target, settings, results, numbers)
        try:
            rounds = min(settings.least_rounds, MAX_SEARCHES)
            take_turns(acts, times, settings.duration, min_rounds=rounds, max_rounds=MAX_SEARCHES)
        finally:
            for (who, by, case, count), values in times.items():
                results.add(*times_row("words", case, who, values, protocol=by, size=count))


def _official(
    target: Target, settings: BenchmarkSettings, results: Results, numbers: itertools.count[int]
) -> dict[_Search, Act]:
    """Return the searches of the official detector in PyTorch. A note explains why they are left out."""
    if "torch" not in settings.compare or target.weights is None:
        return {}
    try:
        reference = target.weights.concept_reference(target.family)
    except SamError as error:
        results.note(f"The official detector of words was left out: {error}")
        return {}
    case = next(iter(CASES))

    def search(count: int) -> None:
        with Image.open(io.BytesIO(target.content)) as image:
            reference.set_image(image.convert("RGB"))
        reference.find(_words(numbers, count), threshold=CASES[case]["threshold"])

    return {("torch", None, case, count): lambda count=count: search(count) for count in COUNTS}  # type: ignore[misc]


def _words(numbers: itertools.count[int], count: int) -> list[str]:
    """Return new words, so that each must be encoded."""
    return [f"word {next(numbers)}" for _ in range(count)]
