"""Half an hour of all kinds of requests at once: memory and file handles of server, service and clients stay flat.

The test runs only if the long runs have their full length, and it takes the given number of minutes:

    TRITON_SAM_SOAK=full TRITON_SAM_SOAK_MINUTES=30 pytest -m slow -s test/slow/test_endurance.py
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from support.conditions import wait_until
from support.soak import CALL_TIMEOUT, FULL, draw_image, small_cache_server, total_memory  # noqa: F401 - a fixture

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import ImageError, PromptError
from triton_sam.local_server.ports import choose_ports

MINUTES = float(os.environ.get("TRITON_SAM_SOAK_MINUTES", "30"))
SAMPLE_SECONDS = 5.0
IMAGES = 60
"""Number of different images, more than the server's cache holds."""
GROWTH, SPARE_BYTES, SPARE_HANDLES = 1.05, 16 << 20, 8
"""The growth that is allowed between the medians of the second and of the last third of the run."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(not FULL, reason="takes half an hour: set TRITON_SAM_SOAK=full"),
]


@pytest.fixture(scope="module")
def service(small_cache_server):
    """The URL and the process id of a service in a process of its own."""
    port = choose_ports("127.0.0.1", {"service": 0})["service"]
    command = [sys.executable, "-m", "triton_sam", "service", "--url", small_cache_server.grpc_url, "--port", str(port)]
    process = subprocess.Popen([*command, "--timeout", str(CALL_TIMEOUT)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def answers():
        assert process.poll() is None, "the service has ended"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health").status_code == 200

    try:
        wait_until(answers, CALL_TIMEOUT)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(60)


def click_with_sync_client(url, count):
    """Simulate a user of the sync client, with images, clicks and mistakes. Every 20 images, a new client is used."""
    for turn in itertools.count():
        with SAM2TritonClient(url, timeout=CALL_TIMEOUT) as client:
            for number in range(20):
                client.set_image(draw_image((20 * turn + number) % IMAGES))
                client.predict([[60.0, 50.0]])
                client.segment([[20.0, 30.0]], logits=False)
                yield count("clicks", 2)
                for error, mistake in (
                    (ImageError, lambda: client.set_image(b"no image")),
                    (PromptError, lambda: client.predict([[float("nan"), 1.0]])),
                ):
                    with pytest.raises(error):
                        mistake()
                    yield count("mistakes")


def move_with_speculative_client(url, count):
    """Simulate a mouse that moves over images. Most of its positions are replaced before they are sent."""

    async def move(client):
        tasks = [(await client.predict_async([[5.0 + n, 40.0]], session_id="mouse"))[1] for n in range(20)]
        client.cancel_session_requests("mouse")
        await asyncio.wait(tasks)
        return tasks[-1].result()

    for turn in itertools.count():
        with SpeculativeSAM2Client(url, timeout=CALL_TIMEOUT) as client:
            for number in range(20):
                client.set_image(draw_image((7 * turn + number) % IMAGES))
                asyncio.run(move(client))
                yield count("positions", 20)


def call_service(url, count):
    """Simulate a client of the service, with uploads, masks and mistakes."""
    for turn in itertools.count():
        with httpx.Client(base_url=url, timeout=CALL_TIMEOUT) as http:
            for number in range(20):
                content = draw_image((11 * turn + number) % IMAGES)
                answer = http.post("/v1/images", files={"image": ("image.png", content)})
                assert answer.status_code == 201, answer.text
                path = f"/v1/images/{answer.json()['id']}/segment"
                for body, status in (({"points": [[60, 50]]}, 200), ({"points": "here"}, 422)):
                    assert http.post(path, json=body).status_code == status
                yield count("service requests", 3)


class ResourceSamples:
    """Samples of the memory and the open files of groups of processes.

    Args:
        groups: for each name, the id of a process. All processes except this one are sampled with their children.
    """

    def __init__(self, groups):
        self._groups = groups
        self.samples = {name: [] for name in groups}

    def sample(self):
        """Add a sample of each group."""
        for name, pid in self._groups.items():
            process = psutil.Process(pid)
            group = [process] if pid == os.getpid() else [process, *process.children(recursive=True)]
            self.samples[name].append((total_memory(group), sum(each.num_fds() for each in group)))

    def medians(self, name, index):
        """Return the medians of the second and of the last third; index 0 is the memory, 1 the open files."""
        values = [sample[index] for sample in self.samples[name]]
        third = len(values) // 3
        return statistics.median(values[third : 2 * third]), statistics.median(values[-third:])


def test_memory_and_file_handles_stay_flat(small_cache_server, service):
    url, pid = service
    resources = ResourceSamples({"server": small_cache_server.pid, "service": pid, "clients": os.getpid()})
    done, stop = Counter(), threading.Event()

    def count(kind, number=1):
        done[kind] += number

    def run_until_stop(steps):
        for _ in steps:
            if stop.is_set():
                return

    users = [
        click_with_sync_client(small_cache_server.http_url, count),
        click_with_sync_client(small_cache_server.grpc_url, count),
        move_with_speculative_client(small_cache_server.http_url, count),
        move_with_speculative_client(small_cache_server.grpc_url, count),
        call_service(url, count),
    ]
    with ThreadPoolExecutor(len(users)) as pool:
        jobs = [pool.submit(run_until_stop, steps) for steps in users]
        # The loop counts samples and not time, because a clock goes on while the machine is suspended.
        for _ in range(int(60 * MINUTES / SAMPLE_SECONDS)):
            if any(job.done() for job in jobs):
                break
            resources.sample()
            if len(resources.samples["server"]) % 24 == 0:
                print(
                    f"\n{dict(done)}, { ({name: samples[-1] for name, samples in resources.samples.items()}) }",
                    flush=True,
                )
            stop.wait(SAMPLE_SECONDS)
        stop.set()
        for job in jobs:
            job.result()
    for name in resources.samples:
        (before, after), handles = resources.medians(name, 0), resources.medians(name, 1)
        print(
            f"\n{name}, medians of the second and the last third of {MINUTES:g} minutes: memory"
            f" {before / 2**20:.0f} -> {after / 2**20:.0f} MiB, file handles {handles[0]:.0f} -> {handles[1]:.0f}"
        )
        assert after <= GROWTH * before + SPARE_BYTES
        assert handles[1] <= handles[0] + SPARE_HANDLES
    print(f"\n{dict(done)}, no other error")
