"""Videos on a real Triton with the toy models: both clients and protocols, a killed process, a service.

test/unit/sessions/video and test/unit/client/video test refusals, lost sessions and their restoration.
"""

import asyncio
import io
import statistics

import numpy as np
import pytest
from PIL import Image
from support.conditions import PATIENCE, eventually, wait_until
from support.custom_metrics import Scrape
from support.session_requests import inferences
from support.toy_server import VIDEO

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.masks.rle import rle_to_mask

pytestmark = pytest.mark.slow

from support.processes import family_of, kill_model, server_memory  # noqa: E402

COUNT = 12


LONG, SETTLED = 600, 140
"""Frames of the long stream, and frames until its memory is compared: a stream keeps the outputs of 128 frames."""


def drawn(index):
    """A bright disc that moves over noise."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:90, :120]
    frame = rng.integers(0, 80, (90, 120, 3)).astype(np.uint8)
    x, y = rng.uniform(20, 100), rng.uniform(20, 70)
    frame[(rows - y) ** 2 + (columns - (x - 1.3 * index) % 120) ** 2 < 150] = (230, 180, 60)
    return frame


FRAMES = [drawn(index) for index in range(COUNT)]


def prompt(video):
    return video.add(2, 1, points=[[22, 40]]), video.add(4, 5, box=[10, 20, 50, 60])


def values(segments):
    return {id_: (segment.mask.tobytes(), segment.logits.tobytes()) for id_, segment in segments.items()}


@pytest.fixture(scope="module")
def undisturbed(server):
    """All masks, tracked without a disturbance."""
    with SAM2VideoClient(server.http_url) as client, client.open(FRAMES) as video:
        prompt(video)
        passed = [(frame, values(segments)) for frame, segments in video.propagate(start=0)]
        assert video.restored == 0
    assert len({value for _, found in passed for value in found.values()}) == 2 * COUNT
    return passed


def test_both_clients_give_the_same_masks(url, undisturbed):
    with SAM2VideoClient(url) as client, client.open(FRAMES) as video:
        prompt(video)
        assert [(frame, values(found)) for frame, found in video.propagate(start=0, count=6)] == undisturbed[:6]

    async def run():
        async with AsyncSAM2VideoClient(url, variant="sam2_none") as client:
            assert not await client.is_ready()
        async with AsyncSAM2VideoClient(url) as client, await client.open(FRAMES) as video:
            assert await client.is_ready()
            await video.add(2, 1, points=[[22, 40]])
            await video.add(4, 5, box=[10, 20, 50, 60])
            return [(frame, values(segments)) async for frame, segments in video.propagate(start=0, count=6)]

    assert asyncio.run(run()) == undisturbed[:6]


def test_masks_made_by_the_server_are_those_made_here(url):
    with SAM2VideoClient(url) as client, client.open(FRAMES[:6]) as video:
        video.add(2, 1, points=[[22, 40]])
        here = [segments[1].mask for _, segments in video.propagate()]
        there = [segments[1] for _, segments in video.propagate(logits=False)]
    assert all(segment.logits is None for segment in there)
    np.testing.assert_array_equal([segment.mask for segment in there], here)


def test_cancel_computes_at_most_one_more_frame(url, transport):
    with SAM2VideoClient(url) as client, client.open(FRAMES) as video:
        video.add(0, 1, points=[[22, 40]])
        before = inferences(transport, "sam2_memory_encoder")
        for frame, _ in video.propagate():
            if frame == 5:
                video.cancel()
        assert frame == 5
        wait_until(lambda: inferences(transport, "sam2_memory_encoder") - before in (6, 7))


def test_a_service_tracks_with_a_real_model(server, tmp_path):
    """Upload, prompt, track and download by `/v1/videos`: the masks are those of the client."""
    from support.clip import write_clip
    from support.running_service import POINT, running_service, track, upload

    file = write_clip(tmp_path / "clip.mp4", 8)
    with SAM2VideoClient(server.http_url) as client, client.open(file) as video:
        video.add(0, 1, points=POINT["points"])
        expected = {frame: segments[1].mask for frame, segments in video.propagate()}
    with running_service(server.grpc_url) as service:
        path = f"/v1/videos/{upload(service.http, file.read_bytes())['id']}"
        answer = service.http.post(f"{path}/prompts", json=POINT)
        assert answer.status_code == 200, answer.text
        found = track(service.http, path)
        masks = {data["frame"]: rle_to_mask(data["objects"][0]["rle"]) for name, data in found if name == "frame"}
        assert found[-1] == ("done", {"frames": 8, "cancelled": False})
        still = service.http.get(f"{path}/frames/3")
        assert Image.open(io.BytesIO(still.content)).size == (320, 240)
    assert sorted(masks) == sorted(expected)
    for frame, mask in masks.items():
        np.testing.assert_array_equal(mask, expected[frame])


@pytest.mark.alone
@pytest.mark.nightly
def test_memory_and_open_files_stay_flat_over_a_long_stream(server):
    """An embedding, a memory or a file kept for each frame would exceed the limits."""
    memory, files = [], []
    stream = (drawn(index) for index in range(LONG))
    with SAM2VideoClient(server.grpc_url, timeout=300) as client, client.open(stream) as video:
        video.add(0, 1, points=[[60, 45]])
        for frame, _ in video.propagate(logits=False):
            if frame >= SETTLED and frame % 10 == 9:
                memory.append(server_memory(server.pid))
                files.append(sum(process.num_fds() for process in family_of(server.pid)))
    assert frame == LONG - 1
    half = len(memory) // 2
    print(f"\nmemory {[size >> 20 for size in memory]} MiB, open files {files}")
    assert statistics.median(memory[half:]) <= 1.04 * statistics.median(memory[:half])
    assert statistics.median(files[half:]) <= statistics.median(files[:half]) + 5


def test_killing_the_process_in_the_middle_changes_no_mask(server, undisturbed):
    passed = []
    with SAM2VideoClient(server.grpc_url, timeout=PATIENCE, retries=60) as client, client.open(FRAMES) as video:
        prompt(video)
        for index, segments in video.propagate(start=0):
            passed.append((index, values(segments)))
            if index == 3:
                kill_model(server.pid, VIDEO)
        assert video.restored >= 1
    assert passed == undisturbed
    eventually(lambda: Scrape(server.metrics_url).total("triton_sam_restarts_total", model="sam2") == server.restarts)
