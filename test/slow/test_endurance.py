"""An hour of all kinds of requests at once: memory and file handles of server, service and clients stay flat.

The test runs only if the long runs have their full length, and it takes the given number of minutes and clients:

    TRITON_SAM_SOAK=full TRITON_SAM_SOAK_MINUTES=60 TRITON_SAM_SOAK_CLIENTS=10 \\
        pytest -m slow -s test/slow/test_endurance.py
"""

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
from support.drawn_data_set import write_scenes
from support.large_images import draw, write_tiff
from support.soak import CALL_TIMEOUT, FULL, small_cache_server, total_memory  # noqa: F401 - a fixture
from support.soak_users import (
    annotate_batches,
    call_adapter,
    call_service,
    click_with_sync_client,
    look_at_a_large_image,
    move_with_speculative_client,
    search_for_everything,
    track_videos,
)

from triton_sam import local_server
from triton_sam.local_server.ports import choose_ports

MINUTES = float(os.environ.get("TRITON_SAM_SOAK_MINUTES", "60"))
CLIENTS = int(os.environ.get("TRITON_SAM_SOAK_CLIENTS", "10"))
SAMPLE_SECONDS = 5.0
GROWTH, SPARE_BYTES, SPARE_HANDLES = 1.05, 16 << 20, 8
"""The growth that is allowed between the medians of the second and of the last third of the run."""

pytestmark = [
    pytest.mark.export,
    pytest.mark.slow,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(not FULL, reason="takes an hour: set TRITON_SAM_SOAK=full"),
]


@pytest.fixture(scope="module")
def video_server(video_models, tmp_path_factory):
    """A server of the models for videos."""
    log = tmp_path_factory.mktemp("video") / "server.log"
    with local_server.LocalServer(video_models.repository, log_file=log) as running:
        yield running


@pytest.fixture(scope="module")
def service(small_cache_server, tmp_path_factory):
    """The URL and the process id of a service in a process of its own, with all adapters and one slide."""
    slides = tmp_path_factory.mktemp("slides")
    write_tiff(slides / "slide.tif", draw([(1510, 905, 1700, 1300)]))
    port = choose_ports("127.0.0.1", {"service": 0})["service"]
    command = [sys.executable, "-m", "triton_sam", "service", "--url", small_cache_server.grpc_url, "--port", str(port)]
    command += ["--adapter", "all", "--large-images", str(slides), "--limits", f'{{"timeout": {CALL_TIMEOUT}}}']
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
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


def test_memory_and_file_handles_stay_flat(small_cache_server, video_server, service, tmp_path):
    url, pid = service
    servers = {"server": small_cache_server.pid, "video server": video_server.pid}
    resources = ResourceSamples({**servers, "service": pid, "clients": os.getpid()})
    done, stop = Counter(), threading.Event()

    def count(kind, number=1):
        done[kind] += number

    def run_until_stop(steps):
        for _ in steps:
            if stop.is_set():
                return

    grpc_url = small_cache_server.grpc_url
    kinds = [
        lambda: click_with_sync_client(small_cache_server.http_url, count),
        lambda: click_with_sync_client(grpc_url, count),
        lambda: move_with_speculative_client(small_cache_server.http_url, count),
        lambda: move_with_speculative_client(grpc_url, count),
        lambda: call_service(url, count),
        lambda: call_adapter(url, count),
        lambda: look_at_a_large_image(url, count),
        lambda: search_for_everything(grpc_url, count),
        lambda: track_videos(video_server.grpc_url, count),
    ]
    scenes = write_scenes(tmp_path / "scenes", 5)
    users = [
        annotate_batches(small_cache_server.http_url, count, scenes, tmp_path),
        *(kind() for kind in itertools.islice(itertools.cycle(kinds), CLIENTS - 1)),
    ]
    with ThreadPoolExecutor(len(users)) as pool:
        jobs = [pool.submit(run_until_stop, steps) for steps in users]
        try:
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
        finally:
            stop.set()  # also after Ctrl-C, or the pool waits for ever
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
    restarts = small_cache_server.restarts + video_server.restarts
    print(f"\n{dict(done)}, restarts of the servers: {restarts}, no other error")
