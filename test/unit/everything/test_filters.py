"""The filters of a search, at the numbers where they begin to act."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.everything.filters import is_cut_off, stability_of

LOGITS = np.float32([[-3, -2, -1, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    ("threshold", "offset", "expected"),
    [
        (0.0, 2.0, 1 / 5),  # above 2: one pixel; above -2: five
        (1.0, 1.0, 1 / 3),
        (0.0, 0.5, 3 / 4),
        (-3.0, 0.0, 1.0),
        (5.0, 0.0, 0.0),
    ],
)
def test_stability_is_the_share_of_pixels_that_stay(threshold: float, offset: float, expected: float) -> None:
    assert stability_of(LOGITS, threshold, offset) == pytest.approx(expected)


CROP, WHOLE = (100, 250, 500, 600), (1000, 900)


@pytest.mark.parametrize(
    ("box", "crop", "expected"),
    [
        ((50, 50, 300, 300), CROP, False),
        ((20, 50, 300, 300), CROP, True),
        ((21, 50, 300, 300), CROP, False),
        ((50, 20, 300, 300), CROP, True),
        ((50, 21, 300, 300), CROP, False),
        ((50, 50, 380, 300), CROP, True),
        ((50, 50, 379, 300), CROP, False),
        ((50, 50, 300, 330), CROP, True),
        ((50, 50, 300, 329), CROP, False),
        ((0, 0, 300, 300), (0, 0, 500, 600), False),  # the edges of the image cut nothing off
        ((50, 50, 500, 600), (500, 300, 1000, 900), False),
        ((10, 50, 300, 300), (10, 10, 500, 600), False),  # 20 pixels from the edge of the image
        ((11, 50, 300, 300), (10, 10, 500, 600), True),
        ((50, 11, 300, 300), (10, 10, 500, 600), True),
    ],
)
def test_a_box_is_cut_off_within_20_pixels_of_an_inner_edge(box, crop, expected: bool) -> None:
    assert is_cut_off(box, crop, WHOLE) is expected
