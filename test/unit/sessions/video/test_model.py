"""The video model without Triton and with models that compute little: limits, steps, snapshots, sessions, errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.conditions import wait_until
from support.fake_tracking import (
    FAMILY,
    SIZE,
    TABLE,
    Client,
    FakeModels,
    Server,
    frame_file,
    kept_bytes,
    refused,
    rows,
    text,
)

from triton_sam.errors import (
    ImageError,
    InputError,
    PromptError,
    ServerBusyError,
    UnknownImageError,
    UnknownSessionError,
    VideoError,
)
from triton_sam.families.tables import MAX_PROMPT_POINTS
from triton_sam.families.tracking import MAX_MEMORIES
from triton_sam.sessions.images import NoRoomError
from triton_sam.sessions.tasks import MAX_WAITING, SerialQueue
from triton_sam.sessions.video.memory import STREAM_FRAMES, Limits, sizes
from triton_sam.sessions.video.models import TrackingModels
from triton_sam.sessions.video.sessions import KNOWN_FRAMES, VideoSession

MEMORY, LOGITS, POINTER = sizes(TABLE)


def test_bfloat16_rounds_as_torch_does():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    values = np.concatenate([values, np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875])])
    expected = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    models = TrackingModels(FAMILY, lambda *_: {"memory": values}, 1)
    stored = models.remember({"image_embeddings": None}, values, values, False)
    np.testing.assert_array_equal((stored.astype(np.uint32) << 16).view(np.float32), expected)


def test_objects_of_equal_shapes_go_through_one_call(video_sessions):
    session = video_sessions.start(num_frames=30)
    for name in (1, 2, 3):
        session.click(0, name)
    session.click(4, 4)
    session.track(range(12))
    # In frame 0, only object 4 is tracked. From then on, it has one memory more than the others, until all have seven.
    objects = [len(call["memory_ages"]) for call in video_sessions.models.attended]
    assert objects[:5] == [1, 3, 1, 3, 1]
    assert objects[-1] == 4
    assert video_sessions.models.encodes == 12


def test_a_batch_that_does_not_fit_is_halved():
    class Small(FakeModels):
        def attend(self, given):
            if len(given["memory_ages"]) > 2:
                raise NoRoomError("out of memory")
            return super().attend(given)

    plenty, small = Server(), Server(models=Small())
    masks = []
    for server in (plenty, small):
        session = server.start()
        for name in range(7):
            session.click(0, name, [[name, 3]])
        masks.append(session.track(range(3)))
    assert max(len(call["memory_ages"]) for call in plenty.models.attended) == 7
    for key, mask in masks[0].items():
        np.testing.assert_array_equal(masks[1][key], mask)


def test_a_call_has_no_more_memories_than_its_model_accepts():
    class Wide(FakeModels):
        objects_at_a_time = 64

    few, many = Server(), Server(models=Wide())
    masks = []
    for server in (few, many):
        session = server.start()
        for name in range(60):
            session.click(0, name, [[name % 20, 3]])
        masks.append(session.track(range(8)))
    shapes = [call["memory_ages"].shape for call in many.models.attended]
    assert shapes[:6] == [(60, count) for count in range(1, 6)] + [(53, 6)]
    assert max(objects * memories for objects, memories in shapes) <= MAX_MEMORIES
    assert max(call["pointer_ages"].size for call in many.models.attended) <= MAX_PROMPT_POINTS
    for key, mask in masks[0].items():
        np.testing.assert_array_equal(masks[1][key], mask)


def test_each_step_happens_once(video_sessions):
    session = video_sessions.start(num_frames=5)
    session.click(0)
    first = session.do("propagate", frame_index=0, first=True)
    session.add_frames(1)
    answer = session.do("propagate", frame_index=1)
    calls = len(video_sessions.models.attended)
    again = video_sessions.ask("propagate", session.id, frame_index=1, step=session.step)
    np.testing.assert_array_equal(again["masks"], answer["masks"])
    assert len(video_sessions.models.attended) == calls
    assert video_sessions.counts["repeats"] == 1
    assert not np.array_equal(first["masks"], answer["masks"])
    for step in (session.step - 1, session.step + 2, session.step + 100):
        refused(InputError, "expects step 4", video_sessions.ask, "propagate", session.id, frame_index=1, step=step)
    refused(InputError, "expects step 4", video_sessions.ask, "reset_session", session.id, step=session.step)
    refused(InputError, "step must be", video_sessions.ask, "reset_session", session.id)
    refused(PromptError, "no frame 7", session.do, "propagate", frame_index=7)
    session.do("propagate", frame_index=1)  # a refused request is no step


def test_32_sessions_do_not_meet(video_sessions):
    def run(session):
        session.click(0, 1, [[session.shift % 19, 3]])
        session.click(0, 2, [[3, 4]])
        return session.track(range(8))

    def sessions(where):
        return [Client(where, where.start(num_frames=8).result, shift=number) for number in range(32)]

    together = sessions(video_sessions)
    refused(ServerBusyError, "32 video sessions are open", video_sessions.start)
    with ThreadPoolExecutor(16) as threads:
        masks = list(threads.map(run, together))
    for number, session in enumerate(sessions(Server())):
        for key, mask in run(session).items():
            np.testing.assert_array_equal(masks[number][key], mask)
    assert len({mask[7, 1].tobytes() for mask in masks}) == 32
    video_sessions.ask("close_session", together[0].id)
    refused(UnknownSessionError, "unknown or expired video session", together[0].track, [0])
    video_sessions.start()


def test_a_request_that_waits_while_its_session_is_closed_changes_nothing(video_sessions):
    session, sessions = video_sessions.start(), video_sessions.model.sessions
    found = sessions.by_id[session.id]
    video_sessions.ask("close_session", session.id)
    sessions.by_id[session.id] = found  # for a request that had found it before
    refused(UnknownSessionError, "was closed", session.do, "reset_session")


def test_a_session_whose_request_runs_is_not_idle(video_sessions):
    session, sessions = video_sessions.start(), video_sessions.model.sessions
    found = sessions.by_id[session.id]
    closed = []
    answer = video_sessions.model._answer

    def sweep(*arguments):
        found.used = float("-inf")
        closed.append(sessions.close_idle())
        return answer(*arguments)

    video_sessions.model._answer = sweep
    session.do("reset_session")
    assert (closed, sessions.close_idle()) == ([0], 0)  # it was used just now
    found.used = float("-inf")
    assert sessions.close_idle() == 1


def test_a_session_drops_the_ids_of_its_oldest_frames():
    session = VideoSession("id", None, None, None)
    for index in (*range(KNOWN_FRAMES), 0, KNOWN_FRAMES):
        session.add_frame(index, str(index), SIZE)
    assert list(session.image_ids) == [*range(2, KNOWN_FRAMES), 0, KNOWN_FRAMES]


@pytest.mark.parametrize("frames", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_frames_take_no_more_memory(video_sessions, frames):
    session = video_sessions.start()
    session.click(0)
    (tracker,) = [each.tracker for each in video_sessions.model.sessions.by_id.values()]
    sizes_seen, file = [], np.array([frame_file(0)], np.object_)
    for frame in range(frames):
        video_sessions.models.attended.clear()
        video_sessions.models.decoded.clear()
        video_sessions.models.remembered.clear()
        video_sessions.ask(
            "propagate",
            session.id,
            {"frames": file},
            frame_index=frame,
            frame_indexes=[frame],
            first=frame == 0,
            step=session.step + 1,
        )
        session.step += 1
        sizes_seen.append(kept_bytes(tracker))
    assert sizes_seen[-1] == sizes_seen[200]
    (memory,) = tracker.objects.values()
    assert len(memory.tracked) == STREAM_FRAMES + 1
    assert len(memory.frames.runs) == 1
    assert (
        len(video_sessions.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0])
        < 9 * (MEMORY + LOGITS) + 20 * POINTER + 4000
    )


def test_a_session_keeps_to_its_bytes():
    window = 7 * MEMORY + LOGITS + 16 * POINTER
    limit = window + 4 * (MEMORY + LOGITS)
    roomy, tight = Server(), Server(limits=Limits(session_bytes=limit))
    masks = []
    for server in (roomy, tight):
        session = server.start(num_frames=60)
        session.click(0)
        masks.append(session.track(range(50)))
        kept = kept_bytes(server.model.sessions.by_id[session.id].tracker)
        assert kept == server.model.gauges()["session_bytes"]
    assert tight.model.gauges()["session_bytes"] <= limit < roomy.model.gauges()["session_bytes"]
    for key, mask in masks[0].items():
        np.testing.assert_array_equal(masks[1][key], mask)
    refused(PromptError, "session_bytes", session.click, 50, 2)
    session.track([50], first=False)  # the session lives on


def test_limits_have_names():
    server = Server(limits=Limits(max_objects=2, max_prompted_frames=3))
    session = server.start(num_frames=9)
    for frame in range(3):
        session.click(frame)
    refused(PromptError, "max_prompted_frames", session.click, 3)
    session.click(2)
    session.click(0, 2)
    refused(PromptError, "max_objects", session.click, 0, 3)
    refused(PromptError, "1025 points", session.click, 0, 2, [[1, 1]] * 1025)
    assert server.ask("start_session")["result"]["limits"]["max_objects"] == 2
    session.do("clear_prompts", frame_index=2, object_id=1)
    session.click(3)


def test_frames_that_are_not_there_are_asked_for():
    server = Server(frames=2)
    session = server.start(num_frames=9)
    refused(
        UnknownImageError,
        "frame 0 is unknown or expired",
        session.do,
        "add_prompt",
        frame_index=0,
        object_id=1,
        points=[[1, 1]],
    )
    session.click(0)
    session.add_frames(1, 2, 3)
    refused(UnknownImageError, "frame 0 is unknown or expired", session.do, "propagate", frame_index=0, first=True)
    files = np.array([frame_file(0)], np.object_)
    answer = session.do("propagate", frame_index=0, first=True, frame_indexes=[0], tensors={"frames": files})
    assert list(rows(answer)) == [(0, 1)]


def test_every_answer_names_the_objects_and_where_a_pass_starts(video_sessions):
    session = video_sessions.start(num_frames=9)
    assert session.result["first_prompted_frame"] is None
    answers = [session.click(4), session.click(2, 2)]
    session.track(range(2, 6))
    answers += [session.click(3), session.click(1, 2)]  # the first corrects a frame that was tracked
    answers.append(session.do("clear_prompts", frame_index=1, object_id=2))
    answers.append(session.do("remove_object", object_id=2))
    answers.append(session.do("reset_session"))
    found = [(answer["result"]["object_ids"], answer["result"]["first_prompted_frame"]) for answer in answers]
    assert found == [([1], 4), ([1, 2], 2), ([1, 2], 2), ([1, 2], 1), ([1, 2], 2), ([1], 4), ([], None)]


GOOD: dict[str, dict] = {
    "add_prompt": {"frame_index": 0, "object_id": 1, "points": [[1, 1]]},
    "propagate": {"frame_index": 0},
    "clear_prompts": {"frame_index": 0, "object_id": 1},
    "remove_object": {"object_id": 1},
    "update_memories": {"frame_index": 0},
}
WRONG = {  # words of the error: its type, operation, argument, its wrong values
    "operation must be one of": (InputError, "fly", "", [None]),
    "frame_index must be a whole number": (InputError, "add_prompt", "frame_index", [None, -1, True, "0"]),
    "there is no frame 9": (PromptError, "propagate", "frame_index", [9]),
    "object_id must be a whole number": (InputError, "remove_object", "object_id", [1.5, 1 << 63]),
    "lies outside": (PromptError, "add_prompt", "points", [[[99, 1]]]),
    "for one object, not for 2": (PromptError, "add_prompt", "points", [[[[1, 1]], [[2, 2]]]]),
    "give points, a box or a mask": (PromptError, "add_prompt", "points", [[]]),
    "label": (PromptError, "add_prompt", "labels", [[7], [1, 1]]),
    "frame_indexes must be a list": (InputError, "add_frames", "frame_indexes", [3, [-1]]),
    "must name each of the 0 frames": (InputError, "add_frames", "frame_indexes", [[1]]),
    "absent must be a list": (InputError, "update_memories", "absent", [3, [1.5]]),
    "add a prompt first": (PromptError, "propagate", "first", [True]),
    "no pass was begun": (PromptError, "propagate", "first", [False]),
    "no object 1": (PromptError, "clear_prompts", "object_id", [1]),
    "no frames": (VideoError, "start_session", "num_frames", [0]),
    "num_frames must be a whole number": (InputError, "start_session", "num_frames", [False, 0.0]),
    "frame_size must be": (InputError, "start_session", "frame_size", [[1]]),
}


@pytest.mark.parametrize("words", WRONG)
def test_bad_arguments_are_one_error_each(video_sessions, words):
    kind, operation, argument, values = WRONG[words]
    session = video_sessions.start(num_frames=9)
    session.add_frames(0)
    step = {"step": 1} if operation in GOOD else {}
    for value in values:
        changed = {argument: value} if argument else {}
        refused(
            kind, words, video_sessions.ask, operation, session.id, **{**GOOD.get(operation, {}), **step, **changed}
        )
    session.click(0)
    assert len(session.track([0, 1])) == 2  # the session lives on


def test_arguments_that_do_not_fit_each_other(video_sessions):
    session = video_sessions.start(num_frames=9)
    session.add_frames(0)
    ask, name, prompt = (
        video_sessions.ask,
        session.id,
        {"frame_index": 0, "object_id": 1, "box": [1, 1, 5, 5], "step": 1},
    )
    refused(PromptError, "a box comes before", ask, "add_prompt", name, clear_old_points=False, **prompt)
    refused(PromptError, "label -2", ask, "add_prompt", name, points=[[1, 1]], labels=[-2], **prompt)


def test_bad_tensors_are_one_error_each(video_sessions):
    session = video_sessions.start(num_frames=9)
    session.add_frames(0)
    ask, name = video_sessions.ask, session.id
    prompt = {"frame_index": 0, "object_id": 1, "step": 1}
    refused(PromptError, "size of the frames", ask, "add_prompt", name, {"mask": np.ones((3, 3), bool)}, **prompt)
    refused(PromptError, "mask must be a bool", ask, "add_prompt", name, {"mask": np.ones((3, 0), bool)}, **prompt)
    mask = {"mask": np.ones(SIZE[::-1], bool)}
    refused(PromptError, "cannot be combined", ask, "add_prompt", name, mask, points=[[1, 1]], **prompt)
    refused(PromptError, "cannot be combined", ask, "add_prompt", name, mask, box=[1, 1, 5, 5], **prompt)
    refused(InputError, "takes no mask", ask, "reset_session", name, {"mask": np.ones((3, 3), bool)}, step=1)
    refused(InputError, "arguments: invalid JSON", ask, "reset_session", name, {"arguments": text(b"{")})
    refused(
        InputError,
        "JSON object, not a list",
        ask,
        "reset_session",
        name,
        {"arguments": text(b"[]")},
    )
    refused(InputError, "output_format must be", ask, "reset_session", name, output_format="bmp", step=1)
    refused(InputError, "needs the session_id", ask, "reset_session", None, step=1)
    refused(
        UnknownSessionError,
        "unknown or expired video session",
        ask,
        "reset_session",
        None,
        {"session_id": text(b"\xff")},
        step=1,
    )
    refused(ImageError, "not an image", ask, "add_frames", name, {"frames": text(b"no")}, frame_indexes=[1])
    twice = {"frames": np.array([b"", b""], np.object_)}
    refused(InputError, "once", ask, "add_frames", name, twice, frame_indexes=[1, 1])
    refused(VideoError, "one size", session.add_frames, 1, size=(9, 9))
    refused(PromptError, "no frame 9", session.add_frames, 9)
    sized = video_sessions.ask("start_session", frame_size=[7, 7])["result"]["session_id"]
    refused(VideoError, "one size", Client(video_sessions, {"session_id": sized}).add_frames, 0)
    session.click(0)


def test_a_strand_runs_one_after_the_other_and_is_bounded():
    seen, gate = [], threading.Event()
    with ThreadPoolExecutor(4) as threads:
        strand = SerialQueue(threads)
        first = strand.submit(lambda: gate.wait(60) and seen.append(0))
        rest = [strand.submit(lambda number=number: seen.append(number)) for number in range(1, MAX_WAITING)]
        with pytest.raises(ServerBusyError, match="too many requests wait for this session"):
            strand.submit(lambda: None)
        assert threads.submit(lambda: "free").result(60) == "free"
        gate.set()
        for each in (first, *rest):
            each.result(60)
        wait_until(lambda: not strand.is_busy)
    assert seen == list(range(MAX_WAITING))
