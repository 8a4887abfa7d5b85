"""An hour of all kinds of requests at once: memory and file handles of server, service and clients stay flat.

The test runs only if the long runs have their full length, and it takes the given number of minutes and clients:

    TRITON_SAM_SOAK=full TRITON_SAM_SOAK_MINUTES=60 TRITON_SAM_SOAK_CLIENTS=10 \\
        pytest -m slow -s test/slow/test_endurance.py
"""

import asyncio
import base64
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support import clip
from support.annotated import write_scenes
from support.large_images import draw, write_tiff
from support.running_service import ServiceProgram
from support.soak import CALL_TIMEOUT, FULL, draw_image, small_cache_server, total_memory  # noqa: F401 - a fixture

from triton_sam import SAM2TritonClient, SAM2VideoClient, SpeculativeSAM2Client, local_server
from triton_sam.errors import ImageError, PromptError

IMAGES = 60
"""Number of different images, more than the server's cache holds."""
VIDEO_FRAMES = 20
CLICK = (1600, 1000)
"""Pixel of the large image that users click."""


class PatientClient(httpx.Client):
    """A client of the service that repeats a request while the service is busy."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        while (answer := super().send(request, **options)).status_code == 503:
            time.sleep(float(answer.headers["Retry-After"]))
        return answer


def click_with_sync_client(url, count):
    """Simulate a user of the sync client, with images, clicks and mistakes. Every 20 images, a new client is used."""
    for turn in itertools.count():
        with SAM2TritonClient(url, timeout=CALL_TIMEOUT, busy="wait") as client:
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
        with SpeculativeSAM2Client(url, timeout=CALL_TIMEOUT, busy="wait") as client:
            for number in range(20):
                client.set_image(draw_image((7 * turn + number) % IMAGES))
                asyncio.run(move(client))
                yield count("positions", 20)


def call_service(url, count):
    """Simulate a client of the service, with uploads, masks and mistakes."""
    for turn in itertools.count():
        with PatientClient(base_url=url, timeout=CALL_TIMEOUT) as http:
            for number in range(20):
                content = draw_image((11 * turn + number) % IMAGES)
                answer = http.post("/v1/images", files={"image": ("image.png", content)})
                assert answer.status_code == 201, answer.text
                path = f"/v1/images/{answer.json()['id']}/segment"
                for body, status in (({"points": [[60, 50]]}, 200), ({"points": "here"}, 422)):
                    assert http.post(path, json=body).status_code == status
                yield count("service requests", 3)


def search_for_everything(url, count):
    """Simulate a user who searches for all objects, and sometimes cancels a search."""
    thresholds: dict[str, Any] = {"points_per_side": 4, "pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}

    class GivenUpError(Exception):
        pass

    def give_up(_):
        raise GivenUpError

    for turn in itertools.count():
        with SAM2TritonClient(url, timeout=CALL_TIMEOUT, busy="wait") as client:
            for number in range(20):
                content = draw_image((13 * turn + number) % IMAGES)
                assert client.everything(content, **thresholds)
                with pytest.raises(GivenUpError):
                    client.everything(content, progress=give_up, **thresholds)
                yield count("searches", 2)


def track_videos(url, count):
    """Simulate a user who tracks objects, each in a new session, with mistakes."""
    frames = [clip.image(index) for index in range(VIDEO_FRAMES)]
    while True:
        with SAM2VideoClient(url, timeout=CALL_TIMEOUT) as client:
            for _ in range(5):
                with client.open(frames) as video:
                    video.add(0, 1, points=[clip.START])
                    with pytest.raises(PromptError):
                        video.add(0, 2, points=[[float("nan"), 1.0]])
                    assert len(list(video.propagate(logits=False))) == VIDEO_FRAMES
                yield count("frames of videos", VIDEO_FRAMES)


def call_adapter(url, count):
    """Simulate a tool with Osam's protocol, with mistakes."""
    prompt = {"points": [[60, 50]], "point_labels": [1]}
    with PatientClient(base_url=url, timeout=CALL_TIMEOUT) as http:
        for turn in itertools.count():
            image = base64.b64encode(draw_image(17 * turn % IMAGES)).decode()
            for each, status in ((image, 200), ("no image", 422)):
                answer = http.post("/api/generate", json={"model": "sam2:latest", "image": each, "prompt": prompt})
                assert answer.status_code == status, answer.text
            yield count("adapter requests", 2)


def look_at_a_large_image(url, count):
    """Simulate a user who moves over a slide and clicks, with mistakes."""
    with PatientClient(base_url=url, timeout=CALL_TIMEOUT) as http:
        (listed,) = http.get("/v1/large").json()["images"]
        path = f"/v1/large/{listed['id']}"
        for turn in itertools.count():
            for place, status in ((f"{turn % 6}/{turn % 4}", 200), ("6/0", 404)):
                assert http.get(f"{path}/levels/0/tiles/{place}").status_code == status
            answer = http.post(f"{path}/segment", json={"points": [[CLICK[0] + turn % 40, CLICK[1]]], "format": "rle"})
            assert answer.status_code == 200, answer.text
            yield count("large image requests", 3)


def annotate_batches(url, count, scenes: Path, folder: Path):
    """Simulate nightly jobs, which annotate the scenes repeatedly, each time into a new folder."""
    for turn in itertools.count():
        out = folder / f"out{turn}"
        options = ["--with", "boxes", "--url", url, "--timeout", str(CALL_TIMEOUT), "--out", str(out), "-q"]
        subprocess.run([sys.executable, "-m", "triton_sam", "annotate", str(scenes), *options], check=True)
        number = len(json.loads((out / "coco.json").read_text(encoding="utf-8"))["annotations"])
        assert number
        yield count("annotations", number)


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
    """A service in a process of its own, with all adapters and one slide."""
    folder = tmp_path_factory.mktemp("service")
    slides = folder / "slides"
    slides.mkdir()
    write_tiff(slides / "slide.tif", draw([(1510, 905, 1700, 1300)]))
    options = ["--adapter", "all", "--large-images", str(slides), "--limits", f'{{"timeout": {CALL_TIMEOUT}}}']
    with ServiceProgram(small_cache_server.grpc_url, folder, *options) as running:
        yield running


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
    url = service.url
    servers = {"server": small_cache_server.pid, "video server": video_server.pid}
    resources = ResourceSamples({**servers, "service": service.process.pid, "clients": os.getpid()})
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
