"""Objects of large images: parts around prompts, views, borders of tiles, joined objects."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tifffile")
pytest.importorskip("zarr")

from support.large_images import SIZE, ColourClient, draw, write_tiff

from triton_sam.errors import ConfigurationError, PromptError
from triton_sam.tiles import LargeImageClient, LargeObject, open_large_image
from triton_sam.tiles.georeference import Georeference
from triton_sam.tiles.joining import Joiner, Placed, tiles
from triton_sam.tiles.objects import to_geojson

SMALL = (1510, 905, 1700, 1300)
WIDE = (200, 1500, 2800, 1700)
CORNER = (2900, 2100, 3000, 2200)
OBJECTS = [SMALL, WIDE, CORNER, (60, 60, 100, 90)]


@pytest.fixture
def client(tmp_path: Path):
    with open_large_image(write_tiff(tmp_path / "image.tif", draw(OBJECTS))) as image:
        yield LargeImageClient(ColourClient(), image)


def test_a_click_sends_one_part_at_full_size(client) -> None:
    (found,) = client.segment([[1600, 1000]])
    assert found.box == SMALL
    assert found.area == 190 * 395
    assert not found.is_cut
    assert [pixels.shape for pixels in client._client.encoded] == [(1024, 1024, 3)]


def test_clicks_near_each_other_share_a_part(client) -> None:
    for x in range(1520, 1700, 20):
        assert client.segment([[x, 1000]])[0].box == SMALL
    assert len(client._client.encoded) <= 2


def test_an_object_that_reaches_the_border_is_seen_from_further_away(client) -> None:
    (found,) = client.segment([[1500, 1600]])
    assert [pixels.shape[:2] for pixels in client._client.encoded] == [(1024, 1024)] * 2 + [(751, 1024)]
    assert found.box == pytest.approx(WIDE, abs=4)
    assert not found.is_cut
    (cut,) = client.segment([[1500, 1600]], enlarge=0)
    assert cut.is_cut
    assert cut.box[1::2] == (1500, 1700)


def test_the_borders_of_the_image_cut_nothing(client) -> None:
    (found,) = client.segment([[2950, 2150]])
    assert found.box == CORNER
    assert not found.is_cut


def test_a_view_is_used_as_it_is(client) -> None:
    (found,) = client.segment([[1600, 1000]], view=(0, 0, 3000, 2200))
    assert found.box[2:] == pytest.approx(SMALL[2:], abs=4)
    assert client._client.encoded[0].shape == (751, 1024, 3)
    with pytest.raises(PromptError, match="outside of the view 0, 0, 100, 100"):
        client.segment([[1600, 1000]], view=(0, 0, 100, 100))


def test_boxes_and_candidates(client) -> None:
    candidates = client.segment(box=[1500, 890, 1710, 1310], multimask_output=True)
    assert [each.candidate for each in candidates] == [0, 1, 2]
    assert candidates[0].box == SMALL
    (wide,) = client.segment(box=[190, 1490, 2810, 1710])
    assert wide.box == pytest.approx(WIDE, abs=4)
    assert len(client._client.encoded) == 2


def test_parts_are_kept_up_to_a_number(client) -> None:
    few = LargeImageClient(client._client, client.image, kept=1)
    for place in ([1600, 1000], [80, 80], [1600, 1000]):
        few.segment([place])
    assert len(client._client.encoded) == 3


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({}, "nothing to go by"),
        ({"point_coords": [[-1, 5]]}, "-1, 5 lies outside of the image, which has 3000 x 2200 pixels"),
        ({"point_coords": [[3001, 5]]}, "3001, 5 lies outside of the image"),
        ({"point_coords": [[float("nan"), 5]]}, "nan, 5 lies outside of the image"),
        ({"point_coords": [["a", 5]]}, "point_coords must be numbers"),
        ({"point_coords": [[1, 2, 3]]}, "2 columns"),
        ({"box": [[1, 2, 3, 4], [1, 2, 3, 4]]}, "of one object"),
    ],
)
def test_wrong_prompts_are_one_clear_error(client, prompts: dict, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        client.segment(**prompts)
    assert not client._client.encoded


@pytest.mark.parametrize("options", [{"side": 10}, {"kept": 0}])
def test_wrong_options_are_one_clear_error(client, options: dict) -> None:
    with pytest.raises(ConfigurationError):
        LargeImageClient(client._client, client.image, **options)


def test_everything_joins_the_objects_of_tiles(client) -> None:
    steps = []
    found = client.everything(tile=512, overlap=128, progress=lambda done, total: steps.append((done, total)))
    assert sorted(each.box for each in found) == sorted(OBJECTS)
    assert {each.area for each in found} == {(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in OBJECTS}
    assert steps[-1] == (len(steps), len(steps))
    assert len(steps) == 8 * 6


def test_everything_on_a_smaller_level_answers_in_pixels_of_the_image(client) -> None:
    found = client.everything(tile=512, overlap=128, level=1)
    assert sorted(each.box for each in found) == [pytest.approx(box, abs=2) for box in sorted(OBJECTS)]


@pytest.mark.parametrize("options", [{"level": 3}, {"level": -1}, {"tile": 32}, {"overlap": 600}, {"overlap": -1}])
def test_wrong_tiles_are_one_clear_error(client, options: dict) -> None:
    with pytest.raises(ConfigurationError):
        client.everything(**options)


@pytest.mark.parametrize("size", [SIZE, (512, 512), (513, 100), (40, 30), (100_000, 5_000)])
def test_tiles_cover_the_image_and_overlap(size: tuple[int, int]) -> None:
    for axis in (0, 1):
        pairs = sorted({(tile[axis], tile[axis + 2]) for tile in tiles(size, 512, 128)})
        assert pairs[0][0] == 0
        assert pairs[-1][1] == size[axis]
        assert all(after[0] <= before[1] - 128 for before, after in itertools.pairwise(pairs))
        assert {end - start for start, end in pairs} == {min(512, size[axis])}


def test_objects_that_differ_where_both_tiles_see_stay_apart() -> None:
    joiner = Joiner()
    full = np.ones((10, 10), bool)
    joiner.add((0, 0, 20, 20), [Placed(full, 10, 0, 0.5)])
    joiner.add((10, 0, 30, 20), [Placed(full, 10, 6, 0.5), Placed(full, 20, 0, 0.5)])
    assert len(joiner.joined()) == 3


def test_an_object_of_three_tiles_is_joined_once() -> None:
    joiner = Joiner()
    strip = np.ones((4, 20), bool)
    for left, score in ((0, 0.3), (10, 0.6), (20, 0.9)):
        joiner.add((left, 0, left + 20, 20), [Placed(strip, left, 8, score)])
    (found,) = joiner.joined()
    assert found.box == (0, 8, 40, 12)
    assert found.area == 160
    assert found.score == pytest.approx(0.6)


def test_geojson_on_a_map() -> None:
    mask = np.zeros((20, 30), bool)
    mask[5:15, 10:20] = True
    large = LargeObject(mask, (1000, 2000, 1060, 2040), 0.75)
    placed = to_geojson([large], Georeference((0.5, 0, 100, 0, -0.5, 200), 32633))
    assert json.dumps(placed)
    assert placed["crs"]["properties"]["name"].endswith("32633")
    ((ring,),) = placed["features"][0]["geometry"]["coordinates"]
    assert np.array(ring).min(axis=0).tolist() == [610, -815]
