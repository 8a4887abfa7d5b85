"""X-AnyLabeling's video models, with a video client that moves discs."""

import json

import pytest
from support import clip
from support.fake_clients import let_go_on, propagation_of
from support.tools import base64_of, filled_each, near

COUNT = 6
FRAMES = [f"data:image/png;base64,{base64_of(clip.png(index))}" for index in range(COUNT)]
X, Y = clip.START
SHARES = [X / clip.WIDTH, Y / clip.HEIGHT]
MODEL = "sam2-video"
ROOT = "/x-anylabeling/v1/video"


FAKES = {"adapters": ("x-anylabeling",), "max_videos": 3, "max_video_frames": 8}


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
    running.reset()
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


def test_the_list_of_models_names_a_video_model(running):
    models = running.service.http.get("/x-anylabeling/v1/models").json()["data"]
    assert models["sam2"]["batch_processing_mode"] is None
    assert models[MODEL]["batch_processing_mode"] == "video"
    assert {"button_add_point", "button_clear"} <= {widget["name"] for widget in models[MODEL]["widgets"]}
    info = running.service.http.get(f"/x-anylabeling/v1/models/{MODEL}/info").json()["data"]
    assert info == {"model_id": MODEL, **models[MODEL]}


def test_a_click_is_followed_through_the_frames(running, post, session):
    found = post("prompt", click(session))
    assert (found["frame_index"], found["num_objects"]) == (0, 1)
    check_disc(found["masks"], 0)
    assert running.tracker.videos[-1].prompts[10001][0]["points"] == [[X, Y]]
    first, *progress, _ = streamed(running, session, start_frame=0)  # test_adapter_videos.py checks the masks
    assert first == {"type": "started", "total_frames": COUNT, "start_frame_index": 0}
    assert [each["current_frame"] for each in progress] == list(range(COUNT))
    assert progress[-1]["progress"] == 1


def test_a_prompt_after_tracking_begins_a_new_object(running, post, session):
    post("prompt", click(session))
    post("prompt", click(session, frame=1))  # still the same object
    assert sorted(running.tracker.videos[-1].prompts[10001]) == [0, 1]
    streamed(running, session)
    post("prompt", click(session, frame=3))
    assert sorted(running.tracker.videos[-1].prompts[10001]) == [3]
    *_, last = streamed(running, session, start_frame=3)
    assert sorted(last["results"]) == ["3", "4", "5"]
    check_disc(last["results"]["4"]["masks"], 1)  # the disc of a fake session starts at the click


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


def test_a_stream_ends_when_its_session_does(running, post, session):
    running.tracker.limit = 1
    post("prompt", click(session))
    body = {"session_id": session, "model": MODEL}
    with running.service.http.stream("POST", f"{ROOT}/propagate/stream", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        with let_go_on(running.tracker, propagation_of(running.service, session)):
            post(f"cleanup/{session}", {})
        rest = [line for line in lines if line]
    assert json.loads(rest[-1][6:])["type"] in ("error", "completed")


def test_a_stream_without_an_object_says_so(running, session):
    *_, last = streamed(running, session)
    assert (last["type"], "no prompt" in last["message"]) == ("error", True)
