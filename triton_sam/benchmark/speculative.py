"""Measure a moving mouse: the time to the mask of its last position, and the decodes that the server computed."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from .mouse import stress
from .progress import Progress
from .results import Results, Row, Times
from .settings import Settings
from .target import Target

POSITIONS = 30
SESSIONS = 4


def measure_speculative(
    target: Target,
    settings: Settings,  # noqa: ARG001 - every section is called with it
    results: Results,
    session: bool,
    progress: Progress,
) -> None:
    """Run the scenarios of `triton-sam speculative` once over each protocol."""
    access = {**target.access, "timeout": target.timeout}
    with tempfile.TemporaryDirectory(prefix="triton_sam_benchmark_") as folder:
        image = Path(folder) / "image"
        image.write_bytes(target.content)
        for protocol, url in target.urls.items():
            progress.step(f"mouse path, {protocol}")
            rows = asyncio.run(
                stress(
                    url, target.name, image, positions=POSITIONS, sessions=SESSIONS, repeat=1,
                    model_type=target.family, access=access, metrics_url=target.metrics_url,
                )
            )  # fmt: skip
            for row in rows:
                counts = {name: getattr(row, name) for name in ("asked", "sent", "cancelled", "computed")}
                more = {name: float(count) for name, count in counts.items() if count is not None}
                more["ratio_to_a_lone_click"] = row.ratio
                times = Times.of([row.final_ms]) if row.final_ms else None  # None when all positions were dropped
                who = "session" if session else "request"
                results.add(Row("speculative", row.scenario, who, protocol, None, times, None, more))
