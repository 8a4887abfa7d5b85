"""Half an hour of everything at once: memory and file handles of the server, the service and the clients stay flat.

Only in full, and for as long as one likes:

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
from support.running_service import wait_until
from support.soak import FULL, PATIENCE, drawn, proportional, soaked  # noqa: F401 - a fixture

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import ImageError, PromptError
from triton_sam.local_server.ports import choose_ports

MINUTES = float(os.environ.get("TRITON_SAM_SOAK_MINUTES", "30"))
SAMPLE_SECONDS = 5.0
PICTURES = 60
"""More than the server's cache holds."""
GROWTH, SPARE_BYTES, SPARE_HANDLES = 1.05, 16 << 20, 8
"""Between the second and the last third of the run, medians may grow by so much."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(not FULL, reason="half an hour: TRITON_SAM_SOAK=full"),
]


@pytest.fixture(scope="module")
def service(soaked):
    """A service in a process of its own."""
    port = choose_ports("127.0.0.1", {"service": 0})["service"]
    command = [sys.executable, "-m", "triton_sam", "service", "--url", soaked.grpc_url, "--port", str(port)]
    process = subprocess.Popen([*command, "--timeout", str(PATIENCE)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def answers():
        assert process.poll() is None, "the service has ended"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health").status_code == 200

    try:
        wait_until(answers, PATIENCE)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(60)


def clicks(url, count):
    """A person with the sync client: pictures and clicks, mistakes too; now and then the program starts anew."""
    for turn in itertools.count():
        with SAM2TritonClient(url, timeout=PATIENCE) as client:
            for number in range(20):
                client.set_image(drawn((20 * turn + number) % PICTURES))
                client.predict([[60.0, 50.0]])
                client.segment([[20.0, 30.0]], logits=False)
                yield count("clicks", 2)
                for error, mistake in (
                    (ImageError, lambda: client.set_image(b"no picture")),
                    (PromptError, lambda: client.predict([[float("nan"), 1.0]])),
                ):
                    with pytest.raises(error):
                        mistake()
                    yield count("mistakes")


def moves(url, count):
    """A mouse over a picture, with the async client: most positions are replaced before they are sent."""

    async def move(client):
        tasks = [(await client.predict_async([[5.0 + n, 40.0]], session_id="mouse"))[1] for n in range(20)]
        client.cancel_session_requests("mouse")
        await asyncio.wait(tasks)
        return tasks[-1].result()

    for turn in itertools.count():
        with SpeculativeSAM2Client(url, timeout=PATIENCE) as client:
            for number in range(20):
                client.set_image(drawn((7 * turn + number) % PICTURES))
                asyncio.run(move(client))
                yield count("positions", 20)


def visits(url, count):
    """Somebody who works with the service: uploads, masks, mistakes."""
    for turn in itertools.count():
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            for number in range(20):
                content = drawn((11 * turn + number) % PICTURES)
                answer = http.post("/v1/images", files={"image": ("picture.png", content)})
                assert answer.status_code == 201, answer.text
                where = f"/v1/images/{answer.json()['id']}/segment"
                for body, status in (({"points": [[60, 50]]}, 200), ({"points": "here"}, 422)):
                    assert http.post(where, json=body).status_code == status
                yield count("service requests", 3)


class Watch:
    """Memory and open files of groups of processes, every few seconds."""

    def __init__(self, groups):
        self._groups = groups
        self.samples = {name: [] for name in groups}

    def look(self):
        for name, pid in self._groups.items():
            process = psutil.Process(pid)
            family = [process] if pid == os.getpid() else [process, *process.children(recursive=True)]
            self.samples[name].append((proportional(family), sum(each.num_fds() for each in family)))

    def thirds(self, name, figure):
        """Medians of the second and the last third."""
        values = [sample[figure] for sample in self.samples[name]]
        third = len(values) // 3
        return statistics.median(values[third : 2 * third]), statistics.median(values[-third:])


def test_memory_and_file_handles_stay_flat(soaked, service):
    url, pid = service
    watch = Watch({"server": soaked.pid, "service": pid, "clients": os.getpid()})
    done, stop = Counter(), threading.Event()

    def count(what, number=1):
        done[what] += number

    def keep_on(steps):
        for _ in steps:
            if stop.is_set():
                return

    people = [
        clicks(soaked.http_url, count),
        clicks(soaked.grpc_url, count),
        moves(soaked.http_url, count),
        moves(soaked.grpc_url, count),
        visits(url, count),
    ]
    with ThreadPoolExecutor(len(people)) as pool:
        jobs = [pool.submit(keep_on, steps) for steps in people]
        for _ in range(
            int(60 * MINUTES / SAMPLE_SECONDS)
        ):  # not by a clock, which goes on while a machine stands still
            if any(job.done() for job in jobs):
                break
            watch.look()
            if len(watch.samples["server"]) % 24 == 0:
                print(f"\n{dict(done)}, { ({name: found[-1] for name, found in watch.samples.items()}) }", flush=True)
            stop.wait(SAMPLE_SECONDS)
        stop.set()
        for job in jobs:
            job.result()
    for name in watch.samples:
        (before, after), handles = watch.thirds(name, 0), watch.thirds(name, 1)
        print(
            f"\n{name}, medians of the second and the last third of {MINUTES:g} minutes: memory"
            f" {before / 2**20:.0f} -> {after / 2**20:.0f} MiB, file handles {handles[0]:.0f} -> {handles[1]:.0f}"
        )
        assert after <= GROWTH * before + SPARE_BYTES
        assert handles[1] <= handles[0] + SPARE_HANDLES
    print(f"\n{dict(done)}, no other error")
