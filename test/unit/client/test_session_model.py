"""Which prompts go to a session model in one request."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.client.session_model import fits
from triton_sam.inputs.prompts import Prompts
from triton_sam.wire.contract import MAX_OBJECTS, MAX_POINTS

OBJECTS = 4


def prompts(objects: int, points: int, *, boxes: bool) -> Prompts:
    return Prompts(
        coords=np.zeros((objects, points, 2), np.float32),
        labels=np.ones((objects, points), np.int64),
        boxes=np.zeros((objects, 4), np.float32) if boxes else None,
        mask=None,
        image_size=(64, 48),
    )


@pytest.mark.parametrize("boxes", [False, True])
def test_as_many_points_as_the_contract_allows_and_a_box_counts_as_two(boxes: bool) -> None:
    most = MAX_POINTS // OBJECTS - (2 if boxes else 0)
    assert fits(prompts(OBJECTS, most, boxes=boxes))
    assert not fits(prompts(OBJECTS, most + 1, boxes=boxes))


def test_as_many_objects_as_the_contract_allows() -> None:
    assert fits(prompts(MAX_OBJECTS, 1, boxes=False))
    assert not fits(prompts(MAX_OBJECTS + 1, 1, boxes=False))
