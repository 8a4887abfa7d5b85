"""Attempts to stall or to bloat the service, at full size: another user hardly notices, and memory stays bounded."""

import signal
import time

import pytest
from support.attackers import upload

pytest.importorskip("fastapi")
from support.attacked_service import attacked_service

from triton_sam._common.bundle import bundled
from triton_sam.local_server import LocalServer

pytestmark = [pytest.mark.nightly, pytest.mark.alone, pytest.mark.timeout(600)]

HEALTH, CLICK = 0.5, 2.0
"""Seconds within which the service answers another user while it is attacked, on two cores without other work."""
ALLOWANCE = 4
"""How many times as long it may take here: other programs may use the cores, and some attacks stalled for minutes."""
MEMORY = 1_200_000_000
"""Bytes. Full-size masks alone may take 0.9 GB: 64 megapixels with 14 bytes each (work_megapixels)."""
AFTERWARDS = 5.0
"""Seconds after an attack until everything is as before."""
ATTACKS = [
    *(("keys", 10), ("allowed-keys", 10), ("points", 10), ("slow-bodies", 20)),
    *(("previews", 20), ("masks", 45), ("flood", 15), ("deaf", 40)),
]
STOP = 8.0
"""Seconds between SIGTERM and the end of the service."""


@pytest.fixture(scope="module")
def triton():
    """A server of this file alone, which ends before the large servers of the same process start."""
    with LocalServer(bundled("model_repository"), models=["sam2"]) as running:
        yield running


@pytest.mark.parametrize(("attack", "seconds"), ATTACKS)
def test_another_user_hardly_notices(triton, images, tmp_path, attack, seconds):
    with attacked_service(triton.grpc_url, tmp_path) as service:
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


def test_the_service_ends_soon_under_load(triton, tmp_path):
    with attacked_service(triton.grpc_url, tmp_path) as service, service.attack("masks", 40):
        time.sleep(15)
        service.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        service.process.wait(60)
        seconds = time.monotonic() - began
        print(f"\nSIGTERM: gone after {seconds:.1f} s")
        assert seconds < STOP * ALLOWANCE / 2
