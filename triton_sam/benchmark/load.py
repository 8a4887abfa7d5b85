"""Measure a typical load: users who pause between clicks, and the CPU time and memory of the server."""

from __future__ import annotations

import random

from .machine import Watch
from .progress import Progress
from .results import Results
from .settings import BenchmarkSettings
from .target import Target
from .throughput import clicking, crowd_row
from .timing import crowd


def measure_load(
    target: Target, settings: BenchmarkSettings, results: Results, session: bool, progress: Progress
) -> None:
    """Simulate users who click with pauses, over the last protocol (gRPC if the target has both)."""
    protocol = target.protocols[-1]
    models = {"decoder": target.pair.decoder, **({"session": target.session_model} if session else {})}
    pauses = [random.Random(user) for user in range(settings.users)]  # noqa: S311 - not a secret
    with target.client(protocol, target.embeddings_place(session)) as client:
        client.set_image(target.content)
        click = clicking(client, target)
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
    who = "session" if session else "request"
    if not found.all_ms:
        results.note(f"No user of the load test clicked: every pause was longer than its {settings.load_seconds:g} s.")
    results.add(*crowd_row("load", f"clicks, {settings.think:g} s between", who, protocol, found, more))
