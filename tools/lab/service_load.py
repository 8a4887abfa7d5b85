#!/usr/bin/env python
"""Let many users click on a running service, and print its answers, their latency, and the memory of the service.

The exit code is 1 after a failure, or when the memory grows.

Start the service in another terminal: triton-sam service --local
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from triton_sam._common.bundle import bundled
from triton_sam.commands._options import bearer_token
from triton_sam.errors import ConfigurationError, ImageError, SamError, ServerUnreachableError
from triton_sam.service.settings import TOKEN_VARIABLE

MEMORY = re.compile(r"^process_resident_memory_bytes ([\d.e+]+)$", re.MULTILINE)
MAX_GROWTH = 1.2
"""Memory is flat if its maximum in the second half of the run is at most this multiple of that in the first half."""


@dataclass
class Report:
    """The findings of a run."""

    users: int
    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    click_ms: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """The number of broken connections and of responses with status 500 and above."""
        return sum(count for status, count in self.statuses.items() if status >= 500 or status == 0)

    @property
    def is_flat(self) -> bool:
        """Whether the memory did not grow in the second half of the run; see MAX_GROWTH."""
        half = len(self.memory) // 2
        return half == 0 or max(self.memory[half:]) <= MAX_GROWTH * max(self.memory[:half])

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        ms = sorted(self.click_ms)
        clicks = (
            f"clicks: {len(ms)} in {self.seconds:.0f} s by {self.users} users, {len(ms) / self.seconds:.1f} per second"
        )
        times = (
            f"click ms: p50 {_percentile(ms, 50):.0f}, p95 {_percentile(ms, 95):.0f}, p99 {_percentile(ms, 99):.0f}, "
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
                f"max {max(mib):.0f} ({'flat' if self.is_flat else 'GROWING'})"
            )
        return lines


def run_load(url: str, images: Sequence[Path], *, users: int, seconds: float, token: str | None = None) -> Report:
    """Simulate users who click for some seconds.

    Args:
        users: number of concurrent users, at least 1.
        token: the service's token; None: no token is sent.
    """
    if users < 1 or seconds <= 0 or not images:
        raise ConfigurationError("users must be at least 1, seconds must be above 0, and at least one image is needed")
    fields = [{"image": (file.name, _content(file))} for file in images]
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
                args=(number, url, headers, fields[number % len(images)], report, lock, ready, deadline),
                daemon=True,
            )
            for number in range(users)
        ]
        for thread in threads:
            thread.start()
        deadline[0] = time.monotonic() + 24 * 3600
        ready.wait()  # wait until every user has uploaded an image
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
    fields: dict[str, tuple[str, bytes]],
    report: Report,
    lock: threading.Lock,
    ready: threading.Barrier,
    deadline: list[float],
) -> None:
    places = random.Random(number)
    with urllib3.PoolManager(retries=False, timeout=120, headers=headers) as http:
        image: dict[str, object] = {}
        try:
            answer = http.request("POST", f"{url}/v1/images", fields=fields)
            if answer.status == 201:
                image = json.loads(answer.data)
            else:
                _record(report, lock, answer.status)
        except (urllib3.exceptions.HTTPError, ValueError):  # no response, or not JSON
            _record(report, lock, 0)
        finally:
            ready.wait()
        while image and time.monotonic() < deadline[0]:
            point = [places.uniform(0, float(str(image[side])) - 1) for side in ("width", "height")]
            started = time.monotonic()
            try:
                status = http.request("POST", f"{url}/v1/images/{image['id']}/segment", json={"points": [point]}).status
            except urllib3.exceptions.HTTPError:
                status = 0
            _record(report, lock, status, (time.monotonic() - started) * 1000)
            if status != 200:
                time.sleep(0.2)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ImageError(f"{file} cannot be read: {error.strerror}") from error


def _record(report: Report, lock: threading.Lock, status: int, ms: float | None = None) -> None:
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


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, percent * len(ordered) // 100)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", default="http://localhost:5000", help="URL of the service (default: http://localhost:5000)"
    )
    parser.add_argument("--users", type=int, default=32, help="number of concurrent users (default: 32)")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the clicks (default: 30)")
    parser.add_argument(
        "--image", type=Path, action="append", help="image to click on (default: images of this project)"
    )
    parser.add_argument("--token", help=f"bearer token of the service (default: ${TOKEN_VARIABLE})")
    args = parser.parse_args()
    images = args.image or [bundled("test/images") / name for name in ("shapes.jpg", "coffee.jpg")]
    token = bearer_token(args.token, TOKEN_VARIABLE) or None
    try:
        report = run_load(args.url, images, users=args.users, seconds=args.seconds, token=token)
    except SamError as error:
        print(f"service_load: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(report.lines()))
    return 1 if report.failures or not report.click_ms or not report.is_flat else 0


if __name__ == "__main__":
    raise SystemExit(main())
