"""A service in a separate process, and a user whose answers are timed during an attack."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from support.conditions import wait_until

ATTACKERS = Path(__file__).with_name("attackers.py")


@dataclass
class Watch:
    """Measurements during an attack: seconds of each answer to one user, and the memory of the service in bytes."""

    health: list[float] = field(default_factory=list)
    clicks: list[float] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)
    memory: int = 0

    def __str__(self) -> str:
        return (
            f"/health {max(self.health):.2f} s, click {max(self.clicks):.2f} s at most "
            f"({len(self.health)} and {len(self.clicks)} asked), answers {sorted(self.statuses)}, "
            f"memory {self.memory / 1e6:.0f} MB at most"
        )


@dataclass
class AttackedService:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]

    @contextlib.contextmanager
    def attack(self, name: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
        attacker = subprocess.Popen([sys.executable, ATTACKERS, name, self.url, str(seconds)])
        try:
            yield attacker
        finally:
            attacker.kill()
            attacker.wait()

    def watch(self, image: str, attacker: subprocess.Popen[bytes] | None, seconds: float) -> Watch:
        """Send requests as one user until the attacker has ended or the time is over."""
        watch, end = Watch(), threading.Event()
        service = psutil.Process(self.process.pid)

        def ask(into: list[float], pause: float, method: str, path: str, **options: object) -> None:
            with httpx.Client(base_url=self.url, timeout=120) as http:
                while not end.wait(pause):
                    began = time.monotonic()
                    try:
                        watch.statuses.add(http.request(method, path, **options).status_code)  # type: ignore[arg-type]
                    except httpx.TransportError:
                        watch.statuses.add(0)
                    into.append(time.monotonic() - began)

        click = f"/v1/images/{image}/segment"
        threads = [
            threading.Thread(target=ask, args=(watch.health, 0.1, "GET", "/health")),
            threading.Thread(
                target=ask, args=(watch.clicks, 0.5, "POST", click), kwargs={"json": {"points": [[200, 180]]}}
            ),
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until and (attacker is None or attacker.poll() is None):
            watch.memory = max(watch.memory, service.memory_info().rss)
            time.sleep(0.05)
        end.set()
        for thread in threads:
            thread.join()
        return watch


@contextlib.contextmanager
def attacked_service(triton_url: str, folder: Path, *options: str) -> Iterator[AttackedService]:
    """Start `triton-sam service` over a Triton."""
    log = folder / "service.log"
    with log.open("w") as stream:
        command = [sys.executable, "-m", "triton_sam", "service", "--port", "0", "--url", triton_url, *options]
        process = subprocess.Popen(command, stderr=stream)
    try:
        wait_until(lambda: "the page: " in log.read_text() or process.poll() is not None)
        found = re.search(r"the page: (\S+)/ ", log.read_text())
        assert found, log.read_text()
        url = found[1].replace("localhost", "127.0.0.1")
        wait_until(lambda: _is_up(url))
        yield AttackedService(url, process)
    finally:
        process.kill()
        process.wait()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False
