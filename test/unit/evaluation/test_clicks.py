"""Simulated clicks and boxes, by hand."""

import numpy as np
import pytest
from support.rectangles import mask

from triton_sam.errors import InputError

pytest.importorskip("scipy", reason="needs the evaluate extra")
pytest.importorskip("skimage", reason="needs the evaluate extra")
from triton_sam.evaluation.clicks import Click, first_click, next_click, shaken_box, tight_box


def test_the_first_click_goes_to_the_innermost_pixel():
    assert first_click(mask((2, 3, 9, 10))) == Click(5, 6, 1)
    assert first_click(mask((2, 3, 9, 10), (12, 2, 29, 4))) == Click(5, 6, 1)  # the longer one is thinner


def test_the_edge_of_the_image_is_a_border():
    assert first_click(mask((0, 0, 7, 7))) == Click(3, 3, 1)
    assert first_click(np.ones((5, 9), bool)) == Click(2, 2, 1)  # the leftmost of (2..6, 2)


def test_an_empty_mask_has_no_click_and_no_box():
    with pytest.raises(InputError, match="an empty mask has no"):
        first_click(mask())
    with pytest.raises(InputError, match="an empty mask has no"):
        tight_box(mask())


def test_no_pixel_is_clicked_twice_and_a_perfect_mask_gets_no_click():
    truth = mask((2, 3, 9, 10))
    assert next_click(truth, truth) is None
    assert next_click(truth, mask(), [Click(5, 6, 1)]) not in (None, Click(5, 6, 1))
    assert next_click(mask((4, 4, 5, 5)), mask(), [Click(4, 4, 1)]) is None


@pytest.mark.export
def test_the_next_click_equals_that_of_sam2():
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("sam2.modeling.sam2_utils").sample_one_point_from_error_center
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth, found = (
            mask(*((x, y, x + w, y + h) for x, y, w, h in rng.integers(0, 12, (3, 4)) * (2, 1, 1, 1))) for _ in range(2)
        )
        if (truth == found).all():
            continue
        points, labels = reference(torch.tensor(truth)[None, None], torch.tensor(found)[None, None])
        assert next_click(truth, found) == Click(*points[0, 0].int().tolist(), int(labels[0, 0]))


def test_tight_boxes_fit_and_shaken_boxes_stay_within_the_limits():
    truth = mask((2, 3, 9, 10))
    np.testing.assert_array_equal(tight_box(truth), [2, 3, 9, 10])
    rng = np.random.default_rng(1)
    boxes = np.stack([shaken_box(mask((0, 0, 30, 12)), 0.1, rng) for _ in range(400)])
    assert boxes.min() >= 0
    assert (boxes[:, 2:] <= (30, 20)).all()
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    below = boxes[:, 3] - 12  # this side is free to move both ways: 20 of 1024 pixels are 0.39 of 20
    assert np.abs(below).max() == pytest.approx(20 * 20 / 1024, abs=1e-4)
    assert abs(below.mean()) < 0.05
    np.testing.assert_array_equal(shaken_box(truth, 0.0, rng), tight_box(truth))
