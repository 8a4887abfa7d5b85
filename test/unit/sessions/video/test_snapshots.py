"""Snapshots of video sessions: they go on with equal masks at every frame, and damaged ones are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.fake_tracking import SIZE, TABLE, Client, Server, refused, rows, text

from triton_sam.errors import (
    InputError,
    PromptError,
)
from triton_sam.families import get_family
from triton_sam.sessions.video.memory import Limits, ObjectMemory, Output, Points, TrackedFrames, sizes
from triton_sam.sessions.video.sessions import read_snapshot, write_snapshot
from triton_sam.sessions.video.tracker import Tracker

DAMAGED = "the snapshot is damaged, cut off or changed: start a session without it"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_snapshot_at_every_frame_goes_on_with_equal_masks(video_sessions, reverse):
    frames = list(range(24))[:: -1 if reverse else 1]
    session = video_sessions.start(num_frames=24)
    session.click(frames[0], 1)
    session.click(frames[4], 1, [[9, 9]], labels=[0])
    session.click(frames[2], 2, None, box=[1, 1, 7, 7])
    session.add_frames(frames[0])
    session.do("add_prompt", frame_index=frames[0], object_id=3, tensors={"mask": np.ones(SIZE[::-1], bool)})
    expected, snapshots, first = {}, {}, True
    for frame in frames:
        session.add_frames(frame)
        answer = session.do("propagate", frame_index=frame, reverse=reverse, first=first, snapshot=True)
        first = False
        expected.update(rows(answer))
        snapshots[frame] = answer["snapshot"]
    assert len(expected) == 3 * 24
    for done, frame in enumerate(frames):
        other = Client(
            video_sessions, video_sessions.ask("start_session", tensors={"snapshot": snapshots[frame]})["result"]
        )
        assert other.result["object_ids"] == [1, 2, 3]
        assert other.result["frame_size"] == list(SIZE)
        got = other.track(frames[done + 1 :], first=False, reverse=reverse)
        again = {**got, **other.track(frames, reverse=reverse)}  # a new pass, from the first prompt
        for key, mask in again.items():
            np.testing.assert_array_equal(mask, expected[key], err_msg=f"{key} after frame {frame}")
        video_sessions.ask("close_session", other.id)


def test_damaged_snapshots_are_one_error(video_sessions):
    session = video_sessions.start(num_frames=20)
    session.click(0)
    session.track(range(4))
    content = video_sessions.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0]
    rng = np.random.default_rng(0)
    damaged = [b"", b"x", content[:-1], content + b"x", content[: len(content) // 2]]
    for place in rng.integers(0, len(content), 40):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(changed))
    before = len(video_sessions.model.sessions.by_id)
    for each in damaged:
        refused(InputError, DAMAGED, video_sessions.ask, "start_session", tensors={"snapshot": text(each)})
    assert len(video_sessions.model.sessions.by_id) == before
    other = Server()
    other.model._identity = "other weights"
    refused(InputError, "other models", other.ask, "start_session", tensors={"snapshot": text(content)})
    few = Server(limits=Limits(max_objects=1, max_prompted_frames=0))
    refused(PromptError, "max_prompted_frames", few.ask, "start_session", tensors={"snapshot": text(content)})


HUGE = ("frame_size", [200_000, 200_000], "frame_size may have at most")
"""A mask of such frames would take all memory."""


def test_a_hostile_snapshot_with_a_right_hash_is_refused(video_sessions):
    from hashlib import blake2b

    session = video_sessions.start(num_frames=20)
    session.click(0)
    session.track(range(3))
    content = video_sessions.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0]
    mark, rest = content.split(b"\n", 1)[0] + b"\n", content.split(b"\n", 1)[1][16:]
    head, data = rest.split(b"\n", 1)
    state = json.loads(head)
    changes = [
        ("objects", 3),
        ("objects", [[]]),
        ("objects", [{}]),
        ("num_frames", -1),
        ("position", [1]),
        ("frame_size", [0, 0]),
        ("frame_size", 5),
        ("objects", []),
    ]
    for key, value, words in (*((*change, DAMAGED) for change in changes), HUGE):
        body = json.dumps({**state, key: value}).encode() + b"\n" + data
        made = mark + blake2b(body, digest_size=16).digest() + body
        refused(InputError, words, video_sessions.ask, "start_session", tensors={"snapshot": text(made)})


def test_a_snapshot_takes_no_more_memory_than_a_session(video_sessions):
    session = video_sessions.start(num_frames=40)
    session.click(0)
    session.track(range(40))
    content = video_sessions.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0]
    memory, logits, pointer = sizes(TABLE)
    least = memory + logits + pointer + TABLE.memories * memory + TABLE.pointers * pointer
    small, smaller = (Server(limits=Limits(session_bytes=each)) for each in (least, least - 1))
    small.ask("start_session", tensors={"snapshot": text(content)})
    (restored,) = small.model.sessions.by_id.values()
    assert restored.tracker.kept_bytes <= least + memory + logits  # of the last frame
    refused(PromptError, "session_bytes", smaller.ask, "start_session", tensors={"snapshot": text(content)})


def test_memories_of_another_shape_and_dtype_survive():
    """EdgeTAM's memories are float32 tokens, whose shape does not depend on the image size."""
    table = get_family("edgetam").at(256).tracking
    before, after = (Tracker(None, table, 256, 9, Limits()) for _ in range(2))
    rng = np.random.default_rng(0)
    memory = rng.normal(size=table.memory_shape).astype(np.float32)
    output = Output(rng.random(256, np.float32), 1.0, 0.5, rng.random((1, 64, 64), np.float32), memory)
    points = Points(rng.random((2, 2), np.float32), np.float32([1, 0]))
    runs = [(range(3, 8, 2), False), (range(9, 4, -1), True), (range(7, 8), True)]
    before.objects[1] = ObjectMemory(
        {0: output}, new_tracked={3: output}, points={5: points}, masked={4}, frames=TrackedFrames(runs)
    )
    assert read_snapshot(write_snapshot(before, SIZE, "models"), after, "models") == SIZE
    copy = after.objects[1]
    for found in (copy.prompted[0], copy.new_tracked[3]):
        for name in ("memory", "logits", "pointer", "score", "iou"):
            np.testing.assert_array_equal(getattr(found, name), getattr(output, name))
        assert found.memory.dtype == np.float32
    assert sizes(table) == (found.memory.nbytes, found.logits.nbytes, found.pointer.nbytes)
    np.testing.assert_array_equal(copy.points[5].coords, points.coords)
    np.testing.assert_array_equal(copy.points[5].labels, points.labels)
    assert (copy.masked, copy.frames.runs) == ({4}, runs)
    for kind, lost in (("prompted", "memory"), ("prompted", "logits"), ("new_prompted", "logits")):
        before.objects[1] = ObjectMemory(**{kind: {0: replace(output, **{lost: None})}})
        with pytest.raises(InputError, match=DAMAGED):
            read_snapshot(write_snapshot(before, SIZE, "models"), after, "models")


# Memories that a client updates after it has compared the masks of a frame with detections


def memory_of(server, session, object_id=1):
    return server.model.sessions.by_id[session.id].tracker.objects[object_id]


@pytest.fixture
def session(video_sessions):
    """A session with two objects, tracked in frame 1 without memories."""
    session = video_sessions.start(num_frames=20)
    session.click(0, 1)
    session.click(0, 2, points=((9, 2),))
    session.add_frames(1)
    session.do("propagate", frame_index=1, first=True, remember=False)
    return session


def test_absent_objects_are_remembered_as_invisible(video_sessions, session):
    session.do("update_memories", frame_index=1, absent=[2])
    seen, absent = (memory_of(video_sessions, session, object_id).tracked[1] for object_id in (1, 2))
    assert absent.memory.astype(np.int64).max() != seen.memory.astype(np.int64).max()
    assert (absent.logits > 0).any()  # the mask itself stays
    again = session.track([2])
    other = video_sessions.start(num_frames=20)
    other.click(0, 1)
    other.click(0, 2, points=((9, 2),))
    other.add_frames(1)
    other.do("propagate", frame_index=1, first=True, remember=False)
    other.do("update_memories", frame_index=1)
    without = other.track([2])
    assert (again[2, 1] == without[2, 1]).all()
    assert (again[2, 2] != without[2, 2]).any()


def test_the_last_frame_of_a_snapshot_is_updated_and_corrected_as_before(video_sessions, session):
    content = video_sessions.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0]
    started = video_sessions.ask("start_session", tensors={"snapshot": text(content)})
    masks = []
    for each in (session, Client(video_sessions, started["result"])):
        each.add_frames(1)
        each.do("update_memories", frame_index=1, absent=[2])
        absent = memory_of(video_sessions, each, 2).tracked[1].memory
        masks.append((absent, rows(each.click(1, 1, points=((9, 2),)))[1, 1]))
    for before, after in zip(*masks, strict=True):
        np.testing.assert_array_equal(before, after)


def test_confirmed_objects_count_as_prompted_until_others_follow(video_sessions, session):
    session.do("update_memories", frame_index=1, confirmed=[1, 77])
    assert list(memory_of(video_sessions, session, 1).prompted) == [0, 1]
    assert list(memory_of(video_sessions, session, 2).prompted) == [0]
    for frame in range(2, 9):
        session.add_frames(frame)
        session.do("propagate", frame_index=frame, remember=False)
        session.do("update_memories", frame_index=frame, confirmed=[1])
    known = memory_of(video_sessions, session, 1)
    assert list(known.prompted) == [0, 5, 6, 7, 8]  # the newest four
    assert sorted(known.tracked) == [1, 2, 3, 4]
    session.click(7, 1, points=((1, 1),))  # a correction takes the place of the confirmed output
    assert 7 not in known.prompted
    corrected = known.new_tracked[7]
    session.track([8])
    assert known.tracked[7] is corrected


def test_confirmed_frames_respect_the_limit_of_prompted_frames(video_sessions, session):
    tracker = video_sessions.model.sessions.by_id[session.id].tracker
    tracker.limits = type(tracker.limits)(max_prompted_frames=1)
    session.do("update_memories", frame_index=1, confirmed=[1])
    assert list(tracker.objects[1].prompted) == [0]
    assert tracker.objects[1].tracked[1].memory is not None


def test_prompts_come_before_confirmed_frames(video_sessions, session):
    """Confirmed frames take the room of prompts, and leave when a prompt needs it, but not for one that is refused."""
    tracker = video_sessions.model.sessions.by_id[session.id].tracker
    memory, logits, pointers = sizes(TABLE)
    window = TABLE.memories * memory + TABLE.pointers * pointers
    tracker.limits = type(tracker.limits)(session_bytes=3 * (2 * (memory + logits + pointers) + window))
    session.do("update_memories", frame_index=1, confirmed=[1, 2])
    for frame in (2, 3):
        session.add_frames(frame)
        session.do("propagate", frame_index=frame, remember=False)
        session.do("update_memories", frame_index=frame, confirmed=[1, 2])
    assert len(tracker.objects[1].prompted) > 1
    session.click(3, 3)
    assert [list(tracker.objects[number].prompted) for number in (1, 2)] == [[0], [0]]
    session.do("propagate", frame_index=3, remember=False)
    session.do("update_memories", frame_index=3, confirmed=[1])
    kept = list(tracker.objects[1].prompted)
    step = session.step + 1
    prompt = {"frame_index": 3, "object_id": 9, "points": [[1, 1]], "labels": [1], "step": step}
    tracker.limits = replace(tracker.limits, session_bytes=memory)
    refused(PromptError, "remove objects", video_sessions.ask, "add_prompt", session.id, **prompt)
    assert list(tracker.objects[1].prompted) == kept


def test_a_correction_is_not_replaced_by_a_confirmed_output(video_sessions, session):
    session.click(1, 1, points=((9, 2),))
    known = memory_of(video_sessions, session, 1)
    corrected = known.new_tracked[1]
    session.do("update_memories", frame_index=1, confirmed=[1])
    session.track([2])
    assert known.tracked[1] is corrected


def test_a_frame_that_was_never_tracked_has_no_memories_to_update(video_sessions, session):
    step, ask = session.step + 1, video_sessions.ask
    text = "frame 2 was not tracked: send propagate"
    refused(PromptError, text, ask, "update_memories", session.id, frame_index=2, step=step)
    session.do("update_memories", frame_index=1, absent=[2])  # the refused request used no step
    for object_id in (1, 2):
        session.click(3, object_id)
    session.add_frames(3)
    session.do("propagate", frame_index=3, first=True, remember=False)
    session.do("update_memories", frame_index=3)  # all objects have a prompt there, which is no error
