"""Places, sessions and threads come back, wherever a request dies: 10,000 requests whose calls fail at random."""

import json
import random

import numpy as np
import pytest
from support.conditions import wait_until
from support.fake_tracking import NAMES, SIDE, FakeModels, computed_by, frame_file
from support.fuzzing import PAIR, Dice, compute, image_file
from support.pb_utils import Request, Triton, arguments

from triton_sam.client.session_image import text
from triton_sam.sessions.image import session

REQUESTS = 5_000
"""Of each model."""
SHARE = 0.06
"""Each request passes some ten places that may fail, so that every second one dies."""


def run(model, requests):
    """Let Triton hand requests to a model, a few at a time; wait until each was answered, or its answer was lost."""
    rng = random.Random(0)
    waiting = list(requests)
    while waiting:
        few = [waiting.pop() for _ in range(min(len(waiting), rng.randrange(1, 6)))]
        model.execute(few)
        for each in few[:3]:  # so that some of the others wait, and some are refused
            each.answer()
    for each in requests:
        each.answer()


def test_no_place_of_a_session_model_is_lost(monkeypatch):
    monkeypatch.setattr(session, "encoder_input", lambda image, family: np.zeros((1, 3, 8, 8), np.float32))
    dice, rng = Dice(1, SHARE), random.Random(2)
    files = [image_file(form) for form in ("PNG", "BMP", "WEBP")]
    point = {"point_coords": np.float32([[[3, 3]]]), "point_labels": np.float32([[1]])}
    small = b'{"points_per_side": 1, "pred_iou_thresh": 0, "stability_score_thresh": 0}'
    kinds = [
        lambda: (["masks"], {"image": text(rng.choice(files)), **point}),
        lambda: (["image_id"], {"image": text(rng.choice(files))}),
        lambda: (["masks"], {"image_id": text(b"unknown"), **point}),
        lambda: (["masks"], {"image": text(b"no image")}),
        lambda: (["result_json"], {"image": text(rng.choice(files)), "everything": text(small)}),
        lambda: (
            ["result_json"],
            {"image": text(rng.choice(files)), "everything_part": text(b'{"points": [[1, 1]], "parameters": {}}')},
        ),
        lambda: (["result_json"], {"prompt_json": text(b"{")}),
    ]
    requests = [Request(*rng.choice(kinds)(), dice=dice) for _ in range(REQUESTS)]
    given = arguments("sam2", threads="2", max_pending="4", max_jobs="2", **PAIR)
    with Triton(compute, dice).serving("image.triton_model", given) as model:
        pools = {"clicks": model._clicks, "images": model._images}
        pools |= {name: pool for name, (pool, _) in model._searches.items()}
        before = {name: pool._free for name, pool in pools.items()}
        fail_submits(pools.values(), dice)
        run(model, requests)
        dice.share = 0
        wait_until(lambda: {name: pool._free for name, pool in pools.items()} == before)
        last = Request(["masks"], {"image": text(files[0]), **point})
        run(model, [last])
        assert last.answer().code == ""
    assert len(dice.failures) == 9
    assert min(dice.failures.values()) > 10, dice.failures


def fail_submits(pools, dice):
    """Let a pool fail to start a thread now and then."""
    for pool in pools:

        def submit(*arguments, original=pool.threads.submit):
            dice.roll("submit")
            return original(*arguments)

        pool.threads.submit = submit


@pytest.mark.slow
def test_no_place_and_no_session_of_a_video_model_is_lost():
    dice, rng = Dice(3, SHARE), random.Random(4)
    size = {"family": "SAM2", "image_size": str(SIDE)}
    given = arguments("sam2_video", threads="2", max_pending="4", max_sessions="5", **size, **NAMES)
    with Triton(computed_by(FakeModels()), dice).serving("video.triton_model", given) as model:
        pools = {"work": model._work, "frames": model._frames}
        before = {name: pool._free for name, pool in pools.items()}
        fail_submits(pools.values(), dice)
        opened = set()
        for _ in range(2 * REQUESTS // 5):
            few = [video_request(dice, rng, sorted(opened)) for _ in range(5)]
            run(model, few)
            for each in few:
                answer = each.answer()
                result = {} if answer.code else json.loads(answer.tensors["result"][0])
                opened |= {result["session_id"]} if "session_id" in result else set()
            opened = {each for each in opened if each in model._model.sessions.by_id}
        dice.share = 0
        assert set(model._model.sessions.by_id) == opened  # each session is known to a client
        assert opened
        for each in model._model.sessions.by_id.values():
            wait_until(lambda each=each: not each.strand.is_busy)
        wait_until(lambda: {name: pool._free for name, pool in pools.items()} == before)
    assert min(dice.failures.values()) > 10, dice.failures


def video_request(dice, rng, sessions):
    """Return a request of a client that knows some sessions."""
    session = rng.choice(sessions) if sessions else None
    if session is None or rng.random() < 0.1:
        return video_inputs(dice, "start_session", None, {"num_frames": 9})
    if rng.random() < 0.05:
        return video_inputs(dice, "close_session", session, {})
    frame = rng.randrange(3)
    files = {"frames": np.array([frame_file(frame)], np.object_)}
    if rng.random() < 0.5:
        return video_inputs(dice, "add_frames", session, {"frame_indexes": [frame]}, files)
    click = {
        "frame_index": frame,
        "object_id": 1,
        "points": [[3, 4]],
        "frame_indexes": [frame],
        "step": rng.randrange(1, 4),
    }
    return video_inputs(dice, "add_prompt", session, click, files)


def video_inputs(dice, operation, session, values, tensors=None):
    inputs = {"operation": text(operation.encode()), "arguments": text(json.dumps(values).encode()), **(tensors or {})}
    if session is not None:
        inputs["session_id"] = text(session.encode())
    return Request(["result"], inputs, dice=dice)
