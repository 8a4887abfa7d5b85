"""Polygons of masks and masks of polygons: each is the inverse of the other, and other programs accept the polygons."""

import sys

import numpy as np
import pytest

pytest.importorskip("contourpy")

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import rectangles
from support import strategies as _profiles  # noqa: F401 - loads the profiles of hypothesis
from support.tools import filled, waves

from triton_sam.errors import InputError, MissingDependencyError
from triton_sam.masks import Segment, intersection_over_union, polygons, rings
from triton_sam.masks.polygons import (
    Polygon,
    fill_polygons,
    joined_ring,
    main_polygons,
    mask_to_polygons,
    trace_polygons,
)

SQUARE = rectangles.mask((20, 10, 60, 30), size=(60, 80))
any_mask = hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=30)) | st.builds(
    waves, st.integers(0, 10**6), st.floats(0, 4), st.tuples(st.integers(1, 60), st.integers(1, 60))
)


@given(any_mask, st.sampled_from([0.0, 0.3, 0.5]))
def test_a_mask_that_is_traced_and_filled_again_is_itself(mask, tolerance):
    """Exactly: holes and parts of one pixel, too, and with the default tolerance of half a pixel."""
    found = trace_polygons(mask, tolerance)
    np.testing.assert_array_equal(fill_polygons(found, mask.shape[::-1]), mask)
    by_hand = filled((ring for each in found for ring in (each.exterior, *each.holes)), mask.shape)
    np.testing.assert_array_equal(by_hand, mask)


@given(any_mask)
def test_rings_of_coco_fill_to_the_mask_with_its_holes_filled(mask):
    """A hole is background that not even a corner of a pixel joins to the outside."""
    ndimage = pytest.importorskip("scipy.ndimage")
    whole = ndimage.binary_fill_holes(mask, np.ones((3, 3)))
    np.testing.assert_array_equal(fill_polygons(mask_to_polygons(mask), mask.shape[::-1]), whole)


@given(any_mask, st.sampled_from([0.0, 0.5, 0.8, 1.5, 4.0, 100.0]))
def test_polygons_are_valid_and_within_the_tolerance(mask, tolerance):
    shapely = pytest.importorskip("shapely")
    found = trace_polygons(mask, tolerance)
    for each, exact in zip(found, trace_polygons(mask, 0) if len(found) == 1 else found, strict=True):
        assert all(len(ring) >= 3 for ring in (each.exterior, *each.holes))
        area = shapely.Polygon(each.exterior, each.holes)
        assert area.is_valid
        assert area.area == pytest.approx(each.area)
        outline = shapely.LinearRing(each.exterior)
        assert shapely.distance(shapely.points(exact.exterior), outline).max() <= tolerance + 1e-6


@pytest.mark.parametrize("size", [(10, 8), (3, 3)])
def test_a_polygon_holds_the_centres_inside_it(size):
    square = [[2, 2], [6, 2], [6, 6], [2, 6]]
    mask = fill_polygons([square], size)
    assert mask.shape == size[::-1]
    assert mask.sum() == (16 if size == (10, 8) else 1)
    np.testing.assert_array_equal(mask, fill_polygons([np.ravel(square), square[::-1]], size))
    shifted = fill_polygons([np.array(square) + 0.5], size)  # the centres on left and upper edges are inside
    np.testing.assert_array_equal(shifted, mask)
    holed = Polygon(np.array(square, float), (np.array([[3, 3], [5, 3], [5, 5], [3, 5]], float),))
    np.testing.assert_array_equal(fill_polygons([holed], size), mask & ~fill_polygons(holed.holes, size))


@given(any_mask, st.sampled_from([1 << 20, 30]))
def test_one_ring_holds_all_parts_without_the_holes(mask, pairs):
    found = trace_polygons(mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rings, "_PAIRS_AT_ONCE", pairs)
        joined = [joined_ring(found)] if found else []
    np.testing.assert_array_equal(fill_polygons(joined, mask.shape[::-1]), mask)
    by_hand = filled(joined, mask.shape)
    np.testing.assert_array_equal(by_hand, mask)


def test_polygons_may_be_anywhere_or_of_any_length(monkeypatch):
    far = [[-1e9, -1e9], [1e9, -1e9], [1e9, 1e9], [-1e9, 1e9]]
    assert fill_polygons([far], (4, 3)).all()
    for nothing in ([], [[1, 1]], [[0, 0], [3, 3]], [[9, 9], [12, 9], [12, 12]], [[-9, 0], [-2, 0], [-2, 9]]):
        assert not fill_polygons([nothing], (4, 3)).any()
    assert fill_polygons([], (4, 3)).shape == (3, 4)
    mask = waves(1, 1.0)
    monkeypatch.setattr(polygons, "_CROSSINGS_AT_ONCE", 64)  # rows in many bands
    np.testing.assert_array_equal(fill_polygons(trace_polygons(mask), mask.shape[::-1]), mask)
    coarse = trace_polygons(mask, 2)
    monkeypatch.setattr(rings, "_PAIRS_AT_ONCE", 7)
    again = trace_polygons(mask, 2)
    assert all(np.array_equal(one.exterior, other.exterior) for one, other in zip(coarse, again, strict=True))


def test_a_person_gets_no_specks_and_no_pinholes():
    mask = rectangles.mask((20, 10, 120, 110), size=(200, 200))
    mask[30:60, 30:60] = False  # a hole that counts
    mask[100, 100] = mask[70:72, 70:72] = False
    mask[150:180, 150:180] = True  # a part that counts
    mask[5, 5] = mask[190:193, 3:6] = mask[130:138, 10:20] = True
    assert len(trace_polygons(mask)) == 5
    kept = main_polygons(mask)
    assert [len(each.holes) for each in kept] == [1, 0]
    assert [round(each.area, -2) for each in kept] == [9000, 900]
    assert len(main_polygons(mask, smallest_share=0.0)) == 3
    assert len(main_polygons(mask, smallest_share=0.0, smallest_area=0.0)) == 5
    stairs = np.tri(4, dtype=bool)  # ten pixels, as many as count
    assert len(main_polygons(np.pad(np.pad(stairs, 9), ((0, 30), (0, 0)), constant_values=True))) == 2
    stairs[0, 0] = False
    assert len(main_polygons(np.pad(np.pad(stairs, 9), ((0, 30), (0, 0)), constant_values=True))) == 1
    speck = np.zeros((9, 9), np.bool_)
    assert main_polygons(speck) == []
    speck[4, 4] = True
    assert len(main_polygons(speck)) == 1


def test_polygon_tolerance_saves_points():
    y, x = np.mgrid[:400, :400]
    disc = (x - 200) ** 2 + (y - 200) ** 2 < 150**2
    (fine,), (coarse,) = mask_to_polygons(disc, 0), mask_to_polygons(disc, 1)
    assert len(coarse) < len(fine) / 5
    covered = fill_polygons([coarse], disc.shape[::-1])
    assert intersection_over_union(covered, disc) > 0.98
    segment = Segment(disc, 0.5, None)
    assert segment.to_polygons(0) == [fine]
    assert segment.to_polygons() == mask_to_polygons(disc) == mask_to_polygons(disc, 0.5) != [coarse]


def test_polygons_refuse(monkeypatch):
    for mask, tolerance in ((np.zeros(3), 1.0), (SQUARE, -1.0), (SQUARE, float("nan"))):
        with pytest.raises(InputError):
            mask_to_polygons(mask, tolerance)
    monkeypatch.setitem(sys.modules, "contourpy", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        mask_to_polygons(SQUARE)


@pytest.mark.parametrize("ring", [[1, 2, 3], [["a", 1]], [[0, 0], [1, float("nan")], [2, 2]], [[0, 0, 0]]])
def test_what_is_not_a_ring_is_refused(ring):
    with pytest.raises(InputError, match="a polygon"):
        fill_polygons([ring], (4, 4))
