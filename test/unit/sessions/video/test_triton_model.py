"""The video model's side towards Triton, with a stand-in for the module that exists only inside Triton.

The models that it calls are those of `support.fake_tracking`. Traces, metrics and unsent answers are those of the base,
which test/unit/sessions/test_triton_model.py tests.
"""

import json

import numpy as np
import pytest
from support import pb_utils
from support.conditions import wait_until
from support.fake_tracking import NAMES, SIDE, TABLE, FakeModels, Server, computed_by, frame_file, rows, text

from triton_sam.families.tracking import MAX_MEMORIES

ENTRY = "video.triton_model"
OUTPUTS = ["result", "frame_indexes", "object_ids", "masks", "object_scores", "iou_predictions"]


def request(operation, session=None, wanted=OUTPUTS, tensors=None, **arguments):
    inputs = {"operation": text(operation.encode()), "arguments": text(json.dumps(arguments).encode())}
    if session is not None:
        inputs["session_id"] = text(session.encode())
    return pb_utils.Request(wanted, {**inputs, **(tensors or {})})


def arguments(**changed):
    return pb_utils.arguments("sam2_video", **{"family": "SAM2", "image_size": str(SIDE), **NAMES, **changed})


@pytest.fixture
def triton():
    return pb_utils.Triton(computed_by(FakeModels()))


@pytest.fixture
def model(triton):
    with triton.serving(ENTRY, arguments(max_pending="2", threads="2", max_sessions="2")) as model:
        yield model


def asked(model, *args, **kwargs):
    model.execute([made := request(*args, **kwargs)])
    return made


def ask(model, *args, **kwargs):
    return asked(model, *args, **kwargs).answer()


def start(model):
    answer = ask(model, "start_session", wanted=["result"], num_frames=9)
    return json.loads(answer.tensors["result"][0])["session_id"]


def add_frames(model, session, *indexes):
    files = np.array([frame_file(index) for index in indexes], np.object_)
    return ask(model, "add_frames", session, ["result"], {"frames": files}, frame_indexes=list(indexes))


def test_a_frame_never_attends_to_more_memories_than_a_call_may_have(triton):
    with triton.serving(ENTRY, arguments(max_prompted_frames="1000")) as model:
        limits = json.loads(ask(model, "start_session", wanted=["result"], num_frames=9).tensors["result"][0])["limits"]
    assert limits["max_prompted_frames"] == 300
    assert limits["max_prompted_frames"] + TABLE.memories <= MAX_MEMORIES


CLICK = {"frame_index": 0, "object_id": 1, "points": [[3, 4]]}


def story(model, session):
    """Prompt with a point and with a mask, and track; yield all answers."""
    add_frames(model, session, 0, 1, 2)
    mask = np.zeros((12, 20), bool)
    mask[3:9, 4:11] = True
    yield ask(model, "add_prompt", session, step=1, **CLICK)
    yield ask(model, "add_prompt", session, OUTPUTS, {"mask": mask}, step=2, frame_index=0, object_id=2)
    for step, frame in enumerate((0, 1, 2), 3):
        yield ask(model, "propagate", session, step=step, frame_index=frame, first=step == 3)


def test_a_story_equals_that_without_triton(model, triton):
    """All tensors reach the models under their names: masks are those of the tracker that calls them directly."""
    answers = list(story(model, start(model)))
    direct = Server().start(num_frames=9)
    direct.add_frames(0, 1, 2)
    mask = np.zeros((12, 20), bool)
    mask[3:9, 4:11] = True
    expected = [
        direct.do("add_prompt", frame_index=0, object_id=1, points=[[3, 4]]),
        direct.do("add_prompt", frame_index=0, object_id=2, tensors={"mask": mask}),
        *(direct.do("propagate", frame_index=frame, first=frame == 0) for frame in (0, 1, 2)),
    ]
    for answer, other in zip(answers, expected, strict=True):
        assert answer.code == ""
        found, wanted = rows(answer.tensors), rows(other)
        assert list(found) == list(wanted)
        for key, each in found.items():
            np.testing.assert_array_equal(each, wanted[key])
    assert [call.model for call in triton.calls].count("sam2_encoder") == 3


@pytest.mark.parametrize(
    ("message", "code"), [("Exceeds maximum queue size", "UNAVAILABLE"), ("failed to allocate memory", "INTERNAL")]
)
def test_failures_of_models_have_a_status_and_the_session_lives_on(model, triton, message, code):
    session = start(model)
    triton.failures.extend([message] * 9)
    assert add_frames(model, session, 0).code == code
    triton.failures.clear()
    assert add_frames(model, session, 0).code == ""


def test_more_sessions_and_requests_than_allowed_are_refused_at_once(model, triton):
    session = start(model)
    start(model)
    assert ask(model, "start_session", wanted=["result"]).code == "UNAVAILABLE"
    triton.gate.clear()
    files = [{"frames": text(frame_file(index))} for index in range(3)]
    waiting = [
        asked(model, "add_frames", session, ["result"], each, frame_indexes=[index]) for index, each in enumerate(files)
    ]
    assert waiting[2].answer().code == "UNAVAILABLE"
    assert not waiting[0].is_answered
    triton.gate.set()
    assert [each.answer().code for each in waiting[:2]] == ["", ""]


def test_a_request_that_is_cancelled_while_it_waits_is_not_computed(model, triton):
    session = start(model)
    add_frames(model, session, 0)
    triton.gate.clear()
    first, second = (asked(model, "add_prompt", session, step=step, **CLICK) for step in (1, 2))
    second.cancelled = True
    triton.gate.set()
    assert [each.answer().code for each in (first, second)] == ["", "CANCELLED"]
    assert ask(model, "add_prompt", session, step=2, **CLICK).code == ""


def test_a_session_whose_answer_does_not_reach_its_client_is_closed(model):
    lost, gone = (request("start_session", wanted=["result"], num_frames=9) for _ in range(2))
    lost.unsent = 1
    gone.cancelled = True
    model.execute([lost, gone])
    assert [each.answer().code for each in (lost, gone)] == ["INTERNAL", "CANCELLED"]
    assert len(model._model.sessions.by_id) == 0


def test_sessions_close_at_once_while_others_compute(model, triton):
    session, other = start(model), start(model)
    triton.gate.clear()
    waiting = asked(model, "add_frames", session, ["result"], {"frames": text(frame_file(0))}, frame_indexes=[0])
    assert ask(model, "close_session", other, ["result"]).code == ""
    assert not waiting.is_answered
    triton.gate.set()
    assert waiting.answer().code == ""


def test_idle_sessions_are_swept(triton):
    module = triton.load(ENTRY)
    module.SWEEP_SECONDS = 0.05
    made = module.TritonPythonModel()
    made.initialize(arguments(idle_seconds="1"))
    try:
        start(made)
        wait_until(lambda: len(made._model.sessions.by_id) == 0)
    finally:
        made.finalize()
