"""Measure an overload: more users than the server accepts.

The results tell how long accepted clicks take, how fast the server refuses the others, and when it has recovered.
"""

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
"""Longest duration of the half load, in seconds. Its percentiles settle early; only the overload needs more time, to
show a queue that grows without end."""
CALM_CLICKS = 3
"""The server has recovered when this many clicks in a row are fast."""
CALM_FACTOR = 2.0
"""A click is fast when it takes at most this many times as long as the median click before the load."""
RECOVERY_TIMEOUT = 60.0
"""Seconds after which a server counts as not recovered."""


@dataclass
class _Users:
    """Users who click on one image, each with a client of its own."""

    clients: list[SAM2TritonClient]
    image: ImageEmbeddings
    points: list[Point]

    def click(self, user: int, number: int) -> None:
        """Let one user click. ``number`` counts the clicks of this user."""
        self.clients[user].predict([self.points[(17 * user + number) % len(self.points)]], image=self.image)

    def click_alone(self) -> float:
        """Let the first user click, and return the milliseconds of this click."""
        return milliseconds(lambda: self.click(0, 0))


def measure_overload(target: Target, settings: Settings, results: Results, session: bool, progress: Progress) -> None:
    """Let half as many users click as the server accepts, then ``settings.crowd`` users, then one.

    All use the target's last protocol. Users do not pause between clicks, except for a moment after a refusal.

    Args:
        target: the server and the image.
        settings: number of users and durations.
        results: takes the rows of the section "overload".
        session: whether the server has a session model.
        progress: shows the current step.
    """
    protocol, who, count = target.protocols[-1], "session" if session else "request", settings.crowd
    limit = target.max_pending_clicks(session)
    half = max(1, min(limit or count, count) // 2)
    if limit is None or limit >= count:
        results.note(f"{count} users do not overload this server: it lets {limit or 'any number of'} clicks wait.")
    with _users(target, protocol, session, count) as users:
        before = Times.of([users.click_alone() for _ in range(LONE_CLICKS)])
        results.add(Row("overload", "before", who, protocol, 1, before))
        progress.step(f"half load, {half} users, {protocol}")
        calm = crowd(half, users.click, min(settings.load_seconds, MAX_HALF_SECONDS))
        results.add(*crowd_row("overload", "half load", who, protocol, calm))
        progress.step(f"overload, {count} users, {settings.load_seconds:g} s, {protocol}")
        with Watch(target.pid) as watch:
            busy = crowd(count, users.click, settings.load_seconds)
        results.add(*crowd_row("overload", "accepted", who, protocol, busy, watch.metrics))
        results.add(*_refused(who, protocol, busy))
        progress.step("recovery")
        after, seconds, recovered = _recover(users, before)
    seconds += max(0.0, busy.seconds - settings.load_seconds)  # the last answers came after the last request
    more = {RECOVERED if recovered else NOT_RECOVERED: seconds}
    results.add(Row("overload", "after", who, protocol, 1, after, more=more))


@contextlib.contextmanager
def _users(target: Target, protocol: str, session: bool, count: int) -> Iterator[_Users]:
    with contextlib.ExitStack() as stack:
        place = target.embeddings_place(session)
        clients = [stack.enter_context(target.client(protocol, place)) for _ in range(count)]
        users = _Users(clients, clients[0].encode(target.content), list(islice(target.points(), 256)))
        for user in range(count):
            users.click(user, 0)  # connects; over HTTP each thread has a connection, so a crowd's threads connect later
        yield users


def _refused(who: str, protocol: str, result: Crowd) -> list[Row]:
    if not result.refused_ms:
        return []
    rate = len(result.refused_ms) / result.seconds
    return [Row("overload", "refused", who, protocol, len(result.ms), Times.of(result.refused_ms), rate)]


def _recover(users: _Users, before: Times) -> tuple[Times, float, bool]:
    """Click until clicks are as fast as before the load.

    Returns:
        The times of the clicks; the seconds until the first fast click ended, or until the last click where the server
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
