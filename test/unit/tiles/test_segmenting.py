"""Objects of large images: parts around prompts, views, borders of tiles, joined objects, and their limits by hand."""

import itertools
import json

import numpy as np
import pytest
from support.large_images import SIZE, ColourClient, draw, write_tiff

from triton_sam.errors import ConfigurationError, PromptError
from triton_sam.inputs import header
from triton_sam.masks import trace_polygons
from triton_sam.tiles import LargeImageClient, joining, open_large_image
from triton_sam.tiles.joining import Joiner, LargeObject, Placed, tiles, to_geojson, to_objects
from triton_sam.tiles.parts import Blocks, is_cut
from triton_sam.tiles.pyramid import Georeference, Window

SMALL = (1510, 905, 1700, 1300)
WIDE = (200, 1500, 2800, 1700)
CORNER = (2900, 2100, 3000, 2200)
OBJECTS = [SMALL, WIDE, CORNER, (60, 60, 100, 90)]


@pytest.fixture
def client(tmp_path):
    with open_large_image(write_tiff(tmp_path / "image.tif", draw(OBJECTS))) as image:
        yield LargeImageClient(ColourClient(), image)


def test_a_click_sends_one_part_at_full_size(client):
    (found,) = client.segment([[1600, 1000]])
    assert found.box == SMALL
    assert found.area == 190 * 395
    assert not found.is_cut
    assert [pixels.shape for pixels in client._client.encoded] == [(1024, 1024, 3)]
    for x in range(1520, 1700, 20):  # clicks near each other share a part
        assert client.segment([[x, 1000]])[0].box == SMALL
    assert len(client._client.encoded) <= 2


def test_an_object_that_reaches_the_border_is_seen_from_further_away(client):
    (found,) = client.segment([[1500, 1600]])
    assert [pixels.shape[:2] for pixels in client._client.encoded] == [(1024, 1024)] * 2 + [(751, 1024)]
    assert found.box == pytest.approx(WIDE, abs=4)
    assert not found.is_cut
    (cut,) = client.segment([[1500, 1600]], enlarge=0)
    assert cut.is_cut
    assert cut.box[1::2] == (1500, 1700)
    (found,) = client.segment([[2950, 2150]])  # the borders of the image cut nothing
    assert (found.box, found.is_cut) == (CORNER, False)


def test_a_view_is_used_as_it_is(client):
    (found,) = client.segment([[1600, 1000]], view=(0, 0, 3000, 2200))
    assert found.box[2:] == pytest.approx(SMALL[2:], abs=4)
    assert client._client.encoded[0].shape == (751, 1024, 3)
    with pytest.raises(PromptError, match="outside the view 0, 0, 100, 100"):
        client.segment([[1600, 1000]], view=(0, 0, 100, 100))


def test_boxes_and_candidates(client):
    candidates = client.segment(box=[1500, 890, 1710, 1310], multimask_output=True)
    assert [each.candidate for each in candidates] == [0, 1, 2]
    assert candidates[0].box == SMALL
    (wide,) = client.segment(box=[190, 1490, 2810, 1710])
    assert wide.box == pytest.approx(WIDE, abs=4)
    assert len(client._client.encoded) == 2


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({}, "the prompt is empty"),
        ({"point_coords": [[-1, 5]]}, "-1, 5 lies outside the image, which has 3000 x 2200 pixels"),
        ({"point_coords": [[float("nan"), 5]]}, "nan, 5 lies outside the image"),
        ({"box": [[1, 2, 3, 4], [1, 2, 3, 4]]}, "of one object"),
    ],
)
def test_wrong_prompts_are_one_clear_error(client, prompts, message):
    with pytest.raises(PromptError, match=message):
        client.segment(**prompts)
    assert not client._client.encoded


def test_everything_joins_the_objects_of_tiles(client):
    steps = []
    found = client.everything(tile=512, overlap=128, progress=lambda done, total: steps.append((done, total)))
    assert sorted(each.box for each in found) == sorted(OBJECTS)
    assert [each.object_index for each in found] == list(range(len(OBJECTS)))
    assert {each.area for each in found} == {(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in OBJECTS}
    assert steps[-1] == (len(steps), len(steps))
    assert len(steps) == 8 * 6


def test_everything_on_a_smaller_level_answers_in_pixels_of_the_image(client):
    found = client.everything(tile=512, overlap=128, level=1)
    assert sorted(each.box for each in found) == [pytest.approx(box, abs=2) for box in sorted(OBJECTS)]


def test_wrong_options_are_one_clear_error(client):
    for options in ({"level": 3}, {"level": -1}, {"tile": 32}, {"overlap": 600}, {"overlap": -1}):
        with pytest.raises(ConfigurationError):
            client.everything(**options)
    for tile, overlap in ((63, 0), (64, -1), (64, 33), (65, 33)):
        with pytest.raises(ConfigurationError):
            Blocks.of_tiles((1000, 1000), tile, overlap)


@pytest.mark.parametrize("size", [SIZE, (512, 512), (513, 100), (40, 30), (100_000, 5_000)])
def test_tiles_cover_the_image_and_overlap(size):
    for axis in (0, 1):
        pairs = sorted({(tile[axis], tile[axis + 2]) for tile in tiles(size, 512, 128)})
        assert pairs[0][0] == 0
        assert pairs[-1][1] == size[axis]
        assert all(after[0] <= before[1] - 128 for before, after in itertools.pairwise(pairs))
        assert {end - start for start, end in pairs} == {min(512, size[axis])}


def joined(*tiles):
    joiner = Joiner()
    for region, objects in tiles:
        joiner.add(region, objects)
    return joiner.joined()


@pytest.mark.parametrize(("rows", "objects"), [(2, 1), (1, 2)])
def test_half_of_the_union_is_the_same_object(rows, objects):
    """One mask has 4 pixels in the shared part, and the other one 2 of them (IoU 0.5) or 1 (0.25)."""
    one, other = (Placed(np.ones((height, 1), bool), (9, 0, 10, height), 0.5) for height in (4, rows))
    assert len(joined(((0, 0, 10, 10), [one]), ((9, 0, 19, 10), [other]))) == objects


def test_objects_of_one_tile_are_not_joined():
    """A cell and its nucleus look alike where the next tile shows both."""
    cell, nucleus, both = (Placed(np.ones((100, 780 - x), bool), (x, 0, 780, 100), 0.5) for x in (600, 740, 768))
    found = joined(((0, 0, 1024, 1024), [cell, nucleus]), ((768, 0, 1792, 1024), [both]))
    assert [each.box[0] for each in found] == [600, 740]


def test_objects_that_differ_where_both_tiles_see_stay_apart():
    full = np.ones((10, 10), bool)
    right = [Placed(full, (10, 6, 20, 16), 0.5), Placed(full, (20, 0, 30, 10), 0.5)]
    left = [Placed(full, (10, 0, 20, 10), 0.5)]
    assert len(joined(((0, 0, 20, 20), left), ((10, 0, 30, 20), right))) == 3


def test_an_object_of_three_tiles_is_joined_once():
    seen = ((0, 20, 0.3), (10, 20, 0.6), (20, 12, 0.9))
    parts = [
        ((x, 0, x + 20, 20), [Placed(np.ones((4, width), bool), (x, 8, x + width, 12), score)])
        for x, width, score in seen
    ]
    (found,) = joined(*parts)
    assert (found.box, found.area) == ((0, 8, 32, 12), 128)
    assert found.score == pytest.approx((20 * 0.3 + 20 * 0.6 + 12 * 0.9) / 52)  # weighted by area


@pytest.mark.parametrize(("most", "step"), [(200 * 150, 1), (200 * 150 - 1, 2), (200 * 150 // 30, 6)])
def test_an_object_of_many_tiles_has_a_mask_of_limited_size(most, step, monkeypatch, caplog):
    """The mask is that of every n-th row and column, in its place."""
    monkeypatch.setattr(joining, "MAX_JOINED", most)
    monkeypatch.setattr(header, "_SAID", set())
    whole = np.ones((150, 200), bool)
    whole[20:60, 33:94] = False
    regions = tiles((200, 150), 64, 20)
    parts = [
        (region, [Placed.of(whole[region[1] : region[3], region[0] : region[2]], region, 0.9)]) for region in regions
    ]
    (found,) = to_objects(joined(*parts), (200, 150), (400, 300))
    assert found.region == (0, 0, 400, 300)
    np.testing.assert_array_equal(found.mask, whole[::step, ::step])
    assert found.area == pytest.approx(4 * whole.sum(), rel=0.05)
    assert ("kept at 1/" in caplog.text) == (step > 1)


def test_geojson_on_a_map():
    mask = np.zeros((20, 30), bool)
    mask[5:15, 10:20] = True
    large = LargeObject(mask, (1000, 2000, 1060, 2040), 0.75)
    placed = to_geojson([large], Georeference((0.5, 0, 100, 0, -0.5, 200), 32633))
    assert json.dumps(placed)
    assert placed["crs"]["properties"]["name"].endswith("32633")
    ((ring,),) = placed["features"][0]["geometry"]["coordinates"]
    assert np.array(ring).min(axis=0).tolist() == [610, -815]


@pytest.mark.parametrize(
    ("row", "column", "cut"),
    [
        (0, 2, {"top"}), (3, 2, {"bottom"}), (2, 0, {"left"}), (2, 4, {"right"}), (1, 1, set()), (1, 3, set()),
        (2, 1, set()), (0, 0, {"top", "left"}), (3, 4, {"bottom", "right"}),
    ],
)  # fmt: skip
def test_a_mask_is_cut_at_borders_inside_the_image_alone(row, column, cut):
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


def test_an_object_in_the_pixels_of_a_window():
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
def ring():
    """A square of 6 x 6 pixels with a hole of 2 x 2, where a pixel stands for 3 x 2 pixels of the image."""
    pytest.importorskip("contourpy")
    mask = np.zeros((8, 8), bool)
    mask[1:7, 1:7] = True
    mask[3:5, 3:5] = False
    return LargeObject(mask, (100, 50, 124, 66), 0.1234564)


def test_outlines_have_holes_in_pixels_of_the_image(ring):
    (polygon,) = ring.polygons()
    assert (polygon.exterior.min(axis=0).tolist(), polygon.exterior.max(axis=0).tolist()) == ([103, 52], [121, 64])
    (hole,) = polygon.holes
    assert (hole.min(axis=0).tolist(), hole.max(axis=0).tolist()) == ([109, 56], [115, 60])


def test_geojson_has_the_members_of_the_standard(ring):
    """RFC 7946, sections 3.1.7, 3.2 and 3.3."""
    document = to_geojson([ring], trace=trace_polygons)
    assert [len(each) for each in to_geojson([ring])["features"][0]["geometry"]["coordinates"]] == [1]  # no pinhole
    ((exterior, hole),) = document["features"][0]["geometry"]["coordinates"]
    assert (exterior[0], hole[0]) == (exterior[-1], hole[-1])
    feature = {
        "type": "Feature",
        "geometry": {"type": "MultiPolygon", "coordinates": [[exterior, hole]]},
        "properties": {"objectType": "annotation", "score": 0.12346, "area": 192.0},  # for QuPath
    }
    assert document == {"type": "FeatureCollection", "features": [feature]}
    for mask, areas in ((np.zeros_like(ring.mask), []), (ring.mask, [50.0]), (ring.mask[:7, :7], [65.31])):  # 32 of 49
        features = to_geojson([LargeObject(mask, (0, 0, 10, 10), 0.5)])["features"]
        assert [each["properties"]["area"] for each in features] == areas


def test_outlines_keep_the_tolerance():
    pytest.importorskip("contourpy")
    stairs = np.tri(40, dtype=bool)
    stairs[10, 11:14] = True  # a nose that a tolerance of 5 pixels takes off
    each = LargeObject(stairs, (0, 0, 40, 40), 0.5)
    corners = [len(each.polygons(size)[0].exterior) for size in (0.5, 5.0)]
    assert corners[1] < corners[0]
