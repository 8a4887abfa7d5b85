"""Many users who click at a time, against a running service: what it answers, how fast, and what memory it takes.

Each user is a thread with a connection of its own, uploads a picture, and clicks at random places, one after the other.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from ..errors import ConfigurationError, ServerUnreachableError

MEMORY = re.compile(r"^process_resident_memory_bytes ([\d.e+]+)$", re.MULTILINE)
FLAT = 1.2
"""Memory is flat when the second half of the run never needs more than this times the most of the first half."""


@dataclass
class Report:
    """What a run found.

    Args:
        users: how many clicked at a time.
        seconds: for how long.
        statuses: answers by HTTP status; 0 stands for a connection that broke.
        click_ms: time of each click that was answered 200, milliseconds.
        memory: resident bytes of the service, once a second; empty where it does not say.
    """

    users: int
    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    click_ms: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """Answers of 500 and above, and broken connections."""
        return sum(count for status, count in self.statuses.items() if status >= 500 or status == 0)

    @property
    def is_flat(self) -> bool:
        """Whether the memory stays where it was after the first half of the run."""
        half = len(self.memory) // 2
        return half == 0 or max(self.memory[half:]) <= FLAT * max(self.memory[:half])

    def lines(self) -> list[str]:
        """Return the report for a person."""
        ms = sorted(self.click_ms)
        clicks = (
            f"clicks: {len(ms)} in {self.seconds:.0f} s by {self.users} users, {len(ms) / self.seconds:.1f} a second"
        )
        times = (
            f"click ms: p50 {_share(ms, 0.5):.0f}, p95 {_share(ms, 0.95):.0f}, p99 {_share(ms, 0.99):.0f}, "
            f"max {ms[-1]:.0f}"
            if ms
            else "click ms: none was answered"
        )
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        lines = [clicks, times, f"answers: {answers}"]
        if self.memory:
            mib = [memory / (1 << 20) for memory in self.memory]
            lines.append(
                f"memory MiB: start {mib[0]:.0f}, half-way {mib[len(mib) // 2]:.0f}, end {mib[-1]:.0f}, "
                f"most {max(mib):.0f} ({'flat' if self.is_flat else 'GROWING'})"
            )
        return lines


def run_load(url: str, pictures: Sequence[Path], *, users: int, seconds: float, token: str | None = None) -> Report:
    """Let ``users`` click for ``seconds``.

    Raises:
        ConfigurationError: numbers that cannot work.
        ServerUnreachableError: no service answers at ``url``.
    """
    if users < 1 or seconds <= 0 or not pictures:
        raise ConfigurationError("users must be at least 1, seconds above 0, and there must be a picture")
    url = url.rstrip("/")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    report, lock, ready = Report(users, seconds), threading.Lock(), threading.Barrier(users + 1)
    deadline: list[float] = [0.0]
    with urllib3.PoolManager(retries=False, timeout=120, headers=headers) as probe:
        try:
            probe.request("GET", f"{url}/health")
        except urllib3.exceptions.HTTPError:
            raise ServerUnreachableError(f"no service answers at {url}: start one with `triton-sam service`") from None
        threads = [
            threading.Thread(
                target=_user,
                args=(number, url, headers, pictures[number % len(pictures)], report, lock, ready, deadline),
                daemon=True,
            )
            for number in range(users)
        ]
        for thread in threads:
            thread.start()
        deadline[0] = time.monotonic() + 24 * 3600
        ready.wait()  # all have uploaded
        deadline[0] = time.monotonic() + seconds
        while any(thread.is_alive() for thread in threads):
            report.memory += _memory(probe, url)
            time.sleep(1)
        report.memory += _memory(probe, url)
    return report


def _user(
    number: int,
    url: str,
    headers: dict[str, str],
    picture: Path,
    report: Report,
    lock: threading.Lock,
    ready: threading.Barrier,
    deadline: list[float],
) -> None:
    places = random.Random(number)  # noqa: S311 - places to click
    with urllib3.PoolManager(retries=False, timeout=120, headers=headers) as http:
        image: dict[str, object] = {}
        fields = {"image": (picture.name, picture.read_bytes())}
        try:
            answer = http.request("POST", f"{url}/v1/images", fields=fields)
            if answer.status == 201:
                image = json.loads(answer.data)
            else:
                _book(report, lock, answer.status)
        except urllib3.exceptions.HTTPError:
            _book(report, lock, 0)
        ready.wait()
        while image and time.monotonic() < deadline[0]:
            point = [places.uniform(0, float(str(image[side])) - 1) for side in ("width", "height")]
            started = time.monotonic()
            try:
                status = http.request("POST", f"{url}/v1/images/{image['id']}/segment", json={"points": [point]}).status
            except urllib3.exceptions.HTTPError:
                status = 0
            _book(report, lock, status, (time.monotonic() - started) * 1000)
            if status != 200:
                time.sleep(0.2)


def _book(report: Report, lock: threading.Lock, status: int, ms: float | None = None) -> None:
    with lock:
        report.statuses[status] += 1
        if status == 200 and ms is not None:
            report.click_ms.append(ms)


def _memory(http: urllib3.PoolManager, url: str) -> list[int]:
    try:
        found = MEMORY.search(http.request("GET", f"{url}/metrics").data.decode())
    except urllib3.exceptions.HTTPError:
        return []
    return [int(float(found[1]))] if found else []


def _share(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
