"""Measure a moving mouse with the speculative client: requests, decodes, and the time until the last mask.

The server must have no other clients, because its counters provide the number of decodes of a scenario.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..client.paths import queue_multiple_requests, wait_for_latest_result
from ..client.speculative import Queued, Result, SpeculativeSAM2Client
from ..client.sync import SAM2TritonClient
from ..inputs.embeddings import ImageEmbeddings
from ..transport.triton import Transport
from ..transport.url import parse_url
from .results import Results, Row, Times
from .settings import BenchmarkSettings
from .target import Target, decode_counter
from .timing import Progress

POSITIONS, LANES = 50, 20
LONE_CLICKS = 7
MOUSE_INTERVAL = 0.016
"""Seconds between two positions of a moving mouse, which reports 60 positions per second."""
NAIVE_POSITIONS = 20
"""Positions that the naive scenario sends concurrently. A session model refuses more than 24 (`max_pending`)."""
MOUSE_SECONDS = 2.0
SAMPLE_SECONDS = 0.004
SETTLE_SECONDS = 0.5
"""Pause in seconds before and after each run, so that unfinished decodes count for the right run."""

Position = tuple[float, float]
Outcomes = list[tuple[float, "Result | None"]]
"""For each lane: the seconds from its last position to its last result, and this result."""


@dataclass(frozen=True)
class _Bench:
    """The clients of one protocol, with the image set. The sync client returns the expected results."""

    target: Target
    protocol: str
    image: ImageEmbeddings
    sync: SAM2TritonClient
    computed: Callable[[], int | None]

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[SpeculativeSAM2Client]:
        target = self.target
        access = {**target.access, "timeout": target.timeout, **options}
        async with SpeculativeSAM2Client(
            target.urls[self.protocol], target.family, model_name=target.name, **access
        ) as client:
            client.image_embeddings = self.image
            await (await client.predict_async([[1, 1]]))[1]  # connects
            yield client


@dataclass
class _Run:
    """The result of one run of a scenario.

    Args:
        cancelled: number of these predictions that were replaced or cancelled. Their tasks raised CancelledError.
        computed: number of decodes, by the server's own counter; None if the server reports none.
        in_flight: the largest sampled number of requests in flight in one lane; in total without lanes.
        seconds: for each lane, the seconds from its last position to its last mask.
    """

    asked: int
    sent: int
    cancelled: int
    computed: int | None
    in_flight: int
    seconds: list[float]
    equal: bool


def measure_speculative(
    target: Target,
    settings: BenchmarkSettings,  # noqa: ARG001 - every section is called with it
    results: Results,
    progress: Progress,
) -> None:
    """Run every scenario over each protocol. Each last mask must be bit-identical to the sync client's mask."""
    for protocol, url in target.urls.items():
        progress.step(f"mouse path, {protocol}")
        with target.client(protocol) as sync:
            sync.set_image(target.content)
            assert sync.image_embeddings is not None  # noqa: S101 - set by set_image
            transport = Transport(parse_url(url), timeout=target.timeout, **target.access)
            names = target.pair.decoder, target.pair.session_model
            counter = decode_counter(transport, *names, target.metrics_url, lambda sync=sync: sync.predict([[1, 1]]))  # type: ignore[misc]
            bench = _Bench(target, protocol, sync.image_embeddings, sync, counter)
            try:
                alone, runs = asyncio.run(_scenarios(bench))
            finally:
                transport.close()
        for scenario, run in runs.items():
            results.add(_row(scenario, target.who, protocol, run, alone))
            if not run.equal:
                results.note(f"{scenario}, {protocol}: the last mask differs from the sync client's.")


def _row(scenario: str, who: str, protocol: str, run: _Run, alone: float) -> Row:
    counts = {name: getattr(run, name) for name in ("asked", "sent", "cancelled", "computed", "in_flight")}
    more = {name: float(count) for name, count in counts.items() if count is not None}
    if not run.seconds or not max(run.seconds):  # all positions were cancelled
        return Row("speculative", scenario, who, protocol, more=more)
    slowest, compared = max(run.seconds), statistics.median(run.seconds) if len(run.seconds) > 1 else alone
    more["ratio_to_the_median_lane" if len(run.seconds) > 1 else "ratio_to_a_lone_click"] = slowest / compared
    return Row("speculative", scenario, who, protocol, ms=Times.of([1000 * slowest]), more=more)


def mouse_path(count: int, size: tuple[int, int], seed: int = 0) -> list[Position]:
    """Return a spiral with jitter, as (x, y) in pixels.

    Args:
        size: width and height of the image in pixels.
    """
    noise = random.Random(seed)  # noqa: S311 - not a secret
    width, height = size
    path = []
    for step in range(count):
        angle, reach = 0.3 * step + seed, 0.1 + 0.3 * step / count
        x, y = 0.5 + reach * math.cos(angle), 0.5 + reach * math.sin(angle)
        path.append((x * width + noise.uniform(-4, 4), y * height + noise.uniform(-4, 4)))
    return path


async def _scenarios(bench: _Bench) -> tuple[float, dict[str, _Run]]:
    """Return the seconds of a single prediction, and the run of each scenario."""
    path = mouse_path(POSITIONS, bench.image.image_size)
    long_path = mouse_path(round(MOUSE_SECONDS / MOUSE_INTERVAL), bench.image.image_size, seed=1)
    runs: dict[str, _Run] = {}
    async with bench.client() as client:
        alone = statistics.median([await _time_one_prediction(client) for _ in range(LONE_CLICKS)])
        runs["lone prediction"] = _Run(1, 1, 0, 1, 1, [alone], True)
        runs[f"{POSITIONS} queued at once"] = await _run_one_lane(bench, client, path, 0.0)
        runs[f"{len(long_path)} in {MOUSE_SECONDS:g} s"] = await _run_one_lane(bench, client, long_path, MOUSE_INTERVAL)
        runs[f"{POSITIONS} queued, all dropped"] = await _run_dropped(bench, client, path)
        runs[f"{LANES} lanes x {POSITIONS}"] = await _run_many_lanes(bench, client)
    few = path[:NAIVE_POSITIONS]
    async with bench.client(max_in_flight=len(few), max_in_flight_total=len(few)) as naive:
        runs[f"{len(few)} sent, none cancelled"] = await _run_naive(bench, naive, few)
    return alone, runs


async def _time_one_prediction(client: SpeculativeSAM2Client) -> float:
    """Return the seconds of a prediction on an idle server."""
    start = time.perf_counter()
    await (await client.predict_async([[2, 2]]))[1]
    return time.perf_counter() - start


async def _run_one_lane(
    bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position], interval: float
) -> _Run:
    """Queue a path in one lane, with seconds between two positions (0: all at once), and wait for the last mask."""
    queued: list[Queued] = []

    async def move_mouse() -> Outcomes:
        for position in path:
            queued.append(await client.predict_async([position], [1], session_id="stress"))
            if position is not path[-1]:
                await asyncio.sleep(interval)
        start = time.perf_counter()
        result = await wait_for_latest_result(queued, client, "stress")
        return [(time.perf_counter() - start, result)]

    act = move_mouse if interval else _queue_at_once(client, path, queued)
    return await _measure(bench, client, queued, act, [path[-1]], _running_counter(client, "stress"))


def _running_counter(client: SpeculativeSAM2Client, *lanes: str) -> Callable[[], int]:
    """Return a function that returns the number of requests in flight in the busiest lane."""
    return lambda: max(client.get_session_status(lane)["running"] for lane in lanes)


def _queue_at_once(
    client: SpeculativeSAM2Client, path: Sequence[Position], queued: list[Queued], lane: str = "stress"
) -> Callable[[], Awaitable[Outcomes]]:
    async def act() -> Outcomes:
        tasks = await queue_multiple_requests(client, [[position] for position in path], [[1]] * len(path), lane)
        queued.extend(tasks)
        start = time.perf_counter()
        client.cancel_session_requests(lane)
        result = await wait_for_latest_result(tasks, client, lane)
        return [(time.perf_counter() - start, result)]

    return act


async def _run_dropped(bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position]) -> _Run:
    """Queue a path, let its first request start, and cancel all requests."""
    queued: list[Queued] = []

    async def act() -> Outcomes:
        queued.extend([await client.predict_async([position], [1], session_id="dropped") for position in path])
        await asyncio.sleep(0)
        client.cancel_session_requests("dropped", keep_latest=False)
        return [(0.0, await wait_for_latest_result(queued, client, "dropped"))]

    return await _measure(bench, client, queued, act, [None], _running_counter(client, "dropped"))


async def _run_many_lanes(bench: _Bench, client: SpeculativeSAM2Client) -> _Run:
    """Queue a path in each of many lanes concurrently. Each lane waits for its own last mask."""
    paths = {f"lane {seed}": mouse_path(POSITIONS, bench.image.image_size, seed) for seed in range(LANES)}
    queued: list[Queued] = []

    async def act() -> Outcomes:
        acts = [_queue_at_once(client, path, queued, lane) for lane, path in paths.items()]
        return [outcome for outcomes in await asyncio.gather(*(act() for act in acts)) for outcome in outcomes]

    final = [path[-1] for path in paths.values()]
    return await _measure(bench, client, queued, act, final, _running_counter(client, *paths))


async def _run_naive(bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position]) -> _Run:
    """Send every position without a lane and wait for all masks."""
    queued: list[Queued] = []

    async def act() -> Outcomes:
        queued.extend([await client.predict_async([position], [1]) for position in path])
        start = time.perf_counter()
        result = await queued[-1][1]
        seconds = time.perf_counter() - start
        await asyncio.gather(*(task for _, task in queued))
        return [(seconds, result)]

    before = client.requests_sent
    return await _measure(
        bench, client, queued, act, [path[-1]],
        lambda: client.requests_sent - before - sum(task.done() for _, task in queued),
    )  # fmt: skip


async def _measure(
    bench: _Bench,
    client: SpeculativeSAM2Client,
    queued: list[Queued],
    act: Callable[[], Awaitable[Outcomes]],
    final: Sequence[Position | None],
    running: Callable[[], int],
) -> _Run:
    """Run ``act`` and count its requests. ``final`` has the last position of each lane; None if no mask is expected."""
    await asyncio.sleep(SETTLE_SECONDS)
    sent, computed = client.requests_sent, bench.computed()
    async with _sampled(running) as samples:
        outcomes = await act()
    await asyncio.wait([task for _, task in queued])
    await asyncio.sleep(SETTLE_SECONDS)
    sent = client.requests_sent - sent
    computed = None if computed is None else (bench.computed() or 0) - computed
    expected = [None if position is None else bench.sync.predict([position], [1]) for position in final]
    equal = all(_equal(result, want) for (_, result), want in zip(outcomes, expected, strict=True))
    cancelled = sum(task.cancelled() for _, task in queued)
    # Every sent request was in flight, even if it started and ended between two samples.
    in_flight = max([*samples, min(1, sent)])
    return _Run(len(queued), sent, cancelled, computed, in_flight, [seconds for seconds, _ in outcomes], equal)


@asynccontextmanager
async def _sampled(read: Callable[[], int]) -> AsyncIterator[list[int]]:
    """Yield a list to which the values of ``read`` are appended every 4 ms while the context lasts."""
    samples: list[int] = []

    async def sample() -> None:
        while True:
            samples.append(read())
            await asyncio.sleep(SAMPLE_SECONDS)

    task = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        task.cancel()
        await asyncio.wait([task])


def _equal(result: Result | None, expected: Result | None) -> bool:
    if result is None or expected is None:
        return result is expected
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(result, expected, strict=True))
