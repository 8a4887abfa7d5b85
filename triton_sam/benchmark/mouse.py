"""Measure the speculative client for the `speculative` command, one scenario after another.

The server must have no other clients, because its counters tell how many decodes a scenario cost.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..client.paths import queue_multiple_requests, wait_for_latest_result
from ..client.speculative import Queued, Result, SpeculativeSAM2Client
from ..client.sync import SAM2TritonClient
from ..families import model_name as triton_name
from ..families import variant_of
from ..families.tables import DECODER
from ..inputs.embeddings import ImageEmbeddings
from ..transport.triton import Transport
from ..transport.url import parse_url
from .server_counts import decode_counter

LONE_CLICKS = 7
MOUSE_INTERVAL = 0.016
"""Seconds between two positions of a moving mouse, which reports 60 per second."""
NAIVE_POSITIONS = 20
"""Positions that the naive scenario sends without waiting. A session model refuses more than 24 (`max_pending`)."""
MOUSE_SECONDS = 2.0
SAMPLE_SECONDS = 0.004
SETTLE_SECONDS = 0.5
"""Pause before and after each run, so that decodes which the server still computes count for the right run."""

COMPUTED_LIMIT = 5
IN_FLIGHT_LIMIT = 2
FINAL_LIMIT = 2.2
STARVATION_LIMIT = 3.0

Position = tuple[float, float]
Outcomes = list[tuple[float, "Result | None"]]
"""For each lane: the seconds from its last position to its last result, and that result."""


@dataclass
class Row:
    """One line of the report. Its numbers are medians of all runs of a scenario.

    Args:
        protocol: http or grpc.
        scenario: description of the scenario.
        asked: number of predictions that the caller asked for.
        sent: number of those predictions that were sent to the server.
        cancelled: number of those predictions that were replaced or cancelled; their tasks ended in CancelledError.
        computed: number of decodes, by the server's own counter; None if the server reports none.
        in_flight: the largest sampled number of requests on the wire, for one lane; for all without lanes.
        final_ms: milliseconds from the last position to its mask; with many lanes, those of the slowest lane.
        ratio: final_ms divided by the time of a single prediction; with many lanes, the slowest lane's time divided by
            the median lane's.
        missed: descriptions of the limits that were exceeded.
    """

    protocol: str
    scenario: str
    asked: int = 0
    sent: int = 0
    cancelled: int = 0
    computed: int | None = 0
    in_flight: int = 0
    final_ms: float = 0.0
    ratio: float = 0.0
    missed: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a dictionary that `json.dumps` accepts."""
        return asdict(self)


@dataclass(frozen=True)
class _Bench:
    """The clients of one protocol, with the image set. The sync client gives the expected answers."""

    url: str
    model_type: str
    model_name: str | None
    image: ImageEmbeddings
    sync: SAM2TritonClient
    computed: Callable[[], int | None]
    access: Mapping[str, Any]

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[SpeculativeSAM2Client]:
        async with SpeculativeSAM2Client(
            self.url, self.model_type, model_name=self.model_name, **self.access, **options
        ) as client:
            client.image_embeddings = self.image
            await (await client.predict_async([[1, 1]]))[1]  # connects
            yield client


@dataclass
class _Run:
    """The findings of one run of a scenario.

    Args:
        asked: see Row; so are sent, cancelled, computed and in_flight.
        sent: see Row.
        cancelled: see Row.
        computed: see Row.
        in_flight: see Row.
        seconds: for each lane, the seconds from its last position to its last mask.
        equal: whether every last mask equals the sync client's, bit for bit.
    """

    asked: int
    sent: int
    cancelled: int
    computed: int | None
    in_flight: int
    seconds: list[float]
    equal: bool


async def stress(
    url: str | None,
    model_name: str | None,
    image: Path,
    *,
    positions: int,
    sessions: int,
    repeat: int,
    model_type: str = "sam2",
    access: Mapping[str, Any] | None = None,
    metrics_url: str | None = None,
) -> list[Row]:
    """Run all scenarios over one protocol.

    Args:
        url: URL of the server; None means the default of SpeculativeSAM2Client.
        model_name: name of a variant; None means the family's default model pair.
        image: the image file.
        positions: number of positions on the mouse path.
        sessions: number of lanes in the scenario with many lanes.
        repeat: number of runs of each scenario.
        model_type: sam1, sam2 or sam3.
        access: the arguments headers, ca_certs and timeout of every client.
        metrics_url: URL of the server's metrics, for session models that run their decoders; None if unknown.

    Returns:
        One row for each scenario.

    Raises:
        ServerError: the server does not answer, or refuses a request; see triton_sam.errors.
    """
    access = access or {}
    with (
        closing(Transport(parse_url(url), **access)) as transport,
        SAM2TritonClient(url, model_type, model_name=model_name, **access) as sync,
    ):
        sync.set_image(image)
        assert sync.image_embeddings is not None  # noqa: S101 - set by set_image
        names = triton_name(variant_of(sync.image_embeddings.model), DECODER), model_name or model_type
        computed = decode_counter(transport, *names, metrics_url, lambda: sync.predict([[1, 1]]))
        bench = _Bench(sync.url, model_type, model_name, sync.image_embeddings, sync, computed, access)
        return await _scenarios(bench, positions, sessions, repeat)


def mouse_path(count: int, size: tuple[int, int], seed: int = 0) -> list[Position]:
    """Return a spiral with jitter, as (x, y) in pixels.

    Args:
        count: number of positions.
        size: width and height of the image in pixels.
        seed: each seed gives another path.
    """
    noise = random.Random(seed)  # noqa: S311 - not a secret
    width, height = size
    path = []
    for step in range(count):
        angle, reach = 0.3 * step + seed, 0.1 + 0.3 * step / count
        x, y = 0.5 + reach * math.cos(angle), 0.5 + reach * math.sin(angle)
        path.append((x * width + noise.uniform(-4, 4), y * height + noise.uniform(-4, 4)))
    return path


async def _scenarios(bench: _Bench, positions: int, sessions: int, repeat: int) -> list[Row]:
    protocol = parse_url(bench.url).scheme
    path = mouse_path(positions, bench.image.image_size)
    long_path = mouse_path(round(MOUSE_SECONDS / MOUSE_INTERVAL), bench.image.image_size, seed=1)

    async def repeated(run_once: Callable[[], Awaitable[_Run]]) -> list[_Run]:
        return [await run_once() for _ in range(repeat)]

    async with bench.client() as client:
        alone = statistics.median([await _time_one_prediction(client) for _ in range(LONE_CLICKS)])
        at_once = await repeated(lambda: _run_one_lane(bench, client, path, 0.0))
        moving = await repeated(lambda: _run_one_lane(bench, client, long_path, MOUSE_INTERVAL))
        dropped = await repeated(lambda: _run_dropped(bench, client, path))
        many = await repeated(lambda: _run_many_lanes(bench, client, positions, sessions))
    few = path[:NAIVE_POSITIONS]
    async with bench.client(max_in_flight=len(few), max_in_flight_total=len(few)) as naive_client:
        naive = [await _run_naive(bench, naive_client, few)]
    return [
        Row(protocol, "one lone prediction", 1, 1, 0, 1, 1, 1000 * alone, 1.0),
        _row(protocol, f"{len(few)} sent, none cancelled", naive, alone),
        _check_limits(_row(protocol, f"{positions} queued at once", at_once, alone), at_once),
        _check_limits(_row(protocol, f"{len(long_path)} in {MOUSE_SECONDS:g} s", moving, alone), moving, computed=None),
        _row(protocol, f"{positions} queued, all dropped", dropped, alone),
        _check_fairness(_row(protocol, f"{sessions} sessions x {positions}", many, alone), many),
    ]


def _row(protocol: str, scenario: str, runs: Sequence[_Run], alone: float) -> Row:
    """Return the medians of some runs. ``alone`` is the time of a single prediction in seconds."""

    def median_of(name: str) -> Any:
        values = [getattr(run, name) for run in runs]
        return None if None in values else round(statistics.median(values))

    final = statistics.median(max(run.seconds, default=0.0) for run in runs)
    counts = {name: median_of(name) for name in ("asked", "sent", "cancelled", "computed", "in_flight")}
    missed = [] if all(run.equal for run in runs) else ["a final mask differs from the sync client's"]
    return Row(protocol, scenario, **counts, final_ms=1000 * final, ratio=final / alone, missed=missed)


def _check_limits(row: Row, runs: Sequence[_Run], computed: int | None = COMPUTED_LIMIT) -> Row:
    """Add the limits that the runs exceed to ``row.missed``. ``computed`` limits the decodes; None does not."""
    if computed is not None and max(run.computed or 0 for run in runs) > computed:
        row.missed.append(f"computed more than {computed}")
    if max(run.in_flight for run in runs) > IN_FLIGHT_LIMIT:
        row.missed.append(f"more than {IN_FLIGHT_LIMIT} in flight")
    if row.ratio > FINAL_LIMIT:
        row.missed.append(f"final mask later than {FINAL_LIMIT} x a lone prediction")
    return row


def _check_fairness(row: Row, runs: Sequence[_Run]) -> Row:
    """Set the ratio of the slowest lane to the median lane, and add it to ``row.missed`` when it is too high."""
    row.ratio = statistics.median(max(run.seconds) / statistics.median(run.seconds) for run in runs)
    if row.ratio > STARVATION_LIMIT:
        row.missed.append(f"slowest session later than {STARVATION_LIMIT:g} x the median")
    return row


async def _time_one_prediction(client: SpeculativeSAM2Client) -> float:
    """Return the seconds of a prediction while the server does nothing else."""
    start = time.perf_counter()
    await (await client.predict_async([[2, 2]]))[1]
    return time.perf_counter() - start


async def _run_one_lane(
    bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position], interval: float
) -> _Run:
    """Queue a path in one lane and wait for the last mask.

    ``interval`` is the number of seconds between two positions; 0 queues all positions at once.
    """
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
    """Return a function that tells how many requests are on the wire for the lane that has the most."""
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


async def _run_many_lanes(bench: _Bench, client: SpeculativeSAM2Client, positions: int, lanes: int) -> _Run:
    """Queue a path in each of many lanes at the same time. Each lane waits for its own last mask."""
    paths = {f"lane {seed}": mouse_path(positions, bench.image.image_size, seed) for seed in range(lanes)}
    queued: list[Queued] = []

    async def act() -> Outcomes:
        acts = [_queue_at_once(client, path, queued, lane) for lane, path in paths.items()]
        return [outcome for outcomes in await asyncio.gather(*(act() for act in acts)) for outcome in outcomes]

    final = [path[-1] for path in paths.values()]
    return await _measure(bench, client, queued, act, final, _running_counter(client, *paths))


async def _run_naive(bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position]) -> _Run:
    """Send every position without a lane, and wait for all masks."""
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
    """Run ``act`` and count its requests.

    Args:
        bench: the server's counters and the client with the expected answers.
        client: the client that ``act`` uses.
        queued: the list of tasks that ``act`` fills.
        act: the scenario.
        final: the last position of each lane; None where no mask is expected.
        running: tells how many requests are on the wire.
    """
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
    # A request that was sent was on the wire, even if it came and went between two samples.
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
