"""Full-size masks equal the sign of the resized logits to the bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import strategies as _profiles  # noqa: F401 - loads the profiles of hypothesis

from triton_sam.families import get_family
from triton_sam.masks import resize
from triton_sam.masks.resize import full_size_logits, full_size_mask

SQUASHES, PADS = get_family("sam2"), get_family("sam1")
NUMBERS = st.sampled_from([-0.0, 0.0, 2**-30, -(2**-30), 1.0, -1.0, 3.5, -20.0, np.nan, np.inf, 2.0**127, -(2.0**127)])
SIDES = st.integers(1, 40)


def blobs(noise: float) -> np.ndarray:
    y, x = np.mgrid[:256, :256]
    smooth = np.minimum(60 - np.hypot(y - 90, x - 140), 0.4 * np.hypot(y - 200, x - 60) - 4)
    return (smooth + np.random.default_rng(0).normal(0, noise, smooth.shape)).astype(np.float32)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS),
    st.tuples(SIDES, SIDES),
)
@pytest.mark.filterwarnings("ignore:invalid value|overflow")
def test_any_logits(logits: np.ndarray, size: tuple[int, int]) -> None:
    np.testing.assert_array_equal(full_size_mask(logits, size, SQUASHES), full_size_logits(logits, size, SQUASHES) > 0)


@given(
    hnp.arrays(np.float32, (8, 8), elements=st.floats(-4, 4, width=32)),
    st.tuples(st.integers(8, 90), st.integers(8, 90)),
)
def test_pixels_between_two_signs_are_blended_like_rows(logits: np.ndarray, size: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "_FEW", 1 / 1000)  # never fall back
        mask = full_size_mask(logits, size, SQUASHES)
    np.testing.assert_array_equal(mask, full_size_logits(logits, size, SQUASHES) > 0)


@pytest.mark.parametrize("size", [(1600, 1200), (300, 255), (257, 1999)])
@pytest.mark.parametrize("noise", [0, 1, 30])
def test_masks_of_images(size: tuple[int, int], noise: float) -> None:
    for family in (SQUASHES, PADS):
        mask = full_size_mask(blobs(noise), size, family)
        np.testing.assert_array_equal(mask, full_size_logits(blobs(noise), size, family) > 0)
        assert mask.flags.c_contiguous


def test_a_large_mask_is_not_computed_pixel_by_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = full_size_logits(blobs(0), (1600, 1200), SQUASHES) > 0
    monkeypatch.setattr(resize, "resize_logits", None)
    np.testing.assert_array_equal(full_size_mask(blobs(0), (1600, 1200), SQUASHES), wanted)
