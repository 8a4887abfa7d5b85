"""What the `speculative` command measures: a mouse path in several manners, on a server that does nothing else."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
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

LONE_CLICKS = 7
MOUSE_INTERVAL = 0.016
"""Seconds between positions of a mouse that moves: 60 a second."""
NAIVE_POSITIONS = 20
"""Most that are sent without waiting: a session model refuses more than 24 that wait (`max_pending`)."""
MOUSE_SECONDS = 2.0
SAMPLE_SECONDS = 0.004
SECONDS_TO_CALM = 0.5
"""Before and after each run: what the server still computes or counts shall count for the right one."""

COMPUTED_LIMIT = 5
IN_FLIGHT_LIMIT = 2
FINAL_LIMIT = 2.2
STARVATION_LIMIT = 3.0

Position = tuple[float, float]
Ended = list[tuple[float, "Result | None"]]
"""Of each session: seconds from its last position to the end, and the result."""


@dataclass
class Row:
    """One line of the report; medians of all runs.

    Args:
        protocol: http or grpc.
        scenario: what was done.
        asked: predictions asked for.
        sent: of them, put on the wire.
        cancelled: of them, replaced or cancelled; their tasks ended in CancelledError.
        computed: decodes by the server's own counter.
        in_flight: most on the wire of one session at a time, sampled; where there is no session, of all.
        final_ms: from the last position to its mask, milliseconds; of many sessions, the slowest.
        ratio: final_ms to that of one lone prediction; of many sessions, the slowest to the median.
        missed: limits that were missed.
    """

    protocol: str
    scenario: str
    asked: int = 0
    sent: int = 0
    cancelled: int = 0
    computed: int = 0
    in_flight: int = 0
    final_ms: float = 0.0
    ratio: float = 0.0
    missed: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class _Bench:
    """One protocol's clients, with the image set, and what the sync client answers."""

    url: str
    model_type: str
    model_name: str | None
    image: ImageEmbeddings
    sync: SAM2TritonClient
    transport: Transport
    decoder: str
    access: Mapping[str, Any]

    def computed(self) -> int:
        return int(self.transport.statistics(self.decoder)["inference_count"])

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
    """What one run of a scenario found; seconds for the last mask of each session."""

    asked: int
    sent: int
    cancelled: int
    computed: int
    in_flight: int
    seconds: list[float]
    equal: bool


async def stress(
    url: str | None,
    model_name: str | None,
    picture: Path,
    *,
    positions: int,
    sessions: int,
    repeat: int,
    model_type: str = "sam2",
    access: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Run all scenarios over one protocol.

    Args:
        url: of the server; None: see SpeculativeSAM2Client.
        model_name: a variant beside the default one.
        picture: file of the image.
        positions: length of the mouse path.
        sessions: in the scenario of many sessions.
        repeat: runs of each scenario.
        model_type: SAM family.
        access: headers, ca_certs and timeout of the clients.

    Raises:
        ServerError: see triton_sam.errors.
    """
    access = access or {}
    transport = Transport(parse_url(url), **access)
    with SAM2TritonClient(url, model_type, model_name=model_name, **access) as sync:
        sync.set_image(picture)
        assert sync.image_embeddings is not None  # noqa: S101 - set by set_image
        decoder = triton_name(variant_of(sync.image_embeddings.model), DECODER)
        bench = _Bench(sync.url, model_type, model_name, sync.image_embeddings, sync, transport, decoder, access)
        try:
            return await _scenarios(bench, positions, sessions, repeat)
        finally:
            transport.close()


def mouse_path(count: int, size: tuple[int, int], seed: int = 0) -> list[Position]:
    """Return a spiral with jitter, pixels; each seed another."""
    noise = random.Random(seed)  # noqa: S311 - no secret
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

    async def several(act: Callable[[], Awaitable[_Run]]) -> list[_Run]:
        return [await act() for _ in range(repeat)]

    async with bench.client() as client:
        lone = statistics.median([await _lone(client) for _ in range(LONE_CLICKS)])
        at_once = await several(lambda: _one_session(bench, client, path, 0.0))
        moving = await several(lambda: _one_session(bench, client, long_path, MOUSE_INTERVAL))
        dropped = await several(lambda: _dropped(bench, client, path))
        many = await several(lambda: _many_sessions(bench, client, positions, sessions))
    few = path[:NAIVE_POSITIONS]
    async with bench.client(max_in_flight=len(few), max_in_flight_total=len(few)) as naive_client:
        naive = [await _naive(bench, naive_client, few)]
    return [
        Row(protocol, "one lone prediction", 1, 1, 0, 1, 1, 1000 * lone, 1.0),
        _row(protocol, f"{len(few)} sent, none cancelled", naive, lone),
        _judged(_row(protocol, f"{positions} queued at once", at_once, lone), at_once),
        _judged(_row(protocol, f"{len(long_path)} in {MOUSE_SECONDS:g} s", moving, lone), moving, computed=None),
        _row(protocol, f"{positions} queued, all dropped", dropped, lone),
        _judged_fair(_row(protocol, f"{sessions} sessions x {positions}", many, lone), many),
    ]


def _row(protocol: str, scenario: str, runs: Sequence[_Run], lone: float) -> Row:
    def middle(name: str) -> int:
        values: list[int] = [getattr(run, name) for run in runs]
        return round(statistics.median(values))

    final = statistics.median(max(run.seconds, default=0.0) for run in runs)
    counts = {name: middle(name) for name in ("asked", "sent", "cancelled", "computed", "in_flight")}
    missed = [] if all(run.equal for run in runs) else ["a final mask differs from the sync client's"]
    return Row(protocol, scenario, **counts, final_ms=1000 * final, ratio=final / lone, missed=missed)


def _judged(row: Row, runs: Sequence[_Run], computed: int | None = COMPUTED_LIMIT) -> Row:
    if computed is not None and max(run.computed for run in runs) > computed:
        row.missed.append(f"computed more than {computed}")
    if max(run.in_flight for run in runs) > IN_FLIGHT_LIMIT:
        row.missed.append(f"more than {IN_FLIGHT_LIMIT} in flight")
    if row.ratio > FINAL_LIMIT:
        row.missed.append(f"final mask later than {FINAL_LIMIT} x a lone prediction")
    return row


def _judged_fair(row: Row, runs: Sequence[_Run]) -> Row:
    row.ratio = statistics.median(max(run.seconds) / statistics.median(run.seconds) for run in runs)
    if row.ratio > STARVATION_LIMIT:
        row.missed.append(f"slowest session later than {STARVATION_LIMIT:g} x the median")
    return row


async def _lone(client: SpeculativeSAM2Client) -> float:
    start = time.perf_counter()
    await (await client.predict_async([[2, 2]]))[1]
    return time.perf_counter() - start


async def _one_session(bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position], interval: float) -> _Run:
    """Queue a path in one session, at once or in time with a mouse, and wait for the last mask."""
    queued: list[Queued] = []

    async def in_time() -> Ended:
        for position in path:
            queued.append(await client.predict_async([position], [1], session_id="stress"))
            if position is not path[-1]:
                await asyncio.sleep(interval)
        start = time.perf_counter()
        result = await wait_for_latest_result(queued, client, "stress")
        return [(time.perf_counter() - start, result)]

    act = in_time if interval else _act_at_once(client, path, queued)
    return await _measure(bench, client, queued, act, [path[-1]], _running(client, "stress"))


def _running(client: SpeculativeSAM2Client, *sessions: str) -> Callable[[], int]:
    """Return what tells how many requests of the session that has the most are on the wire."""
    return lambda: max(client.get_session_status(session)["running"] for session in sessions)


def _act_at_once(
    client: SpeculativeSAM2Client, path: Sequence[Position], queued: list[Queued], session: str = "stress"
) -> Callable[[], Awaitable[Ended]]:
    async def act() -> Ended:
        tasks = await queue_multiple_requests(client, [[position] for position in path], [[1]] * len(path), session)
        queued.extend(tasks)
        start = time.perf_counter()
        client.cancel_session_requests(session)
        result = await wait_for_latest_result(tasks, client, session)
        return [(time.perf_counter() - start, result)]

    return act


async def _dropped(bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position]) -> _Run:
    """Queue a path, let the first go, drop all."""
    queued: list[Queued] = []

    async def act() -> Ended:
        queued.extend([await client.predict_async([position], [1], session_id="dropped") for position in path])
        await asyncio.sleep(0)
        client.cancel_session_requests("dropped", keep_latest=False)
        return [(0.0, await wait_for_latest_result(queued, client, "dropped"))]

    return await _measure(bench, client, queued, act, [None], _running(client, "dropped"))


async def _many_sessions(bench: _Bench, client: SpeculativeSAM2Client, positions: int, sessions: int) -> _Run:
    """Queue a path in each of many sessions, all at a time; each waits for its own last mask."""
    paths = {f"session {seed}": mouse_path(positions, bench.image.image_size, seed) for seed in range(sessions)}
    queued: list[Queued] = []

    async def act() -> Ended:
        acts = [_act_at_once(client, path, queued, name) for name, path in paths.items()]
        return [ended for one in await asyncio.gather(*(act() for act in acts)) for ended in one]

    return await _measure(bench, client, queued, act, [path[-1] for path in paths.values()], _running(client, *paths))


async def _naive(bench: _Bench, client: SpeculativeSAM2Client, path: Sequence[Position]) -> _Run:
    """Send every position and wait for the last."""
    queued: list[Queued] = []

    async def act() -> Ended:
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
    act: Callable[[], Awaitable[Ended]],
    final: Sequence[Position | None],
    running: Callable[[], int],
) -> _Run:
    await asyncio.sleep(SECONDS_TO_CALM)
    sent, computed = client.requests_sent, bench.computed()
    async with _sampled(running) as samples:
        ended = await act()
    await asyncio.wait([task for _, task in queued])
    await asyncio.sleep(SECONDS_TO_CALM)
    sent, computed = client.requests_sent - sent, bench.computed() - computed
    wanted = [None if position is None else bench.sync.predict([position], [1]) for position in final]
    equal = all(_equal(result, want) for (_, result), want in zip(ended, wanted, strict=True))
    cancelled = sum(task.cancelled() for _, task in queued)
    in_flight = max([*samples, min(1, sent)])  # what was sent was on the wire, be it shorter than between two samples
    return _Run(len(queued), sent, cancelled, computed, in_flight, [seconds for seconds, _ in ended], equal)


@asynccontextmanager
async def _sampled(read: Callable[[], int]) -> AsyncIterator[list[int]]:
    """Yield a list that takes what ``read`` returns, again and again, as long as the context lasts."""
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


def _equal(result: Result | None, wanted: Result | None) -> bool:
    if result is None or wanted is None:
        return result is wanted
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(result, wanted, strict=True))
