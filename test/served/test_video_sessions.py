"""Many sessions and many frames on a real Triton, and a service over it."""

import concurrent.futures
import io
import os
import shutil
import statistics
import time

import numpy as np
import pytest
from PIL import Image
from support.session_requests import metrics
from support.soak import total_memory

from triton_sam import SAM2VideoClient
from triton_sam._common.bundle import bundled
from triton_sam.errors import PromptError, ServerBusyError
from triton_sam.masks.rle import rle_to_mask

# The export of the models takes most of a minute.
pytestmark = [pytest.mark.export, pytest.mark.slow]
psutil = pytest.importorskip("psutil")
SESSIONS, FRAMES_EACH = 32, 3
SETTLED, LONG, BLOCK = 200, 10_000 if os.environ.get("TRITON_SAM_SOAK") == "full" else 1000, 100
"""Frames until memory is compared, all frames of the long session, and the frames of one median."""
GROWTH = 1.01
OBJECTS, TRACKED_OBJECTS = 1000, 64
IDLE_SECONDS = 2


def drawn(seed, index):
    """A bright disc that moves over noise. Each seed has a place and a direction of its own."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:90, :120]
    frame = rng.integers(0, 80, (90, 120, 3)).astype(np.uint8)
    x, y = rng.uniform(20, 100), rng.uniform(20, 70)
    x += (1.3 if seed % 2 else -1.3) * index
    frame[(rows - y) ** 2 + (columns - x % 120) ** 2 < 150] = (230, 180, 60)
    return frame


def tracked(url, seed):
    """Track one object through a clip of its own; return all logits, as bytes, and scores."""
    frames = [drawn(seed, index) for index in range(FRAMES_EACH)]
    with SAM2VideoClient(url, timeout=300) as client, client.open(frames) as video:
        video.add(0, 1 + seed, points=[[20 + 2 * seed, 45]])
        passed = [segments[1 + seed] for _, segments in video.propagate()]
        return [(segment.logits.tobytes(), segment.object_score) for segment in passed]


def test_32_sessions_at_once_equal_their_lone_runs(video_server):
    """Frames of the lone runs that are still in the cache may be met again; the memories of a session never are."""
    url = video_server.grpc_url
    with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
        together = list(pool.map(tracked, [url] * SESSIONS, range(SESSIONS)))
    alone = [tracked(url, seed) for seed in range(SESSIONS)]
    assert together == alone
    assert len({masks[-1] for masks in alone}) == SESSIONS  # so a mix-up would show


def test_the_33rd_session_is_refused(video_server):
    with SAM2VideoClient(video_server.http_url) as client:
        videos = [client.open([drawn(0, 0)]) for _ in range(SESSIONS)]
        try:
            with pytest.raises(ServerBusyError):
                client.open([drawn(0, 0)])
        finally:
            for video in videos:
                video.close()
        client.open([drawn(0, 0)]).close()


def test_1000_objects_are_refused_one_by_one_and_the_session_lives_on(video_server):
    with SAM2VideoClient(video_server.http_url) as client, client.open([drawn(0, 0), drawn(0, 1)]) as video:
        for object_id in range(1, OBJECTS + 1):
            point = [[5 + object_id % 110, 45]]
            if object_id <= TRACKED_OBJECTS:
                video.add(0, object_id, points=point, logits=False)
            else:
                with pytest.raises(PromptError, match="max_objects: a session may have at most 64 objects"):
                    video.add(0, object_id, points=point, logits=False)
        passed = dict(video.propagate(logits=False))
        assert [sorted(passed[frame]) for frame in (0, 1)] == [list(range(1, TRACKED_OBJECTS + 1))] * 2
        assert video.restored == 0


@pytest.fixture
def hasty_server(video_models, tmp_path):
    """A server that closes sessions soon."""
    local_server = pytest.importorskip("triton_sam.local_server")
    repository = tmp_path / "models"
    shutil.copytree(video_models.repository, repository)
    config = repository / "sam2_video" / "config.pbtxt"
    usual, hasty = (f'key: "idle_seconds" value {{ string_value: "{seconds}" }}' for seconds in (600, IDLE_SECONDS))
    assert usual in config.read_text()
    config.write_text(config.read_text().replace(usual, hasty))
    with local_server.LocalServer(repository) as server:
        yield server


def test_idle_sessions_are_gone_after_their_time(hasty_server):
    with SAM2VideoClient(hasty_server.http_url) as client, client.open([drawn(0, 0), drawn(0, 1)]) as video:
        video.add(0, 1, points=[[60, 45]])
        answered = time.monotonic()
        assert metrics(hasty_server, lambda figures: figures["sessions"] == 0)["sessions"] == 0
        assert time.monotonic() - answered > IDLE_SECONDS / 2  # the session counts as used until its answer leaves
        assert [frame for frame, _ in video.propagate()] == [0, 1]
        assert video.restored == 1


@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.timeout(900 if LONG == 1000 else 7200)
def test_memory_stays_flat_over_a_long_stream(video_server):
    """Memory of all processes of the server after 200 frames: the second half takes 1 % more than the first at most.

    Medians of 100 frames differ by up to 1.5 % in both directions.
    """
    process = psutil.Process(video_server.pid)
    processes = [process, *process.children(recursive=True)]
    samples = {}
    stream = (drawn(7, index) for index in range(LONG))
    with SAM2VideoClient(video_server.grpc_url, timeout=300) as client, client.open(stream, quality=90) as video:
        video.add(0, 1, points=[[60, 45]])
        for frame, _ in video.propagate(logits=False):
            if frame % 10 == 9:
                samples[frame] = total_memory(processes)
    assert max(samples) == LONG - 1
    blocks = [range(first, first + BLOCK) for first in range(SETTLED, LONG, BLOCK)]
    medians = [statistics.median(samples[frame] for frame in block if frame in samples) for block in blocks]
    print("MiB:", [round(median / 2**20) for median in medians])
    half = len(medians) // 2
    assert statistics.mean(medians[half:]) <= GROWTH * statistics.mean(medians[:half])


@pytest.fixture
def server_with_pair(video_models, tmp_path):
    """A server of the models for videos that has a decoder for images, too, without which a service is not ready."""
    local_server = pytest.importorskip("triton_sam.local_server")
    repository = tmp_path / "models"
    shutil.copytree(video_models.repository, repository)
    shutil.copytree(bundled("model_repository") / "sam2_decoder", repository / "sam2_decoder")
    with local_server.LocalServer(repository) as server:
        yield server


def test_a_service_tracks_with_a_real_model(server_with_pair, tmp_path):
    """Upload, prompt, track and download by `/v1/videos`: the masks are those of the client."""
    pytest.importorskip("fastapi")
    pytest.importorskip("av")
    from support.clip import write_clip
    from support.running_service import running_service
    from support.video_calls import POINT, track, upload

    file = write_clip(tmp_path / "clip.mp4", 8)
    with SAM2VideoClient(server_with_pair.http_url) as client, client.open(file) as video:
        video.add(0, 1, points=POINT["points"])
        expected = {frame: segments[1].mask for frame, segments in video.propagate()}
    with running_service(server_with_pair.grpc_url) as service:
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
