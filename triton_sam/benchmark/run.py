"""Run the sections of a benchmark in order and collect one result."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .. import __version__
from .latency import OPERATIONS, measure_comparison, measure_stages, measure_words
from .latency import steps as stage_steps
from .machine import describe_machine
from .results import Results
from .settings import BenchmarkSettings
from .speculative import measure_speculative
from .target import Target
from .throughput import measure_load, measure_throughput
from .throughput import steps as throughput_steps
from .timing import Progress

Section = Callable[[Target, BenchmarkSettings, Results, Progress], None]


def begin(target: Target, settings: BenchmarkSettings, command: str) -> Results:
    """Return a result without rows, with a description of the machine, the model and the settings."""
    created = datetime.datetime.now(datetime.timezone.utc).astimezone().isoformat(timespec="seconds")
    return Results(
        {
            "created": created,
            "command": command,
            "kit": __version__,
            "machine": describe_machine(),
            "model": _model(target),
            "settings": {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(settings).items()},
        }
    )


def measure(target: Target, settings: BenchmarkSettings, results: Results, *, quiet: bool) -> None:
    """Run the sections. After an interruption or an error, ``results`` holds the finished measurements."""
    sections: dict[str, tuple[Section, int]] = {
        "latency": (measure_stages, stage_steps(target)),
        "comparison": (measure_comparison, 1 + len(OPERATIONS)),
        "throughput": (measure_throughput, throughput_steps(target, settings)),
        "speculative": (measure_speculative, len(target.protocols)),
        "load": (measure_load, 1),
        "words": (measure_words, 1),
    }
    results.complete = False
    target.check()
    if not target.has_session:
        results.note(
            f"The server has no session model {target.pair.session_model!r}: clients send embeddings with each click."
        )
    for name in settings.sections:
        section, steps = sections[name]
        with Progress(name, steps, quiet) as progress:
            section(target, settings, results, progress)
    results.complete = True


def _model(target: Target) -> dict[str, Any]:
    width, height = target.image.size
    metadata = target.weights.metadata if target.weights else {}
    return {
        "family": target.family,
        "name": target.name,
        "weights": target.weights.describe() if target.weights else "weights not known here",
        "precision": metadata.get("triton_sam.precision", "unknown"),
        "server": ", ".join(target.urls.values()),
        "server_version": target.server_version(),
        "local": target.pid is not None,
        "picture": {"width": width, "height": height, "bytes": len(target.content)},
    }
