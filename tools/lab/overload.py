#!/usr/bin/env python3
"""Measure an overload of a local Triton: more users than it accepts.

The rows tell how long accepted clicks take, how fast the server refuses the others, and when it has recovered.

    python tools/lab/overload.py --users 64 --seconds 300
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from triton_sam._common.bundle import bundled
from triton_sam._common.process import run_program
from triton_sam.benchmark.machine import Watch
from triton_sam.benchmark.results import Results, Row, Times, table
from triton_sam.benchmark.target import Point, Target
from triton_sam.benchmark.throughput import crowd_row
from triton_sam.benchmark.timing import Crowd, crowd, milliseconds
from triton_sam.client.sync import SAM2TritonClient
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.local_server import LocalServer
from triton_sam.transport.triton import Transport
from triton_sam.transport.url import parse_url

LONE_CLICKS = 10
MAX_HALF_SECONDS = 30.0
"""Maximum duration of the half load, in seconds. Its percentiles settle early; the overload needs more time to show an
endlessly growing queue."""
CALM_CLICKS = 3
"""The server has recovered after this number of consecutive fast clicks."""
CALM_FACTOR = 2.0
"""Maximum duration of a fast click, as a multiple of the median before the load."""
RECOVERY_TIMEOUT = 60.0
"""Seconds after which a server counts as not recovered."""


@dataclass
class _Users:
    """Users who click on one image, each with their own client."""

    clients: list[SAM2TritonClient]
    image: ImageEmbeddings
    points: list[Point]

    def click(self, user: int, number: int) -> None:
        """Click as one user. ``number`` counts the clicks of this user."""
        self.clients[user].predict([self.points[(17 * user + number) % len(self.points)]], image=self.image)

    def click_alone(self) -> float:
        """Click as the first user and return the milliseconds."""
        return milliseconds(lambda: self.click(0, 0))


def measure_overload(target: Target, results: Results, count: int, duration: float) -> None:
    """Measure clicks of half as many users as the server accepts, then of `count` users, then of one.

    All use the target's last protocol. Users pause only after a refusal.
    """
    protocol, who = target.protocols[-1], target.who
    limit = max_pending_clicks(target)
    half = max(1, min(limit or count, count) // 2)
    if limit is None or limit >= count:
        results.note(f"{count} users do not overload this server: it lets {limit or 'any number of'} clicks wait.")
    with _users(target, protocol, count) as users:
        before = Times.of([users.click_alone() for _ in range(LONE_CLICKS)])
        results.add(Row("overload", "before", who, protocol, 1, before))
        calm = crowd(half, users.click, min(duration, MAX_HALF_SECONDS))
        results.add(*crowd_row("overload", "half load", who, protocol, calm))
        with Watch(target.pid) as watch:
            busy = crowd(count, users.click, duration)
        results.add(*crowd_row("overload", "accepted", who, protocol, busy, watch.metrics))
        results.add(*_refused(who, protocol, busy))
        after, seconds, recovered = _recover(users, before)
    seconds += max(0.0, busy.seconds - duration)  # the last answers arrived after the last request
    more = {"recovered_s" if recovered else "not_recovered_s": seconds}
    results.add(Row("overload", "after", who, protocol, 1, after, more=more))


def max_pending_clicks(target: Target) -> int | None:
    """Return the maximum number of queued clicks of a server; None without a limit."""
    with contextlib.closing(Transport(parse_url(target.urls[target.protocols[0]]), **target.access)) as transport:
        config = transport.model_config(target.pair.session_model if target.has_session else target.pair.decoder)
    if target.has_session:
        limit = config["parameters"].get("max_pending", {}).get("string_value", 0)
    else:
        limit = config.get("dynamic_batching", {}).get("default_queue_policy", {}).get("max_queue_size", 0)
    return int(limit) or None


@contextlib.contextmanager
def _users(target: Target, protocol: str, count: int) -> Iterator[_Users]:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(target.client(protocol)) for _ in range(count)]
        users = _Users(clients, clients[0].encode(target.content), list(islice(target.points(), 256)))
        for user in range(count):
            users.click(user, 0)  # connects; over HTTP each thread has its own connection, so a crowd's connect later
        yield users


def _refused(who: str, protocol: str, result: Crowd) -> list[Row]:
    if not result.refused_ms:
        return []
    rate = len(result.refused_ms) / result.seconds
    return [Row("overload", "refused", who, protocol, len(result.ms), Times.of(result.refused_ms), rate)]


def _recover(users: _Users, before: Times) -> tuple[Times, float, bool]:
    """Click until clicks are as fast as before the load.

    Returns:
        The times of the clicks; the seconds until the end of the first fast click, or of the last click if the server
        did not recover; and whether it recovered within RECOVERY_TIMEOUT.
    """
    began = time.perf_counter()
    times, ends = [users.click_alone()], [time.perf_counter() - began]
    while len(times) < CALM_CLICKS or max(times[-CALM_CLICKS:]) > CALM_FACTOR * before.median:
        if ends[-1] > RECOVERY_TIMEOUT:
            return Times.of(times), ends[-1], False
        times.append(users.click_alone())
        ends.append(time.perf_counter() - began)
    return Times.of(times), ends[-CALM_CLICKS], True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=64, metavar="N", help="number of users (default: 64)")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of the overload (default: 15)")
    args = parser.parse_args()
    results = Results({})
    with LocalServer(bundled("model_repository")) as server:
        image = bundled("test/images") / "coffee.jpg"
        target = Target("sam2", None, {"grpc": server.grpc_url}, image, pid=server.pid)
        target.check()
        measure_overload(target, results, args.users, args.seconds)
        target.close()
    print(table(results))
    print(*(f"{name} {value:.3g}" for name, value in results.rows[-1].more.items()))
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
