"""The video model under generated requests: each is answered, or refused with a code that is documented."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
from support.fake_tracking import SIZE, Server, frame_file, kept_bytes, text
from support.fuzzing import junk, spoil

from triton_sam.errors import SamError
from triton_sam.sessions.video.messages import ARGUMENTS, WITH_STEP
from triton_sam.wire import contract, video

REFUSALS = {*contract.CODES, contract.BAD_REQUEST}
FRAMES = [frame_file(number) for number in range(6)]
PROMPTS = (["points"], ["points", "labels"], ["box"], ["points", "box"], ["mask"], ["points", "mask"], [])
RIGHT = {
    "num_frames": [6],
    "frame_size": [list(SIZE)],
    "frame_indexes": [list(range(6))],
    "frame_index": [0, 0, 1, 2, 5],
    "object_id": [1, 1, 2, 3],
    "points": [[[3, 4]], [[3, 4], [9, 9]]],
    "labels": [[1], [1, 0]],
    "box": [[1, 1, 8, 8]],
    "clear_old_points": [True, False],
    "reverse": [True, False],
    "first": [True, False],
    "remember": [True, False],
    "absent": [[], [1], [1, 7]],
    "confirmed": [[], [2], [1, 2]],
    "step": ["next"],
    "words": [False, False, True],
    "query": [{"text": "bus"}, {}],
}
assert set(RIGHT) == {key for keys in ARGUMENTS.values() for key in keys}


def request_of(rng, step):
    """Return operation, arguments and tensors of a request that is right but for a few members."""
    operation = rng.choice(["add_prompt", "propagate", "propagate", "update_memories", *sorted(video.OPERATIONS)])
    prompt = rng.choice(PROMPTS)
    unwanted = {"points", "labels", "box"} - set(prompt) if operation == "add_prompt" else set()
    arguments = {key: rng.choice(RIGHT[key]) for key in ARGUMENTS[operation] if key not in unwanted}
    if "step" in arguments:
        arguments["step"] = step
    inputs = {"frames": np.array(FRAMES, np.object_)} if "frame_indexes" in arguments else {}
    if operation == "add_prompt" and "mask" in prompt:
        inputs["mask"] = np.ones((SIZE[1], SIZE[0]), np.bool_)
    others = {
        "frames": np.array([rng.choice([*FRAMES, b"", b"no image"]) for _ in range(rng.randrange(1, 7))], np.object_),
        "mask": np.ones([rng.randrange(4) for _ in range(rng.randrange(4))], np.bool_),
        "snapshot": text(rng.randbytes(20)),
        "output_format": text(rng.choice([b"logits", b"png", b"rle", b"gif", b"\xff"])),
    }
    if rng.random() < 0.25:
        name = rng.choice(sorted(others))
        inputs[name] = others[name]
    if rng.random() < 0.03:
        operation = str(junk(rng))
    return operation, spoil(rng, arguments, sorted(RIGHT)), inputs


def refused(reply):
    """Return the code of a refusal, or "" for an answer. Anything else is a fault of the model."""
    if reply.error is None:
        json.loads(reply.tensors["result"][0])
        return ""
    assert isinstance(reply.error, SamError), repr(reply.error)
    code = contract.code_of(reply.error).split()[-1]
    assert code in REFUSALS, f"{type(reply.error).__name__}: {reply.error}"
    assert "\n" not in str(reply.error)
    assert not reply.tensors
    return code


def send(server, session_id, operation, arguments, inputs):
    sent = {video.OPERATION: text(operation.encode()), video.ARGUMENTS: text(json.dumps(arguments).encode()), **inputs}
    if session_id:
        sent[video.SESSION_ID] = text(session_id.encode())
    reply = server.model.answer(sent)
    try:
        refusal = refused(reply)
    except AssertionError as error:
        raise AssertionError(f"{operation} {arguments} {inputs}: {error}") from reply.error
    if operation == video.START_SESSION and not refusal:
        server.ask("close_session", json.loads(reply.tensors["result"][0])["session_id"])
    return refusal


@pytest.fixture
def server():
    server = Server()
    yield server
    server.threads.shutdown()


def test_any_requests_are_answered_or_refused_and_other_sessions_live_on(server):
    rng, counts = random.Random(1), Counter()
    for _ in range(300):
        lone, session = server.start(num_frames=6), server.start(num_frames=6)
        session.click(0)
        step = 2
        for _ in range(20):
            operation, arguments, inputs = request_of(rng, step)
            name = rng.choice([session.id] * 15 + ["", "unknown"])
            refusal = send(server, name, operation, arguments, inputs)
            counts[operation if operation in ARGUMENTS else "none", refusal] += 1
            for each in server.model.sessions._sessions.values():
                kept_bytes(each.tracker)
            step += name == session.id and not refusal and operation in WITH_STEP and arguments["step"] == step
        lone.click(0)
        assert lone.track(range(3)).keys() == {(0, 1), (1, 1), (2, 1)}
        for each in (lone.id, session.id):
            send(server, each, "close_session", {}, {})
        assert len(server.model.sessions) == 0
    # Otherwise this test would prove little.
    answered = {operation for operation, refusal in counts if not refusal}
    assert answered == set(video.OPERATIONS) - {video.FIND}, counts  # SAM2 has no models for words
    assert min(counts["add_prompt", ""], counts["propagate", ""]) >= 30, counts
    assert {code for _, code in counts} >= {"BAD_PROMPT", "BAD_REQUEST", "UNKNOWN_SESSION_ID", "BAD_IMAGE"}, counts


def test_any_bytes_as_arguments_are_refused(server):
    rng = random.Random(3)
    for _ in range(300):
        content = rng.choice([rng.randbytes(rng.randrange(1, 30)), json.dumps([junk(rng)]).encode()])
        reply = server.model.answer({video.OPERATION: text(b"start_session"), video.ARGUMENTS: text(content)})
        assert refused(reply), content
