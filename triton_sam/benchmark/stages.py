"""Measure the latency of each stage, from the image file to the full-size mask, over each protocol."""

from __future__ import annotations

from ..client.sync import SAM2TritonClient
from ..inputs.images import encoder_input, open_image
from .progress import Progress
from .results import Results, times_row
from .settings import BenchmarkSettings
from .target import Target
from .timing import Act, milliseconds, take_turns

MAX_ENCODES = 10

Series = dict[tuple[str, str], list[float]]
"""Milliseconds by stage and contender."""


def measure_stages(
    target: Target, settings: BenchmarkSettings, results: Results, session: bool, progress: Progress
) -> None:
    """Measure every stage over every protocol."""
    progress.step("read and resize")
    _client_stages(target, settings, results)
    for protocol in target.protocols:
        with target.client(protocol, "client") as plain, target.client(protocol, "server") as served:
            progress.step(f"encode, {protocol}")
            _encodes(target, settings, results, protocol, plain, served if session else None)
            progress.step(f"clicks, {protocol}")
            _clicks(target, settings, results, protocol, plain, served if session else None)


def steps(target: Target) -> int:
    """Return the number of steps that measure_stages() shows."""
    return 1 + 2 * len(target.protocols)


def _client_stages(target: Target, settings: BenchmarkSettings, results: Results) -> None:
    acts: dict[str, Act] = {
        "read": lambda: open_image(target.content),
        "resize": lambda: encoder_input(target.image, target.pair.family),
    }
    times: dict[str, list[float]] = {}
    try:
        take_turns(acts, times, settings.duration / 2, min_rounds=settings.least_rounds)
    finally:
        for stage, values in times.items():
            results.add(*times_row("latency", stage, "client", values))


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
    series: Series = {}
    acts: dict[str, Act] = {"click/request": lambda: plain.predict([next(points)])}
    if served is not None:
        served.set_image(target.content)
        acts["click/session"] = lambda: served.predict([next(points)])
        acts["click, full-size mask/session"] = lambda: served.segment([next(points)])
    else:
        acts["click, full-size mask/request"] = lambda: plain.segment([next(points)])
    times: dict[str, list[float]] = {}
    try:
        take_turns(acts, times, settings.duration / 2, min_rounds=settings.least_rounds)
    finally:
        for name, values in times.items():
            stage, _, contender = name.rpartition("/")
            series[stage, contender] = values
        _add_rows(results, series, protocol)


def _add_rows(results: Results, series: Series, protocol: str) -> None:
    for (stage, who), values in series.items():
        results.add(*times_row("latency", stage, who, values, protocol=protocol))
