"""Label Studio's events for videos, with a video client that moves discs."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
from support import clip
from support.conditions import wait_until
from support.fake_video_client import service_with_videos
from support.running_service import running_service

from triton_sam import SAM2TritonClient
from triton_sam.errors import InferenceError
from triton_sam.service.adapters import label_studio_video
from triton_sam.service.videos.store import Videos

CONFIG = """<View><Video name="video" value="$clip"/><Labels name="labels" toName="video"><Label value="ball"/></Labels>
<VideoRectangle name="box" toName="video"/></View>"""
X, Y = clip.START


@pytest.fixture(scope="module")
def address(mp4):
    return f"data:video/mp4;base64,{base64.b64encode(mp4).decode()}"


@pytest.fixture(scope="module")
def running():
    with service_with_videos(adapters=("label-studio",)) as running:
        yield running


@pytest.fixture
def ask(running, address):
    service, client = running

    def ask(event, task=1, result=(), status=200, **members):
        context = {"event": event, "result": list(result), **members}
        tasks = [{"id": task, "data": {"clip": address}}]
        body = {"tasks": tasks, "label_config": CONFIG, "params": {"context": context}}
        answer = service.http.post("/label-studio/predict", json=body)
        assert answer.status_code == status, answer.text
        if status != 200:
            return answer.text
        [found] = answer.json()["results"][0]["result"] or [None]
        return found

    yield ask
    client.seconds, client.failure = 0.0, None
    for task in (1, 2):
        ask("release", task)


def point(x, y, positive=True):
    value = {"x": 100 * x / clip.WIDTH, "y": 100 * y / clip.HEIGHT, "positive": positive}
    return {"type": "keypointlabels", "value": value}


def masks(frames):
    found = {}
    for each in frames:
        content = base64.b64decode(each["imageDataURL"].partition(",")[2])
        with Image.open(io.BytesIO(content)) as image:
            found[each["frame"]] = np.asarray(image) > 0
        assert (each["width"], each["height"]) == (clip.WIDTH, clip.HEIGHT)
        assert each["time_ms"] == pytest.approx(each["frame"] * 1000 / clip.RATE)
    return found


def all_frames(ask, session, task=1):
    frames, order = [], []
    while True:
        value = ask("track_progress", task, session_id=session)["value"]
        frames += value["frames"]
        order += [each["frame"] for each in value["frames"]]
        assert value["produced"] == len(frames)
        if value["done"]:
            return masks(frames), order, value


def test_capabilities_name_the_controls_of_videos(ask):
    found = ask("capabilities")
    assert found["type"] == "capabilities"
    assert [each["tag"] for each in found["value"]["targets"]] == ["VideoRectangle", "VideoVectorLabels"]
    assert found["value"]["prompts"] == ["point", "box"]


@pytest.mark.parametrize("place", [{"frame": 6}, {"time_ms": 5 * 1000 / clip.RATE + 2, "frame": 1}])
def test_tracking_from_the_frame_on_the_screen(ask, place):
    started = ask("track", result=[point(X, Y)], direction="forward", max_frames=9, **place)
    assert (started["type"], started["from_name"], started["to_name"]) == ("track_started", "box", "video")
    value = started["value"]
    assert (value["total_frames"], value["fps"], value["duration_ms"]) == (10, clip.RATE, 2000)
    found, order, last = all_frames(ask, value["session_id"])
    assert (order, last["total"], last["error"]) == (list(range(5, 15)), 10, None)
    assert all(np.array_equal(mask, clip.disc(frame - 5)) for frame, mask in found.items())


def test_both_directions_tell_the_first_frame_once(ask):
    box = {"type": "rectanglelabels", "value": {"x": 40, "y": 40, "width": 20, "height": 20}}
    value = ask("track", result=[box], direction="both", frame=5, max_duration_ms=3 * 1000 / clip.RATE)["value"]
    _, order, _ = all_frames(ask, value["session_id"])
    assert order == [4, 5, 6, 7, 3, 2, 1]
    assert value["total_frames"] == len(order)


def test_a_second_tracking_of_a_video_is_told_to_wait(ask, running):
    running[1].seconds = 0.05
    first = ask("track", result=[point(X, Y)], frame=1)["value"]["session_id"]
    assert ask("track", result=[point(X, Y)], frame=1)["type"] == "track_busy"
    other = ask("track", 2, result=[point(X, Y)], frame=1, max_frames=2)  # the same video in another task
    assert other["type"] == "track_started"
    assert ask("track_cancel", 2, session_id=first)["value"]["status"] == "not_found"  # of another task
    assert ask("track_cancel", session_id=first)["value"]["status"] == "cancelled"
    assert ask("track_cancel", session_id=first)["value"]["status"] == "not_found"
    assert ask("track", result=[point(X, Y)], frame=1, max_frames=1)["type"] == "track_started"


def test_the_video_of_a_task_is_kept_until_it_is_released(ask, running):
    service, client = running
    before = len(service.app.state.videos)
    for _ in range(2):
        value = ask("track", result=[point(X, Y)], frame=1, max_frames=1)["value"]
        all_frames(ask, value["session_id"])
    assert len(service.app.state.videos) == before + 1
    assert ask("release")["value"] == {"status": "released"}
    assert len(service.app.state.videos) == before
    assert client.videos[-1].is_closed
    lost = ask("track_progress", session_id=value["session_id"])["value"]
    assert (lost["done"], "track the object again" in lost["error"]) == (True, True)


def test_tracking_that_nobody_asks_about_ends(ask, running, monkeypatch):
    monkeypatch.setattr(label_studio_video, "IDLE_SECONDS", 0.1)
    running[1].seconds = 0.02
    session = ask("track", result=[point(X, Y)], frame=1)["value"]["session_id"]
    [video] = running[0].app.state.videos._videos.values()
    wait_until(lambda: not video.tracking.is_tracking)
    assert ask("track_progress", session_id=session)["value"]["done"]


def test_a_failure_is_the_last_answer(ask, running):
    running[1].failure = InferenceError("no luck")
    session = ask("track", result=[point(X, Y)], frame=1)["value"]["session_id"]
    found, _, last = all_frames(ask, session)
    assert (found, last["error"]) == ({}, "no luck")


def test_events_that_cannot_be_used(ask):
    assert "choose one of" in ask("dance", status=422)
    assert "at least one point" in ask("track", status=422)
    assert "max_frames" in ask("track", result=[point(X, Y)], max_frames="many", status=422)
    assert ask("predict") is None


def test_events_of_setups_without_a_video_change_nothing(running):
    setup = '<View><Image name="i" value="$image"/><BrushLabels name="b" toName="i"/></View>'
    context = {"event": "prewarm", "frame": 1}
    body = {"tasks": [{"id": 1, "data": {}}], "label_config": setup, "params": {"context": context}}
    answer = running[0].http.post("/label-studio/predict", json=body)
    assert (answer.status_code, answer.json()) == (200, {"results": []})


def test_single_frames_have_the_mask_of_the_client(service_triton, address, monkeypatch, mp4):
    monkeypatch.setattr(Videos, "pair", lambda videos, name: videos._engine.pair(name))  # there is no video model here
    with running_service(service_triton.grpc_url, adapters=("label-studio",)) as running:
        context = {"event": "prewarm", "frame": 3, "window": 5, "direction": "forward"}
        body = {"tasks": [{"id": 1, "data": {"clip": address}}], "label_config": CONFIG, "params": {"context": context}}
        [warmed] = running.http.post("/label-studio/predict", json=body).json()["results"][0]["result"]
        assert warmed["value"] == {"status": "ok", "cached": [2], "pending": [], "frame_count": clip.FRAMES}
        context.update(event="predict", result=[point(72, 120), point(200, 20, positive=False)])
        [found] = running.http.post("/label-studio/predict", json=body).json()["results"][0]["result"]
        uploaded = running.http.post("/v1/videos", files={"video": ("clip.mp4", mp4)}).json()
        frame = running.http.get(f"/v1/videos/{uploaded['id']}/frames/2").content
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(frame)
        expected = client.segment([[72, 120], [200, 20]], [1, 0])[0].mask
    content = base64.b64decode(found["value"]["imageDataURL"].partition(",")[2])
    with Image.open(io.BytesIO(content)) as image:
        assert np.array_equal(np.asarray(image) > 0, expected)
    assert found["type"] == "bitmask"
