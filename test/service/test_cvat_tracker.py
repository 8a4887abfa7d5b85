"""CVAT's tracker: states are handles of sessions."""

import threading

import numpy as np
import pytest
from support import clip, cvat_requests
from support.tools import base64_of, filled_each, near

from triton_sam.errors import InferenceError
from triton_sam.masks import mask_to_box
from triton_sam.service.adapters import cvat_tracker
from triton_sam.service.adapters.cvat_tracker import box_runs, mask_of_points

NAME = "triton-sam-sam2-tracker"
X, Y = clip.START
SIZE = clip.WIDTH, clip.HEIGHT
BOX = [X - 30, Y - 30, X + 30, Y + 30]


SERVICE = {"adapters": ("cvat",), "video_idle_seconds": 60, "max_videos": 6}


pytestmark = pytest.mark.usefixtures("fresh")


def call(http, frame, shapes=(), states=(), name=NAME):
    image = base64_of(clip.png(frame) if isinstance(frame, int) else frame)
    body = {"image": image, "shapes": list(shapes), "states": list(states)}
    return http.post("/api/function_invocations", json=body, headers={"x-nuclio-function-name": name})


def tracked(*args, **options):
    answer = call(*args, **options)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["shapes"], found["states"]


def test_the_tracker_is_listed(http):
    functions = http.get("/api/functions").json()
    annotations = functions[NAME]["metadata"]["annotations"]
    assert (annotations["type"], annotations["supported_shape_types"]) == ("tracker", "mask,polygon,rectangle")


def test_the_requests_of_the_gateway_of_cvat(http):
    """Each version of CVAT begins with shapes, and then sends the states that it got, with no shapes or with nulls."""
    requests = cvat_requests.calls_of(NAME)
    frame, states = 0, []
    for request in requests:
        begins = not any(request["body"]["states"])
        frame = 0 if begins else frame + 1
        answer = cvat_requests.send(http, request, base64_of(clip.png(frame)), states)
        states = answer["states"]
        assert len(answer["shapes"]) == len(states) == max(map(len, (request["body"]["shapes"], states)))
        rectangle = answer["shapes"][0]
        is_typed = isinstance(rectangle, dict)
        box = rectangle["points"] if is_typed else rectangle
        np.testing.assert_allclose(box, mask_to_box(clip.disc(frame)), atol=1)
        assert not begins or is_typed == isinstance(request["body"]["shapes"][0], dict)
    assert len(requests) == 4


def test_masks_of_shapes_are_drawn_by_workers(http, monkeypatch):
    """Workers limit the pixels in memory: 64 masks of an image of 100 million pixels would take gigabytes."""
    threads = []

    def noted(function):
        return lambda *args: (threads.append(threading.current_thread().name), function(*args))[1]

    for function in (cvat_tracker.drawn_of, cvat_tracker.shape_of):
        monkeypatch.setattr(cvat_tracker, function.__name__, noted(function))
    tracked(http, 0, [{"type": "mask", "points": box_runs(clip.disc(0))}])
    assert len(threads) == 2
    assert all(name.startswith("triton-sam-") for name in threads)


def test_many_objects_of_all_kinds(http, drawing):
    masks = [clip.disc(0, (x, Y)) for x in (60, 130, 190)]
    polygon = [
        value for angle in np.linspace(0, 6.2, 90) for value in (130 + 30 * np.cos(angle), Y + 30 * np.sin(angle))
    ]
    shapes = [
        {"type": "mask", "points": box_runs(masks[0])},
        {"type": "polygon", "points": polygon},
        {"type": "rectangle", "points": [160, Y - 30, 220, Y + 30]},
        {"type": "points", "points": [190.0, Y]},
        None,
    ]
    found, states = tracked(http, 0, shapes)
    assert [each and each["type"] for each in found] == ["mask", "polygon", "rectangle", "points", None]
    assert states[4] is None
    assert len({state.split("/")[1] for state in states[:4]}) == 1  # one session, so that a frame is encoded once
    sessions = len(drawing.sessions)
    found, states = tracked(http, 1, [], states[:4])
    moved = [clip.disc(1, (x, Y)) for x in (60, 130, 190)]
    assert near(mask_of_points(found[0]["points"], SIZE), moved[0])
    assert near(filled_each([found[1]["points"]], moved[1].shape), moved[1], 2)
    np.testing.assert_allclose(found[2]["points"], mask_to_box(moved[2]), atol=1)
    np.testing.assert_allclose(found[3]["points"], [X + 136.5, Y + 0.5], atol=1)
    assert len(drawing.sessions) == sessions


def test_objects_of_one_call_may_be_followed_one_after_the_other(http):
    boxes = [{"type": "rectangle", "points": BOX}, {"type": "mask", "points": [1, 1, 1, 1, 8, 8, 9, 9]}]
    _, states = tracked(http, 0, boxes)
    together = []
    for frame in range(1, 5):
        shapes, states = tracked(http, frame, states=states)
        together.append(shapes)
    _, (first, second) = tracked(http, 0, boxes)
    alone = []
    for state in (first, second):
        answers = [tracked(http, frame, states=[state]) for frame in range(1, 5)]
        assert all(states == [state] for _, states in answers)
        alone.append([shape for [shape], _ in answers])
    assert [list(pair) for pair in zip(*alone, strict=True)] == together
    assert together[0] != together[3]


def test_an_object_leaves_the_frames_of_the_others(http):
    _, (first, second) = tracked(http, 0, [{"type": "rectangle", "points": BOX}] * 2)
    for frame in (1, 2):
        tracked(http, frame, states=[first])
    answer = call(http, 3, states=[second])
    assert answer.status_code == 409
    assert "draw the object again, alone" in answer.text
    _, again = tracked(http, 1, states=[second])
    _, together = tracked(http, 2, states=[first, *again])
    assert together == [first, second]


def test_a_call_brings_new_objects_beside_tracked_ones(http):
    _, states = tracked(http, 0, [BOX])
    shapes, states = tracked(http, 1, [None, {"type": "rectangle", "points": [100, 20, 160, 80]}], states)
    np.testing.assert_allclose([shapes[0][0], shapes[1]["points"][0]], [BOX[0] + clip.STEP, 100], atol=1)
    shapes, _ = tracked(http, 2, [None, None], states)
    expected = [BOX[0] + 2 * clip.STEP, 100 + clip.STEP]
    np.testing.assert_allclose([shapes[0][0], shapes[1]["points"][0]], expected, atol=1)


def test_an_object_that_leaves_the_image_has_no_shape(http):
    [shape], states = tracked(http, 0, [[*BOX[:2], *BOX[2:]]])
    for frame in range(1, 60):
        [shape], states = tracked(http, frame, [], states)
        if shape is None:
            break
    assert shape is None
    assert states[0] is not None


def test_a_state_that_is_not_known(http):
    _, [state] = tracked(http, 0, [BOX])
    unknown = (
        "",
        "triton-sam/0/1/r",
        f"triton-sam/{'0' * 32}/1/r",
        7,
        {"a": 1},
        ["x"],
        True,
        state.replace("/1/", "/2/"),
    )
    for each in unknown:
        answer = call(http, 1, [], [each])
        assert answer.status_code == 404, each
        assert "draw it in a frame" in answer.json()["error"]


def test_a_failed_call_can_be_repeated(http, drawing):
    _, states = tracked(http, 0, [BOX])
    drawing.frames.failure = InferenceError("no luck")
    assert call(http, 1, [], states).status_code == 502
    assert call(http, 2, [], states).status_code == 502
    drawing.frames.failure = None
    [box], _ = tracked(http, 2, [], states)
    assert box[0] == pytest.approx(BOX[0] + 2 * clip.STEP, abs=1)
    assert drawing.tracked()[-2:] == [1, 2]  # no frame is left out


def test_a_frame_of_another_size(http, images):
    _, states = tracked(http, 0, [BOX])
    answer = call(http, (images / "shapes.jpg").read_bytes(), [], states)
    assert (answer.status_code, "one size" in answer.json()["error"]) == (422, True)
    tracked(http, 1, [], states)
