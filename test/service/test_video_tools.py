"""QuPath's stacks and time series, and X-AnyLabeling's video models, over a real video model in this process."""

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import ExifTags, Image
from support import clip
from support.conditions import wait_until
from support.drawn_server import SCORES, drawn_service, let_go_on, propagation_of, shapes
from support.tools import base64_of, filled_each, geojson_mask, near

from triton_sam._common import strict_json
from triton_sam.masks import mask_to_box
from triton_sam.wire import contract

X, Y = clip.START
SERVICE = {
    "words": True,
    "adapters": ("qupath", "x-anylabeling"),
    "max_videos": 3,
    "max_video_frames": 12,
    "video_idle_seconds": 60,
}


@pytest.fixture(scope="module")
def scene(images):
    return base64.b64encode((images / "shapes.jpg").read_bytes()).decode()


# --- QuPath ----------------------------------------------------------------------------------------------------------

LONGEST = 12
POINT = {"obj_id": 0, "point_coords": [[X, Y]], "point_labels": [1]}


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
    send(http, "series", [0, *reversed(range(LONGEST))])  # a frame that comes again replaces the first one
    body = {"axes": "XYT", "plane_position": 2, "start_frame_idx": 0, "max_frame_num_to_track": None}
    found = follow(http, dirname="series", objs={"0": [POINT]}, **body)
    assert [each["geometry"]["plane"] for each in found] == [{"c": -1, "z": 2, "t": frame} for frame in range(LONGEST)]
    assert {each["properties"]["object_idx"] for each in found} == {0}
    for frame, each in enumerate(found):
        assert near(geojson_mask(each, (clip.HEIGHT, clip.WIDTH)), clip.disc(frame))
    wait_until(lambda: places(running) == (0, 0))
    assert "upload" in follow(http, dirname="series", objs={"0": [POINT]}, status=404)


def test_a_stack_of_images_in_base64(running, http):
    boxed = {"obj_id": 7, "bbox": [X - 30, Y - 30, X + 30, Y + 30]}
    images = [base64_of(clip.png(frame)) for frame in range(6)]
    found = follow(http, b64imgs=images, axes="XYZ", objs={"2": [boxed], "3": [POINT]}, max_frame_num_to_track=2)
    assert sorted((each["geometry"]["plane"]["z"], each["properties"]["object_idx"]) for each in found) == [
        *((frame, number) for frame in (2, 3, 4) for number in (0, 7))
    ]
    of_box = next(each for each in found if each["properties"]["object_idx"] == 7)
    assert near(geojson_mask(of_box, (clip.HEIGHT, clip.WIDTH)), clip.disc(0))
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
        send(http, name, range(LONGEST))
    for name, status, words in (("d", 503, "videos"), ("a", 413, "12 frames")):
        answer = http.post("/sam/upload/", data={"dirname": name}, files={"file": ("99.jpg", clip.png(0))})
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
    for name in ("a", "b", "c"):
        follow(http, dirname=name, objs={"0": [POINT]})
    wait_until(lambda: places(running) == (0, 0))


def test_words_are_followed_through_a_series(http, running, scene):
    objs = {"0": [{"obj_id": 3, "text": "cell", "boxes_xywh": [[10, 20, 30, 40]], "box_labels": [1]}]}
    found = follow(http, "sam3video", type="sam3", b64imgs=[scene] * 3, objs=objs)
    count = len(found) // 3
    assert [each["geometry"]["plane"]["t"] for each in found] == sorted([0, 1, 2] * count)
    assert {each["properties"]["object_idx"] for each in found} == {3}
    for each, mask in zip(found[:count], shapes(), strict=False):
        assert near(geojson_mask(each, mask.shape), mask, 4)
    query = running.server.queries()[-1]
    assert query.texts == ("cell",)
    assert query.boxes.tolist() == [[10, 20, 40, 60]]
    searched = [each.inputs[contract.IMAGE][0] for each in running.server.requests if contract.FIND in each.inputs]
    assert searched == [base64.b64decode(scene)]


def test_words_in_a_later_frame_find_new_objects_only(http, scene):
    """The same objects are found again in frame 1, where the tracker knows them."""
    first = follow(http, "sam3video", b64imgs=[scene] * 2, objs={"0": [{"text": "cell"}]})
    both = follow(http, "sam3video", b64imgs=[scene] * 2, objs={"0": [{"text": "cell"}], "1": [{"text": "cell"}]})
    assert len(both) == len(first)
    other = follow(http, "sam3video", b64imgs=[scene] * 2, objs={"0": [{"text": "cell"}], "1": [{"text": "dog"}]})
    assert len(other) > len(first)
    assert follow(http, "sam3video", b64imgs=[scene], objs={"0": [{"text": "nothing"}]}) == []


def test_a_frame_that_is_sent_again_counts_once():
    with drawn_service(adapters=("qupath",), max_video=3000, video_bytes=3000) as drawn:
        for number in range(10):
            frame = ("file", ("0.png", clip.png(number), "image/png"))
            assert drawn.service.http.post("/sam/upload/", data={"dirname": "d"}, files=[frame]).status_code == 200


# --- X-AnyLabeling ---------------------------------------------------------------------------------------------------

COUNT = 6
FRAMES = [f"data:image/png;base64,{base64_of(clip.png(index))}" for index in range(COUNT)]
SHARES = [X / clip.WIDTH, Y / clip.HEIGHT]
MODEL = "sam2-video"
ROOT = "/x-anylabeling/v1/video"


@pytest.fixture
def post(running):
    def post(path, body, status=200):
        answer = running.service.http.post(f"{ROOT}/{path}", json={"model": MODEL, **body})
        assert answer.status_code == status, answer.text
        told = answer.json()
        assert told["success"] is (status == 200)
        return told["data"] if status == 200 else told["error"]

    return post


@pytest.fixture
def session(running, post):
    name = post("init", {"frames": FRAMES})["session_id"]
    yield name
    running.server.reset()
    running.service.http.post(f"{ROOT}/cleanup/{name}", params={"model": MODEL})


def click(session, points=(SHARES,), frame=0, labels=None, **members):
    labels = labels or [1] * len(points)
    return {
        "session_id": session,
        "frame_index": frame,
        "points": list(points),
        "point_labels": labels,
        "obj_id": 10000,
        **members,
    }


def streamed(running, session, **members):
    """The events of a way through the frames, read as X-AnyLabeling reads them."""
    body = {"session_id": session, "model": MODEL, **members}
    with running.service.http.stream("POST", f"{ROOT}/propagate/stream", json=body) as answer:
        assert answer.status_code == 200
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines]


def drawn(shapes):
    """The pixels of shapes."""
    return filled_each([shape["points"] for shape in shapes], (clip.HEIGHT, clip.WIDTH))


def check_disc(shapes, frame, label="AUTOLABEL_OBJECT", group=10001):
    assert {(shape["label"], shape["shape_type"], shape["group_id"]) for shape in shapes} == {(label, "polygon", group)}
    assert near(drawn(shapes), clip.disc(frame), 2)


def test_the_list_of_models_has_the_parts_of_the_tool(running):
    models = running.service.http.get("/x-anylabeling/v1/models").json()["data"]
    assert models["sam2"]["batch_processing_mode"] is None
    with_words = [widget["name"] for widget in models["sam3"]["widgets"]]
    assert with_words[:4] == ["edit_text", "button_send", "input_conf", "edit_conf"]
    assert models["sam3"]["batch_processing_mode"] == "text_prompt"
    assert "edit_text" not in [widget["name"] for widget in models["sam2"]["widgets"]]
    assert (models[MODEL]["display_name"], models[MODEL]["batch_processing_mode"]) == ("sam2 vid", "video")
    assert {"button_add_point", "button_clear"} <= {widget["name"] for widget in models[MODEL]["widgets"]}
    info = running.service.http.get(f"/x-anylabeling/v1/models/{MODEL}/info").json()["data"]
    assert info == {"model_id": MODEL, **models[MODEL]}


def test_frames_lie_as_they_are_stored(running, post):
    exif, frame = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = 6
    clip.image(0).save(frame, "PNG", exif=exif)
    session = post("init", {"frames": [base64_of(frame.getvalue())]})["session_id"]
    check_disc(post("prompt", click(session))["masks"], 0)
    assert running.server.prompts()[10001][0] == [[X, Y]]
    refused = post("init", {"frames": [base64_of(frame.getvalue()), base64_of(b"GIF89a")]}, status=415)
    assert refused["message"].startswith("frame 1: ")


def test_a_click_is_followed_through_the_frames(running, post, session):
    found = post("prompt", click(session))
    assert (found["frame_index"], found["num_objects"]) == (0, 1)
    check_disc(found["masks"], 0)
    assert running.server.prompts()[10001][0] == [[X, Y]]
    first, *progress, _ = streamed(running, session, start_frame=0)  # test_adapter_videos.py checks the masks
    assert first == {"type": "started", "total_frames": COUNT, "start_frame_index": 0}
    assert [each["current_frame"] for each in progress] == list(range(COUNT))
    assert progress[-1]["progress"] == 1


def test_a_prompt_after_tracking_begins_a_new_object(running, post, session):
    post("prompt", click(session))
    post("prompt", click(session, frame=1))  # still the same object
    assert sorted(running.server.prompts()[10001]) == [0, 1]
    streamed(running, session)
    post("prompt", click(session, frame=3))
    assert sorted(running.server.prompts()[10001]) == [3]
    *_, last = streamed(running, session, start_frame=3)
    assert sorted(last["results"]) == ["3", "4", "5"]
    check_disc(last["results"]["4"]["masks"], 1)  # the disc of this server is drawn around the click


def test_frames_have_the_numbers_of_the_tool(running, post):
    name = post("init", {"frames": FRAMES[:4], "start_frame_index": 10})
    assert (name["num_frames"], name["start_frame_index"]) == (4, 10)
    name = name["session_id"]
    assert "10 to 13" in post("prompt", click(name, frame=3), 422)["message"]
    post("prompt", click(name, frame=11))
    first, *_, last = streamed(running, name, end_frame=12)
    assert first["start_frame_index"] == 10
    assert sorted(last["results"]) == ["11", "12"]
    post("prompt", click(name, frame=11))
    body = {"session_id": name, "start_frame": 12, "end_frame": 11}
    assert "before" in post("propagate/stream", body, 422)["message"]
    assert running.service.http.post(f"{ROOT}/cleanup/{name}?model={MODEL}").json()["success"]
    assert post("prompt", click(name), 404)["code"] == "SESSION_NOT_FOUND"


def test_the_frames_of_a_stream_are_written_one_by_one(running, post, session, monkeypatch):
    dumps, written = strict_json.dumps, []
    monkeypatch.setattr(strict_json, "dumps", lambda value, **more: (written.append(value), dumps(value, **more))[1])
    post("prompt", click(session))
    *_, last = streamed(running, session)
    assert sorted(last["results"]) == [str(frame) for frame in range(COUNT)]
    assert last["results"]["1"] in written
    assert not any("results" in value for value in written)


def test_a_stream_ends_when_its_session_does(running, post, session):
    running.server.frames.limit = 1
    post("prompt", click(session))
    body = {"session_id": session, "model": MODEL}
    with running.service.http.stream("POST", f"{ROOT}/propagate/stream", json=body) as answer:
        lines = answer.iter_lines()
        wait_until(running.server.tracked)  # the first line comes before
        with let_go_on(running.server, propagation_of(running.service, session)):
            post(f"cleanup/{session}", {})
        rest = [line for line in lines if line]
    assert json.loads(rest[-1][6:])["type"] in ("error", "completed")


def test_words_are_followed_through_the_frames_of_x_anylabeling(post, http, scene):
    models = http.get("/x-anylabeling/v1/models").json()["data"]
    assert "edit_text" in {widget["name"] for widget in models["sam2-video"]["widgets"]}
    assert "sam3-video" not in models
    session = post("init", {"frames": [scene] * 2})["session_id"]
    prompt = {"session_id": session, "frame_index": 0, "params": {"conf_threshold": 0.7}}
    found = post("prompt", {**prompt, "text_prompt": "cell, nothing."})["masks"]
    assert [each["label"] for each in found] == ["cell"] * len(found)
    assert [round(each["score"], 4) for each in found] == list(SCORES[:2])
    assert [each["group_id"] for each in found] == [1, 2]
    x1, y1, x2, y2 = mask_to_box(shapes()[0])
    across, down = np.transpose(found[0]["points"])
    assert np.allclose([across.min(), down.min(), across.max(), down.max()], [x1, y1, x2, y2], atol=2)
    followed = http.post(f"{ROOT}/propagate/stream", json={"model": MODEL, "session_id": session})
    results = json.loads(followed.text.strip().rpartition("data: ")[2])["results"]
    assert [(each["label"], each["group_id"]) for each in results["1"]["masks"]] == [("cell", 1), ("cell", 2)]
    again = post("prompt", {**prompt, "text_prompt": "dog"})["masks"]
    assert {each["label"] for each in again} == {"dog"}
    post(f"cleanup/{session}", {})
