"""Searches for everything and for words under generated requests: each is answered, or refused with one clear error."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
from support.fuzzing import REFUSALS, image_file, session, text
from support.spoiled import junk, spoil

from triton_sam.concepts.query import read_query
from triton_sam.errors import PromptError, SamError
from triton_sam.everything.parameters import Parameters
from triton_sam.masks import Cleanup
from triton_sam.wire import contract

GOOD = image_file()
SIZE = [16, 12]
PARAMETERS = [each.name for each in fields(Parameters)]


def parameters(rng):
    """Return parameters of a small search, of which some may be wrong."""
    right = {"points_per_side": rng.randrange(1, 4), "pred_iou_thresh": 0, "stability_score_thresh": 0}
    right |= rng.choice([{}, {}, {"crop_n_layers": 1}, {"use_m2m": True}])
    if rng.random() < 0.3:
        cleanup = {name: rng.choice([0, 1, True, 5]) for name in rng.sample([*Cleanup.__dataclass_fields__], 2)}
        right["cleanup"] = spoil(rng, cleanup, [*Cleanup.__dataclass_fields__])
    return spoil(rng, right, PARAMETERS)


def part(rng):
    """Return a part of a search, of which some members may be wrong."""
    right = {
        "points": [[rng.choice([0, 3, 11.5, 16]), rng.choice([0, 3, 11.5, 12])] for _ in range(rng.randrange(1, 4))],
        "parameters": parameters(rng) if rng.random() < 0.5 else {"pred_iou_thresh": 0, "stability_score_thresh": 0},
    }
    if rng.random() < 0.5:
        right |= {"crop": [0, 0, *SIZE], "image_size": rng.choice([SIZE, [40, 30]])}
    if rng.random() < 0.1:
        right["points"] = [[rng.choice([-1, 17, 1e9]), 3]]
    return spoil(rng, right, ["crop", "image_size"])


def query(rng):
    """Return a search for words, of which some members may be wrong."""
    right = {"text": rng.choice(["cat", ["cat", "yellow bus"], "é" * 20])}
    optional = {
        "boxes": [[1, 2, 8, 9]],
        "box_labels": [1],
        "threshold": rng.random(),
        "mask_threshold": rng.random(),
        "nms": rng.choice([None, 0.5]),
        "limit": rng.choice([None, 1, 300]),
    }
    right |= {name: value for name, value in optional.items() if rng.random() < 0.4}
    return spoil(rng, right, sorted(optional))


def code_of(reply, sent):
    """Return the code of a refusal; "" for an answer, which has objects or says why there are none."""
    if reply.error is not None:
        assert isinstance(reply.error, SamError), repr(reply.error)
        refusal = contract.code_of(reply.error)
        assert refusal in REFUSALS, f"{sent}: {type(reply.error).__name__}: {reply.error}"
        assert "\n" not in str(reply.error)
        return refusal
    result = json.loads(reply.tensors["result_json"][0])
    assert result["objects"] or result["reason"]
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make", "count"), [("everything", parameters, 150), ("everything_part", part, 800)])
def test_any_search_for_everything_is_answered_or_refused(name, make, count):
    model, rng, counts = session(), random.Random(1), Counter()
    find = model.find_everything if name == "everything" else model.find_part
    for _ in range(count):
        given = make(rng) if rng.random() < 0.95 else junk(rng)
        named = {"image": text(GOOD)}
        if name == "everything_part" and rng.random() < 0.3:
            named = {"image_id": model.answer(named).tensors["image_id"]}
        sent = {**named, name: text(json.dumps(given).encode())}
        counts[code_of(find(sent, lambda: False), given)] += 1
    assert counts[""] >= count // 5, counts  # otherwise this test would prove little
    assert counts["BAD_REQUEST"] >= count // 5, counts


def test_any_query_for_words_is_read_or_refused():
    rng, counts = random.Random(1), Counter()
    for _ in range(3000):
        content = json.dumps(query(rng) if rng.random() < 0.95 else junk(rng)).encode()
        if rng.random() < 0.05:
            content = content[: rng.randrange(len(content))] + rng.randbytes(2)
        try:
            found = read_query(content)
        except PromptError:
            counts["refused"] += 1
            continue
        counts["read"] += 1
        assert np.isfinite(found.boxes).all()
        assert len(found.boxes) == len(found.box_labels)
        again = read_query(found.to_json())
        assert again.texts == found.texts
        np.testing.assert_array_equal(again.boxes, found.boxes)
    assert min(counts["read"], counts["refused"]) >= 500, counts
