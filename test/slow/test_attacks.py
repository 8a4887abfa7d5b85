"""Attempts to stall or to bloat the service, at full size: another user hardly notices, and memory stays bounded."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from support.attackers import upload
from support.running_service import ServiceProgram

ATTACKERS = Path(__file__).parents[1] / "support" / "attackers.py"


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


class AttackedService(ServiceProgram):
    """A running service."""

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


pytestmark = [pytest.mark.nightly, pytest.mark.alone, pytest.mark.timeout(600)]

HEALTH, CLICK = 0.5, 2.0
"""Seconds within which the service answers another user while it is attacked, on two cores without other work."""
ALLOWANCE = 4
"""How many times as long it may take here: other programs may use the cores, and some attacks stalled for minutes."""
MEMORY = 1_200_000_000
"""Bytes. Full-size masks alone may take 0.9 GB: 64 megapixels with 14 bytes each (work_megapixels)."""
AFTERWARDS = 5.0
"""Seconds after an attack until everything is as before."""
ATTACKS = [("masks", 45), ("deaf", 40)]
"""Those whose full size matters, with their seconds; test_budgets.py and test_live.py have the others."""
STOP = 8.0
"""Seconds between SIGTERM and the end of the service."""


@pytest.mark.parametrize(("attack", "seconds"), ATTACKS)
def test_another_user_hardly_notices(own_triton, images, tmp_path, attack, seconds):
    with AttackedService(own_triton.grpc_url, tmp_path) as service:
        image = upload(service.url, (images / "shapes.jpg").read_bytes())
        service.watch(image, None, 2)
        with service.attack(attack, seconds) as attacker:
            during = service.watch(image, attacker, seconds + 30)
        print(f"\n{attack}: {during}")
        time.sleep(AFTERWARDS)
        after = service.watch(image, None, 3)
        print(f"{attack}, afterwards: {after}")
        assert during.statuses == after.statuses == {200}
        assert max(during.health) < HEALTH * ALLOWANCE
        assert max(during.clicks) < CLICK * ALLOWANCE
        assert during.memory < MEMORY
        assert max(after.health) < HEALTH * ALLOWANCE / 2
        assert max(after.clicks) < CLICK * ALLOWANCE / 2


def test_the_service_ends_soon_under_load(own_triton, tmp_path):
    with AttackedService(own_triton.grpc_url, tmp_path) as service, service.attack("masks", 40):
        time.sleep(15)
        service.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        service.process.wait(60)
        seconds = time.monotonic() - began
        print(f"\nSIGTERM: gone after {seconds:.1f} s")
        assert seconds < STOP * ALLOWANCE / 2
