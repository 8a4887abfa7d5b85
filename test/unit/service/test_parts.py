"""Shapes for people who edit them: without specks, and the parts of one object belong together."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("contourpy")
from support.tools import filled_each

from triton_sam.masks.segment import Segment
from triton_sam.service.adapters.qupath import feature
from triton_sam.service.adapters.x_anylabeling_shapes import Drawing, shapes_of


@pytest.fixture
def parts() -> list[np.ndarray]:
    """Return the masks of an object: two large parts, one of 36 pixels, and a speck of one pixel."""
    rectangles = (slice(5, 45), slice(5, 45)), (slice(5, 45), slice(60, 90)), (slice(50, 53), slice(5, 8))
    masks = np.zeros((4, 60, 100), bool)
    for mask, (rows, columns) in zip(masks, (*rectangles, (slice(58, 59), slice(98, 99))), strict=True):
        mask[rows, columns] = True
    return list(masks)


def segment(masks: list[np.ndarray]) -> Segment:
    return Segment(np.logical_or.reduce(masks), 0.9, None)


def test_x_anylabeling_gets_no_specks_and_one_group_for_the_parts_of_an_object(parts):
    found = [shapes_of(segment(parts), Drawing()) for _ in range(20)]
    for shapes in found:
        assert [shape["shape_type"] for shape in shapes] == ["polygon"] * 2
        drawn = filled_each([shape["points"] for shape in shapes], parts[0].shape)
        assert (drawn ^ segment(parts[:2]).mask).sum() < 10  # corners
    groups = [{shape["group_id"] for shape in shapes} for shapes in found]
    assert {len(each) for each in groups} == {1}
    assert len(set.union(*groups)) == 20  # other objects have others
    assert all(isinstance(each, int) for group in groups for each in group)


def test_x_anylabeling_gets_a_group_where_several_shapes_or_a_number_need_one(parts):
    [alone] = shapes_of(segment(parts[:1]), Drawing())
    assert "group_id" not in alone
    assert [shape["group_id"] for shape in shapes_of(segment(parts), Drawing(), "cat", 7)] == [7, 7]
    boxed = Segment(parts[0], 0.9, (5, 5, 45, 45))
    polygon, box = shapes_of(boxed, Drawing(show_boxes=True))
    assert polygon["group_id"] == box["group_id"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_mask_of_specks_is_still_a_shape(parts, count):
    few = [parts[3], np.roll(parts[3], -5, axis=0)][:count]
    assert len(shapes_of(segment(few), Drawing())) == 1
    assert feature(segment(few), 0, "sam2")["geometry"]["type"] == "Polygon"


def test_an_empty_mask_is_no_shape(parts):
    assert shapes_of(segment([parts[0] & False]), Drawing()) == []
    assert feature(segment([parts[0] & False]), 0, "sam2") is None


def test_qupath_gets_no_specks_and_no_pinholes(parts):
    parts[0][20:35, 20:35] = False  # a hole
    parts[0][8, 8] = False  # a pinhole
    geometry = feature(segment(parts), 0, "sam2")["geometry"]
    assert geometry["type"] == "MultiPolygon"
    assert [len(rings) for rings in geometry["coordinates"]] == [2, 1]
    assert all(ring[0] == ring[-1] for rings in geometry["coordinates"] for ring in rings)
