"""Blocks, parts, objects and coordinates of large images at their limits, by numbers that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.errors import ConfigurationError
from triton_sam.masks import trace_polygons
from triton_sam.tiles.blocks import Blocks
from triton_sam.tiles.georeference import Georeference
from triton_sam.tiles.joining import Joiner, Placed
from triton_sam.tiles.objects import LargeObject, to_geojson
from triton_sam.tiles.parts import is_cut, part_around
from triton_sam.tiles.pyramid import Window


@pytest.mark.parametrize(("tile", "overlap"), [(64, 0), (64, 32), (65, 32), (1024, 512)])
def test_the_smallest_tiles_and_the_largest_overlaps(tile: int, overlap: int) -> None:
    blocks = Blocks.of_tiles((1000, 1000), tile, overlap)
    assert blocks.block == (tile - overlap // 2 * 2,) * 2


@pytest.mark.parametrize(("tile", "overlap"), [(63, 0), (64, -1), (64, 33), (65, 33)])
def test_sizes_beyond_are_refused(tile: int, overlap: int) -> None:
    with pytest.raises(ConfigurationError):
        Blocks.of_tiles((1000, 1000), tile, overlap)


def test_the_block_of_a_point() -> None:
    blocks = Blocks((7, 4), (2, 1), (0, 0))  # 4 columns, 4 rows; the last column is one pixel wide
    for x, y, number in ((0, 0, 0), (1.9, 0, 0), (2, 0, 1), (6, 0, 3), (7, 0, 3), (99, 0, 3), (-5, -5, 0)):
        assert blocks.at(x, y) == number
    for y, number in ((0.9, 0), (1, 4), (3, 12), (4, 12), (99, 12)):
        assert blocks.at(0, y) == number
    narrow = Blocks((4, 4), (1, 1), (0, 0))
    assert (narrow.at(0, 0), narrow.at(3, 3), narrow.at(4, 4)) == (0, 15, 15)


@pytest.mark.parametrize(
    ("row", "column", "cut"),
    [
        (0, 2, {"top"}), (3, 2, {"bottom"}), (2, 0, {"left"}), (2, 4, {"right"}), (1, 1, set()), (1, 3, set()),
        (2, 1, set()), (0, 0, {"top", "left"}), (3, 4, {"bottom", "right"}),
    ],
)  # fmt: skip
def test_a_mask_is_cut_at_borders_inside_the_image_alone(row: int, column: int, cut: set[str]) -> None:
    mask = np.zeros((4, 5), bool)
    mask[row, column] = True
    regions = {
        "left": ((1, 0, 6, 4), (6, 4)),
        "top": ((0, 1, 5, 5), (5, 5)),
        "right": ((0, 0, 5, 4), (6, 4)),
        "bottom": ((0, 0, 5, 4), (5, 5)),
    }
    assert {side for side, (region, size) in regions.items() if is_cut(mask, region, size)} == cut
    assert not is_cut(mask, (0, 0, 5, 4), (5, 4))


def test_a_part_begins_at_the_border_of_the_image() -> None:
    assert part_around(np.array([[1.0, 1.0]]), 3, (10, 10)) == (0, 0, 3, 3)
    assert part_around(np.array([[9.0, 9.0]]), 3, (10, 10)) == (7, 7, 10, 10)


def test_an_object_in_the_pixels_of_a_window() -> None:
    """The mask has a pixel for 2 x 4 pixels of the image; the window shows pixels 8 to 20 across, and 14 to 30 down."""
    mask = np.array([[True, False, True], [False, True, True]])
    each = LargeObject(mask, (10, 18, 16, 26), 0.5)
    whole = np.zeros((16, 12), bool)
    whole[4:12, 2:8] = np.repeat(np.repeat(mask, 4, axis=0), 2, axis=1)
    same = Window(np.zeros((16, 12, 3), np.uint8), (8, 14, 20, 30))
    np.testing.assert_array_equal(each.within(same), whole)
    # A quarter of the pixels: each takes the value at its centre, which is the corner of four pixels.
    half = Window(np.zeros((8, 6, 3), np.uint8), (8, 14, 20, 30))
    np.testing.assert_array_equal(each.within(half), whole[1::2, 1::2])
    assert (each.scale, each.area, each.box) == ((2, 4), 32, (10, 18, 16, 26))


@pytest.fixture
def ring() -> LargeObject:
    """A square of 6 x 6 pixels with a hole of 2 x 2, where a pixel stands for 3 x 2 pixels of the image."""
    pytest.importorskip("contourpy")
    mask = np.zeros((8, 8), bool)
    mask[1:7, 1:7] = True
    mask[3:5, 3:5] = False
    return LargeObject(mask, (100, 50, 124, 66), 0.1234564)


def test_outlines_have_holes_in_pixels_of_the_image(ring: LargeObject) -> None:
    (polygon,) = ring.polygons()
    assert (polygon.exterior.min(axis=0).tolist(), polygon.exterior.max(axis=0).tolist()) == ([103, 52], [121, 64])
    (hole,) = polygon.holes
    assert (hole.min(axis=0).tolist(), hole.max(axis=0).tolist()) == ([109, 56], [115, 60])


def test_geojson_has_the_members_of_the_standard(ring: LargeObject) -> None:
    """RFC 7946, sections 3.1.7, 3.2 and 3.3."""
    document = to_geojson([ring], trace=trace_polygons)
    assert [len(each) for each in to_geojson([ring])["features"][0]["geometry"]["coordinates"]] == [1]  # no pinhole
    assert set(document) == {"type", "features"}
    assert document["type"] == "FeatureCollection"
    (feature,) = document["features"]
    assert set(feature) == {"type", "geometry", "properties"}
    assert (feature["type"], feature["geometry"]["type"]) == ("Feature", "MultiPolygon")
    ((exterior, hole),) = feature["geometry"]["coordinates"]
    assert exterior[0] == exterior[-1]
    assert hole[0] == hole[-1]
    assert feature["properties"] == {"objectType": "annotation", "score": 0.12346, "area": 192.0}  # for QuPath
    empty = LargeObject(np.zeros_like(ring.mask), (0, 0, 10, 10), 0.5)
    assert to_geojson([empty])["features"] == []
    third = LargeObject(ring.mask, (0, 0, 10, 10), 0.5)
    assert to_geojson([third])["features"][0]["properties"]["area"] == 50.0
    odd = LargeObject(ring.mask[:7, :7], (0, 0, 10, 10), 0.5)
    assert to_geojson([odd])["features"][0]["properties"]["area"] == 65.31  # 32 of 49 pixels


def test_geojson_keeps_the_tolerance() -> None:
    pytest.importorskip("contourpy")
    stairs = np.tri(40, dtype=bool)
    stairs[10, 11:14] = True  # a nose that a tolerance of 5 pixels takes off
    each = LargeObject(stairs, (0, 0, 40, 40), 0.5)
    corners = [
        len(to_geojson([each], tolerance=size)["features"][0]["geometry"]["coordinates"][0][0]) for size in (0.5, 5.0)
    ]
    assert corners[1] < corners[0]


def test_joined_scores_are_weighted_by_area() -> None:
    joiner = Joiner()
    joiner.add((0, 0, 10, 10), [Placed(np.ones((4, 4), bool), 6, 0, 0.9)])
    joiner.add((8, 0, 18, 10), [Placed(np.ones((4, 2), bool), 8, 0, 0.3)])
    (found,) = joiner.joined()
    assert found.box == (6, 0, 10, 4)
    assert found.score == pytest.approx((16 * 0.9 + 8 * 0.3) / 24)


@pytest.mark.parametrize(("rows", "objects"), [(2, 1), (1, 2)])
def test_half_of_the_union_is_the_same_object(rows: int, objects: int) -> None:
    """One mask has 4 pixels in the shared part, and the other one 2 of them (IoU 0.5) or 1 (0.25)."""
    joiner = Joiner()
    joiner.add((0, 0, 10, 10), [Placed(np.ones((4, 1), bool), 9, 0, 0.5)])
    joiner.add((9, 0, 19, 10), [Placed(np.ones((rows, 1), bool), 9, 0, 0.5)])
    assert len(joiner.joined()) == objects


def test_masks_that_are_apart_or_empty_have_nothing_in_common() -> None:
    one, far = Placed(np.ones((2, 2), bool), 0, 0, 0.5), Placed(np.ones((2, 2), bool), 5, 5, 0.5)
    empty = Placed(np.zeros((2, 2), bool), 0, 0, 0.5)
    assert one.iou(far, (0, 0, 9, 9)) == 0
    assert empty.iou(empty, (0, 0, 9, 9)) == 0
    assert one.iou(one, (5, 5, 9, 9)) == 0
    assert one.iou(one, (0, 0, 9, 9)) == 1


def test_a_turned_map() -> None:
    place = Georeference((2.0, 3.0, 100.0, -5.0, 7.0, 200.0))
    points = np.array([[1.0, 10.0], [4.0, 0.0]])
    np.testing.assert_allclose(place.to_map(points), [[132, 265], [108, 180]])
    np.testing.assert_allclose(place.to_pixels(place.to_map(points)), points, atol=1e-12)
