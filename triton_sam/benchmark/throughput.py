"""Measure concurrent users: clicks and images per second against their number, and users who pause between clicks.

Also measure many objects in one call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from ..client.sync import SAM2TritonClient
from .machine import Watch
from .results import Results, Row, Times
from .settings import MAX_ENCODING, BenchmarkSettings
from .target import Target
from .timing import Crowd, Progress, crowd, take_turns

MAX_BOX_ROUNDS = 5


def measure_throughput(target: Target, settings: BenchmarkSettings, results: Results, progress: Progress) -> None:
    """Measure clicks over each protocol, and images and boxes over the first one."""
    for protocol in target.protocols:
        with target.client(protocol) as client:
            client.set_image(target.content)
            client.predict([next(target.points())])
            for users in settings.concurrency:
                progress.step(f"clicks, {protocol}, {users} users")
                clicks = crowd(users, _clicking(client, target), settings.duration)
                results.add(*crowd_row("throughput", "clicks", target.who, protocol, clicks))
    first = target.protocols[0]
    with target.client(first) as client:
        for users in [users for users in settings.concurrency if users <= MAX_ENCODING]:
            progress.step(f"images, {users} users")
            encodes = crowd(users, lambda *_: client.encode(target.unseen_content()), settings.duration)
            results.add(*crowd_row("throughput", "images", target.who, first, encodes))
        client.set_image(target.content)
        _boxes(target, settings, results, client, progress)


def steps(target: Target, settings: BenchmarkSettings) -> int:
    """Return the number of steps that measure_throughput() shows."""
    encoding = sum(users <= MAX_ENCODING for users in settings.concurrency)
    return len(target.protocols) * len(settings.concurrency) + encoding + len(settings.boxes)


def measure_load(target: Target, settings: BenchmarkSettings, results: Results, progress: Progress) -> None:
    """Simulate users who click with pauses, over the last protocol (gRPC if the target has both)."""
    protocol = target.protocols[-1]
    models = {"decoder": target.pair.decoder, **({"session": target.pair.session_model} if target.has_session else {})}
    pauses = [random.Random(user) for user in range(settings.users)]  # noqa: S311 - not a secret
    with target.client(protocol) as client:
        client.set_image(target.content)
        click = _clicking(client, target)
        click(0, 0)
        progress.step(f"{settings.users} users, {settings.load_seconds:g} s, {protocol}")
        before = {role: target.statistics(model) for role, model in models.items()}
        with Watch(target.pid) as watch:
            found = crowd(
                settings.users,
                click,
                settings.load_seconds,
                # Exponential pauses keep users from clicking simultaneously.
                lambda user: pauses[user].expovariate(1 / settings.think) if settings.think else 0.0,
            )
        after = {role: target.statistics(model) for role, model in models.items()}
    more = dict(watch.metrics)
    for role in models:
        during = {name: value - before[role].get(name, 0.0) for name, value in after[role].items()}
        if during.get("count"):  # 0 for a decoder inside the session model
            more[f"{role}_queue_ms"] = 1000 * during["queue"] / during["count"]
            more[f"{role}_compute_ms"] = 1000 * during["compute"] / during["count"]
    if not found.all_ms:
        results.note(f"No user of the load test clicked: every pause was longer than its {settings.load_seconds:g} s.")
    results.add(*crowd_row("load", f"clicks, {settings.think:g} s between", target.who, protocol, found, more))


def crowd_row(
    section: str, what: str, who: str, protocol: str, result: Crowd, metrics: Mapping[str, float] | None = None
) -> list[Row]:
    """Return a list of one row about concurrent users, with further ``metrics``; empty without calls."""
    if not result.all_ms:
        return []
    more = {
        "errors": float(len(result.errors)),
        "refused": float(len(result.refused_ms)),
        "seconds": result.seconds,
        "least_calls_of_a_user": float(min(len(user) for user in result.ms)),
        "most_calls_of_a_user": float(max(len(user) for user in result.ms)),
        **(metrics or {}),
    }
    times = Times.of(result.all_ms)
    return [Row(section, what, who, protocol, len(result.ms), times, result.per_second, more)]


def _clicking(client: SAM2TritonClient, target: Target) -> Callable[[int, int], object]:
    """Return a function that clicks at a point that depends on the numbers of the user and of the click."""
    points = [point for point, _ in zip(target.points(), range(256), strict=False)]
    return lambda user, number: client.predict([points[(17 * user + number) % len(points)]])


def _boxes(
    target: Target,
    settings: BenchmarkSettings,
    results: Results,
    client: SAM2TritonClient,
    progress: Progress,
) -> None:
    """Compare N boxes in one call with N calls. Both return low-resolution masks."""
    for count in settings.boxes:
        progress.step(f"{count} boxes")
        boxes = target.boxes(count)

        def one_by_one(boxes: list[tuple[float, float, float, float]] = boxes) -> None:
            for box in boxes:
                client.predict(box=box)

        def at_once(boxes: list[tuple[float, float, float, float]] = boxes) -> None:
            client.predict(box=boxes)

        times: dict[str, list[float]] = {}
        acts = {"boxes, one call": at_once, "boxes, a call each": one_by_one}
        try:
            # In the first call of a size, ONNX Runtime allocates memory, so it is not measured. Large sizes skip this
            # warm-up, because 64 boxes take seconds on a CPU.
            take_turns(
                acts,
                times,
                settings.duration,
                min_rounds=min(2, settings.least_rounds),
                max_rounds=MAX_BOX_ROUNDS,
                warm_up=count <= 16,
            )
        finally:
            for what, values in times.items():
                row = Times.of(values)
                more = {"ms_per_mask": row.median / count}
                protocol = target.protocols[0]
                results.add(Row("throughput", what, target.who, protocol, count, row, 1000 * count / row.median, more))
