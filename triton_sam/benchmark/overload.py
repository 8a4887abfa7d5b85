"""More users than the server takes: how long accepted clicks wait, how fast others are refused, what comes after."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ..client.sync import SAM2TritonClient
from ..inputs.embeddings import ImageEmbeddings
from .machine import Watch
from .progress import Progress
from .results import NOT_RECOVERED, RECOVERED, Results, Row, Times
from .settings import Settings
from .target import Point, Target
from .throughput import crowd_row
from .timing import Crowd, crowd, milliseconds

LONE_CLICKS = 10
MAX_HALF_SECONDS = 30.0
"""Longest run of the half load: its percentiles settle sooner than a queue that grows without end shows itself."""
CALM_CLICKS = 3
CALM = 2.0
"""The server has recovered when so many clicks in a row take less than this times a click before the load."""
PATIENCE = 60.0
"""Seconds that it may take to recover."""


@dataclass
class _Users:
    """Who clicks, each with a client of its own, on one picture."""

    clients: list[SAM2TritonClient]
    image: ImageEmbeddings
    points: list[Point]

    def click(self, user: int, number: int) -> None:
        """Let one of them click."""
        self.clients[user].predict([self.points[(17 * user + number) % len(self.points)]], image=self.image)

    def click_alone(self) -> float:
        """Return how long the first one's click takes, milliseconds."""
        return milliseconds(lambda: self.click(0, 0))


def measure_overload(target: Target, settings: Settings, results: Results, session: bool, progress: Progress) -> None:
    """Let half as many users click as the server accepts, then ``settings.crowd``, then one. Over the last protocol.

    No user pauses between clicks; one who is refused does for a moment.
    """
    protocol, who, most = target.protocols[-1], "session" if session else "request", settings.crowd
    limit = target.most_pending(session)
    half = max(1, min(limit or most, most) // 2)
    if limit is None or limit >= most:
        results.note(f"{most} users do not overload this server: it lets {limit or 'any number of'} clicks wait.")
    with _users(target, protocol, session, most) as users:
        before = Times.of([users.click_alone() for _ in range(LONE_CLICKS)])
        results.add(Row("overload", "before", who, protocol, 1, before))
        progress.step(f"half load, {half} users, {protocol}")
        calm = crowd(half, users.click, min(settings.load_seconds, MAX_HALF_SECONDS))
        results.add(*crowd_row("overload", "half load", who, protocol, calm))
        progress.step(f"overload, {most} users, {settings.load_seconds:g} s, {protocol}")
        with Watch(target.pid) as watch:
            busy = crowd(most, users.click, settings.load_seconds)
        results.add(*crowd_row("overload", "accepted", who, protocol, busy, watch.figures))
        results.add(*_refused(who, protocol, busy))
        progress.step("recovery")
        after, seconds, recovered = _recover(users, before)
    seconds += max(0.0, busy.seconds - settings.load_seconds)  # the last answers came when nobody asked any more
    more = {RECOVERED if recovered else NOT_RECOVERED: seconds}
    results.add(Row("overload", "after", who, protocol, 1, after, more=more))


@contextlib.contextmanager
def _users(target: Target, protocol: str, session: bool, count: int) -> Iterator[_Users]:
    with contextlib.ExitStack() as stack:
        place = target.place(session)
        clients = [stack.enter_context(target.client(protocol, place)) for _ in range(count)]
        users = _Users(clients, clients[0].encode(target.content), list(islice(target.points(), 256)))
        for user in range(count):
            users.click(user, 0)  # connects; over HTTP this thread alone, those of a crowd do in their first call
        yield users


def _refused(who: str, protocol: str, found: Crowd) -> list[Row]:
    if not found.refused_ms:
        return []
    rate = len(found.refused_ms) / found.seconds
    return [Row("overload", "refused", who, protocol, len(found.ms), Times.of(found.refused_ms), rate)]


def _recover(users: _Users, before: Times) -> tuple[Times, float, bool]:
    """Click until it is as fast as before; return the clicks, seconds, and whether it was within PATIENCE.

    The seconds last until the first of the fast clicks ended, or until the last of all.
    """
    began = time.perf_counter()
    times, ends = [users.click_alone()], [time.perf_counter() - began]
    while len(times) < CALM_CLICKS or max(times[-CALM_CLICKS:]) > CALM * before.median:
        if ends[-1] > PATIENCE:
            return Times.of(times), ends[-1], False
        times.append(users.click_alone())
        ends.append(time.perf_counter() - began)
    return Times.of(times), ends[-CALM_CLICKS], True
