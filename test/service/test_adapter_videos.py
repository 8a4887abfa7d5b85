"""The common behaviour of the tools that follow objects through frames."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import clip
from support.conditions import wait_until
from support.drawn_server import drawn_service
from support.tools import base64_of

from triton_sam.errors import InferenceError
from triton_sam.masks import mask_to_box

COUNT = 5
FRAMES = [base64_of(clip.png(index)) for index in range(COUNT)]
TOOLS = ("cvat", "qupath", "x-anylabeling")
CVAT, X_ANYLABELING = "/api/function_invocations", "/x-anylabeling/v1/video"
TRACKER = {"x-nuclio-function-name": "triton-sam-sam2-tracker"}
X, Y = clip.START
SHARES = [X / clip.WIDTH, Y / clip.HEIGHT]
POINT = {"obj_id": 0, "point_coords": [[X, Y]], "point_labels": [1]}


class Refused(Exception):  # noqa: N818 - an answer of the service, no fault of the test
    """A tool was refused: status and text of the answer."""

    def __init__(self, status, text):
        super().__init__(status, text)
        self.status, self.text = status, text


def post(http, path, body, **options):
    answer = http.post(path, json=body, timeout=120, **options)
    if answer.status_code != 200:
        assert "problem+json" not in answer.headers["content-type"]
        raise Refused(answer.status_code, answer.text)
    return answer.json()


def bounds(rings):
    points = np.concatenate([np.reshape(ring, (-1, 2)) for ring in rings])
    return [float(value) for value in (*points.min(axis=0), *points.max(axis=0))]


def cvat(http, x, y):
    boxes, states = [], []
    for index, image in enumerate(FRAMES):
        drawn = [] if index else [[x - 30, y - 30, x + 30, y + 30]]
        answer = post(http, CVAT, {"image": image, "shapes": drawn, "states": states}, headers=TRACKER)
        states = answer["states"]
        boxes += answer["shapes"]
    return boxes


def qupath(http, x, y):
    objects = {"0": [{"obj_id": 1, "point_coords": [[x, y]], "point_labels": [1]}]}
    found = post(http, "/sam/video/", {"type": "sam2_t", "b64imgs": FRAMES, "axes": "XYT", "objs": objects})
    return [bounds(each["geometry"]["coordinates"]) for each in found]


def x_anylabeling(http, x, y):
    model = {"model": "sam2-video"}
    session = post(http, f"{X_ANYLABELING}/init", {**model, "frames": FRAMES})["data"]["session_id"]
    body = {**model, "session_id": session, "frame_index": 0}
    click = {"points": [[x / clip.WIDTH, y / clip.HEIGHT]], "point_labels": [1], "obj_id": 10000}
    try:
        post(http, f"{X_ANYLABELING}/prompt", {**body, **click})
        lines = http.post(f"{X_ANYLABELING}/propagate/stream", json=body).text.splitlines()
        last = json.loads([line for line in lines if line.startswith("data: ")][-1][6:])
        if last["type"] == "error":
            raise Refused(502, last["message"])
        results = [last["results"][str(index)]["masks"] for index in range(COUNT)]
        return [bounds(shape["points"] for shape in shapes) for shapes in results]
    finally:
        post(http, f"{X_ANYLABELING}/cleanup/{session}", {}, params=model)


FOLLOW = {
    "cvat": cvat,
    "qupath": qupath,
    "x-anylabeling": x_anylabeling,
}
"""Follow the disc that begins at x, y through all frames, as each tool does it; return its box in each frame."""


SERVICE = {"adapters": TOOLS, "video_idle_seconds": 60, "max_video_frames": 8}


def check(boxes, x, y):
    expected = [mask_to_box(clip.disc(index, (x, y))) for index in range(COUNT)]
    np.testing.assert_allclose(boxes, np.array(expected), atol=2)


@pytest.mark.parametrize("tool", TOOLS)
def test_users_follow_objects_and_do_not_disturb_each_other(http, tool):
    places = [(X + 20 * user, Y - 10 * user) for user in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for place, boxes in zip(places, pool.map(lambda place: FOLLOW[tool](http, *place), places), strict=True):
            check(boxes, *place)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_failure_of_triton_is_told_and_the_next_call_works(running, http, tool):
    running.server.frames.failure = InferenceError("the GPU is gone")
    with pytest.raises(Refused, match="the GPU is gone") as caught:
        FOLLOW[tool](http, X, Y)
    assert caught.value.status == 502
    running.server.reset()
    check(FOLLOW[tool](http, X, Y), X, Y)


@pytest.mark.parametrize("tool", TOOLS)
def test_too_many_videos_are_refused(running, http, tool, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(running.service.app.state.engine.budgets.videos, "limit", 0)  # sessions of other tests may end
        with pytest.raises(Refused, match="videos") as caught:
            FOLLOW[tool](http, X, Y)
    assert caught.value.status == 503
    check(FOLLOW[tool](http, X, Y), X, Y)


def test_what_nobody_uses_ends():
    with drawn_service(adapters=TOOLS, video_idle_seconds=0.3) as drawn:
        http, budgets = drawn.service.http, drawn.service.app.state.engine.budgets
        begin = {"image": FRAMES[0], "shapes": [[X - 30, Y - 30, X + 30, Y + 30]], "states": []}
        states = post(http, CVAT, begin, headers=TRACKER)["states"]
        init = {"model": "sam2-video", "frames": FRAMES}
        session = post(http, f"{X_ANYLABELING}/init", init)["data"]["session_id"]
        frame = ("0.png", clip.png(0), "image/png")
        assert http.post("/sam/upload/", data={"dirname": "lost"}, files={"file": frame}).status_code == 200
        wait_until(lambda: (budgets.videos.used, budgets.video_bytes.used, budgets.video_masks.used) == (0, 0, 0))
        assert not drawn.server.sessions
        late = (
            (CVAT, {"image": FRAMES[1], "shapes": [], "states": states}),
            (f"{X_ANYLABELING}/prompt", {"model": "sam2-video", "session_id": session, "frame_index": 0}),
            ("/sam/video/", {"type": "sam2_t", "dirname": "lost", "objs": {"0": [POINT]}}),
        )
        for path, body in late:
            with pytest.raises(Refused) as caught:
                post(http, path, body, headers=TRACKER)
            assert caught.value.status == 404


@pytest.mark.parametrize("tool", TOOLS)
def test_without_a_video_model_nothing_is_followed(tool):
    with drawn_service(videos=False, adapters=TOOLS) as drawn:
        assert "triton-sam-sam2-tracker" not in drawn.service.http.get("/api/functions").json()
        with pytest.raises(Refused) as caught:
            FOLLOW[tool](drawn.service.http, X, Y)
        assert caught.value.status == 404


REFUSED_SHAPES = (
    ([1, 2, 3], "do not make a polygon"),
    ([9, 9, 9, 9], "must overlap the image"),
    ([900, 900, 990, 990], "must overlap the image"),
    ({"type": "polygon", "points": [1, 2, 3, 4]}, "do not make a polygon"),
    ({"type": "mask", "points": [1, 2, 3, 4]}, "runs"),
    ({"type": "mask", "points": [0, 9, 0, 0, 1, 1]}, "add up"),
    ({"type": "mask", "points": [4, 0, 0, 1, 1]}, "no pixel"),
    ({"type": "mask", "points": [4, 0, 0, 9000, 1]}, "within the image"),
    ({"type": "mask", "points": [0, 4e15, 0, 0, 1, 1]}, "runs"),
    ({"type": "ellipse", "points": [1]}, "shapes"),
    ({"type": "points", "points": []}, "do not make a points"),
)
"""Shapes of CVAT, and a part of the answer that refuses each."""
REFUSED_BODIES = (
    ("/sam/video/", {"objs": {"0": [POINT]}}, 422, "dirname"),
    ("/sam/video/", {"b64imgs": [], "objs": {"0": [POINT]}}, 422, "no frames"),
    ("/sam/video/", {"b64imgs": ["%"], "objs": {"0": [POINT]}}, 422, "frame 0"),
    ("/sam/video/", {"objs": {"1": [POINT]}}, 422, "no frame 1"),
    ("/sam/video/", {"objs": {}}, 422, "no prompt"),
    ("/sam/video/", {"objs": {"0": [{"obj_id": 0}]}}, 422, "points"),
    ("/sam/video/", {"objs": {"0": [{"obj_id": -1}]}}, 422, "obj_id"),
    ("/sam/video/", {"objs": {"0": [POINT]}, "type": "vit_h"}, 404, "sam2"),
    ("/sam/video/", {"objs": {"0": [POINT]}, "axes": "X"}, 422, "axes"),
    ("/sam/sam3video/", {"objs": {"0": [{"text": "cell"}]}}, 404, "words"),
    ("init", {"frames": []}, 422, "no frames"),
    ("init", {"frames": ["%"]}, 422, "frame 0"),
    ("init", {"frames": ["AAAA"]}, 415, "image"),
    ("init", {"frames": FRAMES * 2}, 413, "8 frames"),
    ("init", {"frames": FRAMES[:1], "model": "x-video"}, 404, "x"),
    ("prompt", {}, 422, "text_prompt"),
    ("prompt", {"points": [[0.5]], "point_labels": [1]}, 422, "a point"),
    ("prompt", {"points": [SHARES], "point_labels": [3]}, 422, "labels"),
    ("prompt", {"points": [SHARES]}, 422, "labels"),
    ("prompt", {"points": [SHARES], "point_labels": [1], "params": {"epsilon_factor": 7}}, 422, "epsilon"),
    ("prompt", {"text_prompt": "dog"}, 404, "words"),
    ("cleanup/0", {}, 404, "session"),
)
"""Requests of QuPath and X-AnyLabeling, and the status and a part of the answer that refuses each."""


@pytest.mark.usefixtures("fresh")  # the places of other sessions must not come back meanwhile
def test_requests_that_cannot_be_followed_take_no_place(running, http):
    begin = {"model": "sam2-video", "frames": FRAMES[:1]}
    session = post(http, f"{X_ANYLABELING}/init", begin)["data"]["session_id"]
    budget = running.service.app.state.engine.budgets.videos
    before = budget.used
    calls = [(CVAT, {"image": FRAMES[0], "shapes": [shape]}, 422, words) for shape, words in REFUSED_SHAPES]
    for path, members, status, words in [*calls, *REFUSED_BODIES]:
        body = members
        if path.startswith("/sam"):
            missing = {} if words == "dirname" else {"b64imgs": FRAMES[:1]}
            body = {"type": "sam2_t", **missing, **members}
        elif path != CVAT:
            body = {"model": "sam2-video", "session_id": session, **members}
        with pytest.raises(Refused) as caught:
            post(http, path if path.startswith("/") else f"{X_ANYLABELING}/{path}", body, headers=TRACKER)
        assert caught.value.status == status, members
        assert words in caught.value.text, members
        wait_until(lambda: budget.used == before)
    post(http, f"{X_ANYLABELING}/cleanup/{session}", {}, params={"model": "sam2-video"})
