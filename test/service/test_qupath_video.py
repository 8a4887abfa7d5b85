"""QuPath's stacks and time series, with a video client that moves discs, and a client that finds drawn shapes."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import clip
from support.conditions import wait_until
from support.fake_clients import service_with_fakes, shapes
from support.tools import base64_of, geojson_mask, near

from triton_sam.masks import mask_to_box

COUNT = 12
X, Y = clip.START
POINT = {"obj_id": 0, "point_coords": [[X, Y]], "point_labels": [1]}


FAKES = {
    "words": True,
    "adapters": ("qupath", "x-anylabeling"),
    "max_videos": 3,
    "max_video_frames": 12,
    "video_idle_seconds": 60,
}


def send(http, name, numbers):
    """Upload frames as QuPath does: several at a time, with names of one width."""

    def upload(number):
        content = ("file", (f"{number:02d}.jpg", clip.png(number), "image/jpeg"))
        answer = http.post("/sam/upload/", data={"dirname": name}, files=[content])
        assert (answer.status_code, answer.json()) == (200, {"filename": f"{number:02d}.jpg"}), answer.text

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upload, numbers))


def follow(http, path="video", status=200, **members):
    answer = http.post(f"/sam/{path}/", json={"type": "sam2_t", **members})
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["detail"]


def places(running):
    budgets = running.service.app.state.engine.budgets
    return budgets.videos.used, budgets.video_bytes.used


def test_a_series_that_is_uploaded_frame_by_frame(running, http):
    send(http, "series", [0, *reversed(range(COUNT))])  # a frame that comes again replaces the first one
    body = {"axes": "XYT", "plane_position": 2, "start_frame_idx": 0, "max_frame_num_to_track": None}
    found = follow(http, dirname="series", objs={"0": [POINT]}, **body)
    assert [each["geometry"]["plane"] for each in found] == [{"c": -1, "z": 2, "t": frame} for frame in range(COUNT)]
    assert {each["properties"]["object_idx"] for each in found} == {0}
    for frame, each in enumerate(found):
        assert near(geojson_mask(each, (clip.HEIGHT, clip.WIDTH)), clip.disc(frame))
    wait_until(lambda: places(running) == (0, 0))
    assert "upload" in follow(http, dirname="series", objs={"0": [POINT]}, status=404)


def test_a_stack_of_images_in_base64(running, http):
    boxed = {"obj_id": 7, "bbox": [X - 30, Y - 30, X + 30, Y + 30]}
    images = [base64_of(clip.png(frame)) for frame in range(6)]
    found = follow(http, b64imgs=images, axes="XYZ", objs={"2": [boxed], "3": [POINT]}, max_frame_num_to_track=2)
    assert [(each["geometry"]["plane"]["z"], each["properties"]["object_idx"]) for each in found] == [
        *((frame, number) for frame in (2, 3, 4) for number in (0, 7))
    ]
    assert running.tracker.videos[-1].prompts[8][2]["box"] == boxed["bbox"]
    wait_until(lambda: places(running) == (0, 0))


def test_uploads_that_cannot_be_kept(running, http):
    for fields, name in (({}, "other"), ({"dirname": "x"}, "other"), ({"dirname": "x" * 300}, "file")):
        answer = http.post("/sam/upload/", data=fields, files={name: ("0.jpg", b"x")})
        assert answer.status_code == 422
        assert "name" in answer.json()["detail"]
    assert http.post("/sam/upload/", json={}).status_code == 415
    assert places(running) == (0, 0)


def test_too_many_folders_and_frames_are_refused(running, http):
    for name in ("a", "b", "c"):
        send(http, name, range(COUNT))
    for name, status, words in (("d", 503, "videos"), ("a", 413, "12 frames")):
        answer = http.post("/sam/upload/", data={"dirname": name}, files={"file": ("99.jpg", clip.png(0))})
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
    for name in ("a", "b", "c"):
        follow(http, dirname=name, objs={"0": [POINT]})
    wait_until(lambda: places(running) == (0, 0))


@pytest.fixture(scope="module")
def scene(images):
    return base64.b64encode((images / "shapes.jpg").read_bytes()).decode()


def test_words_are_followed_through_a_series(http, running, scene):
    objs = {"0": [{"obj_id": 3, "text": "cell", "boxes_xywh": [[10, 20, 30, 40]], "box_labels": [1]}]}
    found = follow(http, "sam3video", type="sam3", b64imgs=[scene] * 3, objs=objs)
    count = len(found) // 3
    assert [each["geometry"]["plane"]["t"] for each in found] == sorted([0, 1, 2] * count)
    assert {each["properties"]["object_idx"] for each in found} == {3}
    for each, mask in zip(found[:count], shapes(), strict=False):
        assert near(geojson_mask(each, mask.shape), mask)
    query, image, _ = running.words.asked[-1]
    assert query.texts == ("cell",)
    assert query.boxes.tolist() == [[10, 20, 40, 60]]
    assert image == base64.b64decode(scene)


def test_words_in_a_later_frame_find_new_objects_only(http, scene):
    """The same objects are found again in frame 1, where the tracker knows them."""
    first = follow(http, "sam3video", b64imgs=[scene] * 2, objs={"0": [{"text": "cell"}]})
    both = follow(http, "sam3video", b64imgs=[scene] * 2, objs={"0": [{"text": "cell"}], "1": [{"text": "cell"}]})
    assert len(both) == len(first)
    other = follow(http, "sam3video", b64imgs=[scene] * 2, objs={"0": [{"text": "cell"}], "1": [{"text": "dog"}]})
    assert len(other) > len(first)
    assert follow(http, "sam3video", b64imgs=[scene], objs={"0": [{"text": "nothing"}]}) == []


def test_x_anylabeling_follows_words(http, scene):
    root = "/x-anylabeling/v1/video"

    def post(path, body):
        answer = http.post(f"{root}/{path}", json={"model": "sam2-video", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    models = http.get("/x-anylabeling/v1/models").json()["data"]
    assert "edit_text" in {widget["name"] for widget in models["sam2-video"]["widgets"]}
    assert "sam3-video" not in models
    session = post("init", {"frames": [scene] * 2})["session_id"]
    prompt = {"session_id": session, "frame_index": 0, "params": {"conf_threshold": 0.7}}
    found = post("prompt", {**prompt, "text_prompt": "cell, nothing."})["masks"]
    assert [each["label"] for each in found] == ["cell"] * len(found)
    assert [each["score"] for each in found] == [0.95, 0.8]
    assert [each["group_id"] for each in found] == [1, 2]
    x1, y1, x2, y2 = mask_to_box(shapes()[0])
    across, down = np.transpose(found[0]["points"])
    assert np.allclose([across.min(), down.min(), across.max(), down.max()], [x1, y1, x2, y2], atol=2)
    followed = http.post(f"{root}/propagate/stream", json={"model": "sam2-video", "session_id": session})
    results = json.loads(followed.text.strip().rpartition("data: ")[2])["results"]
    assert [(each["label"], each["group_id"]) for each in results["1"]["masks"]] == [("cell", 1), ("cell", 2)]
    again = post("prompt", {**prompt, "text_prompt": "dog"})["masks"]
    assert {each["label"] for each in again} == {"dog"}
    post(f"cleanup/{session}", {})


def test_a_frame_that_is_sent_again_counts_once():
    with service_with_fakes(adapters=("qupath",), max_video=3000, video_bytes=3000) as fakes:
        for number in range(10):
            frame = ("file", ("0.png", clip.png(number), "image/png"))
            assert fakes.service.http.post("/sam/upload/", data={"dirname": "d"}, files=[frame]).status_code == 200
