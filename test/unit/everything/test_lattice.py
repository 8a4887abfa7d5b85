"""The adaptive mode leaves out a point exactly where its neighbours found the same masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from support.found_masks import found_mask

from triton_sam.everything.lattice import Lattice

SIDE = 4
SIZE = (128, 96)  # every second pixel is compared
BETWEEN = 1  # the point right of the first one, whose neighbours in the first two passes are 0 and 2


def mask(left: int, right: int) -> npt.NDArray[np.bool_]:
    """Return a mask (H,W) of some columns."""
    made = np.zeros(SIZE[::-1], bool)
    made[:, left:right] = True
    return made


WIDE, WITHIN, BARELY, APART = mask(0, 100), mask(0, 80), mask(0, 78), mask(104, 128)


def grid(side: int) -> npt.NDArray[np.float32]:
    return np.array([(x, y) for y in range(side) for x in range(side)], np.float32)


def passes(masks: dict[int, list[npt.NDArray[np.bool_]]], side: int = SIDE) -> list[list[int]]:
    """Return the points of each pass, where the point N finds masks[N], and all others find the wide mask."""
    lattice = Lattice(grid(side), SIZE)
    tried = []
    for indices in lattice.passes():
        tried.append(indices.tolist())
        for index in tried[-1]:
            lattice.put(index, [found_mask(each) for each in masks.get(index, [WIDE])])
    return tried


def test_points_between_equal_masks_are_left_out():
    at_the_edge = [3, 11, 12, 14, 15]  # each has one neighbour alone that was tried
    assert passes({}) == [[10], [0, 2, 8], at_the_edge]


def test_points_that_find_nothing_everywhere_are_left_out_between_close_neighbours_alone():
    nothing = {index: [] for index in range(SIDE * SIDE)}
    assert passes(nothing)[:2] == [[10], [0, 2, 8]]
    assert BETWEEN not in [index for each in passes(nothing) for index in each]


@pytest.mark.parametrize(
    ("first", "second", "left_out"),
    [
        ([WIDE], [WIDE], True),
        ([WIDE], [WITHIN], True),  # IoU 0.8
        ([WITHIN], [WIDE], True),
        ([WIDE], [BARELY], False),
        ([WIDE], [APART], False),
        ([WIDE, APART], [APART, WIDE], True),
        ([WIDE, APART], [WIDE], False),
        ([WIDE], [WIDE, APART], False),
        ([WIDE], [], False),
        ([], [], True),
    ],
)
def test_neighbours_agree_if_each_mask_has_a_counterpart(first, second, left_out):
    same = {10: second, 8: first} if first or second else {10: [], 8: []}
    tried = [index for each in passes({0: first, 2: second, **same})[2:3] for index in each]
    assert (BETWEEN not in tried) == left_out


def test_a_point_is_tried_after_all_where_a_later_neighbour_disagrees():
    """With 8 points a side, the third pass leaves out 14 and 15 beside 7, which turns out to find another mask."""
    side = 8
    assert len(passes({}, side)) == 3
    tried = passes({7: [APART]}, side)
    assert 7 in tried[2]
    assert tried[3:] == [[14, 15]]


@pytest.mark.parametrize("seed", range(8))
def test_every_point_left_out_has_neighbours_that_agree_at_the_end(seed):
    side, random = 9, np.random.default_rng(seed)
    lattice = Lattice(grid(side), SIZE)
    tried = []
    for indices in lattice.passes():
        for index in indices.tolist():
            lattice.put(index, [found_mask([WIDE, APART][int(random.random() < 0.12)])])
            tried.append(index)
    left_out = set(range(side * side)) - set(tried)
    assert len(tried) == len(set(tried))
    assert left_out
    assert all(lattice._agreed(index, 1) is not None for index in left_out)
