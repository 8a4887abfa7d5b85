"""Snapshots of video sessions: they go on with equal masks at every frame, and damaged ones are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.fake_tracking import SIZE, Client, Server, refused, rows, text

from triton_sam.errors import (
    InputError,
    PromptError,
)
from triton_sam.families import get_family
from triton_sam.sessions.video.memory import Limits, ObjectMemory, Output, sizes, stored_memory
from triton_sam.sessions.video.snapshot import read_snapshot, write_snapshot
from triton_sam.sessions.video.tracker import Tracker

DAMAGED = "the snapshot is damaged, cut off or changed: start a session without it"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_snapshot_at_every_frame_goes_on_with_equal_masks(server, reverse):
    frames = list(range(24))[:: -1 if reverse else 1]
    session = server.start(num_frames=24)
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
        other = Client(server, server.ask("start_session", tensors={"snapshot": snapshots[frame]})["result"])
        assert other.result["object_ids"] == [1, 2, 3]
        assert other.result["frame_size"] == list(SIZE)
        got = other.track(frames[done + 1 :], first=False, reverse=reverse)
        again = {**got, **other.track(frames, reverse=reverse)}  # a new pass, from the first prompt
        for key, mask in again.items():
            np.testing.assert_array_equal(mask, expected[key], err_msg=f"{key} after frame {frame}")
        server.ask("close_session", other.id)


def test_a_snapshot_before_the_first_pass_and_a_correction_after_one(server):
    session = server.start(num_frames=20)
    session.click(0)
    restored = server.ask("get_snapshot", session.id, snapshot=True)["snapshot"]
    other = Client(server, server.ask("start_session", tensors={"snapshot": restored})["result"])
    expected = session.track(range(10))
    for key, mask in other.track(range(10)).items():
        np.testing.assert_array_equal(mask, expected[key])
    content = server.ask("get_snapshot", session.id, snapshot=True)["snapshot"]
    third = Client(server, server.ask("start_session", tensors={"snapshot": content})["result"])
    answers = [rows(each.click(9, 1, [[1, 1]], labels=[0], clear_old_points=False)) for each in (session, third)]
    np.testing.assert_array_equal(answers[0][9, 1], answers[1][9, 1])
    assert server.models.decoded[-1][1].mask is not None
    after = [each.track(range(9, 15)) for each in (session, third)]
    for key, mask in after[0].items():
        np.testing.assert_array_equal(mask, after[1][key])


def test_damaged_snapshots_are_one_error(server):
    session = server.start(num_frames=20)
    session.click(0)
    session.track(range(4))
    content = server.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0]
    rng = np.random.default_rng(0)
    damaged = [b"", b"x", content[:-1], content + b"x", content[: len(content) // 2]]
    for place in rng.integers(0, len(content), 40):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(changed))
    before = len(server.model.sessions)
    for each in damaged:
        refused(InputError, DAMAGED, server.ask, "start_session", tensors={"snapshot": text(each)})
    assert len(server.model.sessions) == before
    other = Server()
    other.model._identity = "other weights"
    refused(InputError, "other models", other.ask, "start_session", tensors={"snapshot": text(content)})
    few = Server(limits=Limits(objects=1, prompted_frames=0))
    refused(PromptError, "max_prompted_frames", few.ask, "start_session", tensors={"snapshot": text(content)})


def test_a_hostile_snapshot_with_a_right_hash_is_refused(server):
    from hashlib import blake2b

    session = server.start(num_frames=20)
    session.click(0)
    session.track(range(3))
    content = server.ask("get_snapshot", session.id, snapshot=True)["snapshot"][0]
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
    for key, value in changes:
        body = json.dumps({**state, key: value}).encode() + b"\n" + data
        made = mark + blake2b(body, digest_size=16).digest() + body
        refused(InputError, DAMAGED, server.ask, "start_session", tensors={"snapshot": text(made)})


def test_memories_of_another_shape_and_dtype_survive():
    """EdgeTAM's memories are float32 tokens, whose shape does not depend on the image size."""
    family = get_family("edgetam").at(256)
    table = family.tracking
    before, after = (Tracker(None, table, 256, 9, Limits()) for _ in range(2))
    rng = np.random.default_rng(0)
    memory = stored_memory(rng.normal(size=table.memory_shape).astype(np.float32), table)
    output = Output(rng.random(256, np.float32), 1.0, 0.5, rng.random((1, 64, 64), np.float32), memory)
    before.objects[1] = ObjectMemory(prompted={0: output})
    assert read_snapshot(write_snapshot(before, SIZE, "models"), after, "models") == SIZE
    found = after.objects[1].prompted[0]
    for name in ("memory", "logits", "pointer"):
        np.testing.assert_array_equal(getattr(found, name), getattr(output, name))
    assert found.memory.dtype == np.float32
    assert sizes(table) == (found.memory.nbytes, found.logits.nbytes, found.pointer.nbytes)
