"""The masks of other tools' formats: they survive the way there and back."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("contourpy")
from support.tools import without_holes

from triton_sam.masks.segment import Segment
from triton_sam.service.adapters.nuclio_masks import box_bits, interactor_json
from triton_sam.service.adapters.roboflow import pixel_polygons


def blobs(seed: int, size: float, shape: tuple[int, int] = (60, 80)) -> np.ndarray:
    """Return a mask with parts, holes and thin places: noise whose waves are about ``size`` pixels long."""
    noise = np.random.default_rng(seed).normal(size=shape)
    frequencies = np.add.outer(*(np.fft.fftfreq(side) ** 2 for side in shape))
    return np.fft.ifft2(np.fft.fft2(noise) * np.exp(-frequencies * 20 * size**2)).real > 0


@pytest.mark.parametrize("size", [0.0, 0.7, 1.5, 3.0])
def test_polygons_of_pixels_fill_to_the_mask(size):
    cv2 = pytest.importorskip("cv2")
    for seed in range(10):
        mask = blobs(seed, size)
        pixels = np.zeros(mask.shape, np.uint8)
        for ring in pixel_polygons(mask):
            part = np.zeros(mask.shape, np.uint8)
            cv2.fillPoly(part, [np.array(ring, np.int32)], 1)
            pixels |= part
        assert np.array_equal(pixels > 0, without_holes(mask))


def test_a_single_pixel_and_an_empty_mask():
    mask = np.zeros((5, 7), bool)
    assert pixel_polygons(mask) == []
    assert box_bits(Segment(mask, 0.5, None)) == []
    mask[2, 6] = True
    assert pixel_polygons(mask) == [[[6, 2]]]
    assert box_bits(Segment(mask, 0.5, None)) == [1, 6, 2, 6, 2]


def test_rows_of_bits():
    import json

    mask = blobs(1, 2.0, (17, 23))
    answer = json.loads(interactor_json(Segment(mask, 0.5, None)))
    assert np.array_equal(np.array(answer["mask"], bool), mask)
    assert np.shape(answer["points"])[1] == 2
