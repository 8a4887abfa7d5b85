"""Masks in other tools' formats: they survive the way there and back, without specks where people edit shapes."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("contourpy")
from support.tools import filled_each, waves, without_holes

from triton_sam.concepts.instances import Instance
from triton_sam.families import get_family
from triton_sam.masks.boxes import intersection_over_union
from triton_sam.masks.segment import Segment
from triton_sam.service.adapters.bridge import Target
from triton_sam.service.adapters.brush_rle import decode_brush, encode_brush
from triton_sam.service.adapters.cvat import box_bits
from triton_sam.service.adapters.label_studio import control_of
from triton_sam.service.adapters.qupath import feature
from triton_sam.service.adapters.roboflow import LogitsCache, pixel_polygons
from triton_sam.service.adapters.roboflow_concepts import _best_of_all
from triton_sam.service.adapters.task_regions import Region, asked_of, drawn_prompt
from triton_sam.service.adapters.x_anylabeling_video import Drawing, shapes_of
from triton_sam.service.problems import Problem


@pytest.mark.parametrize("size", [0.0, 0.7, 1.5, 3.0])
def test_polygons_of_pixels_fill_to_the_mask(size):
    cv2 = pytest.importorskip("cv2")
    for seed in range(10 if size else 2):  # white noise has a thousand parts
        mask = waves(seed, size)
        pixels = np.zeros(mask.shape, np.uint8)
        for ring in pixel_polygons(mask):
            part = np.zeros(mask.shape, np.uint8)
            cv2.fillPoly(part, [np.array(ring, np.int32)], 1)
            pixels |= part
        assert np.array_equal(pixels > 0, without_holes(mask))


def test_a_single_pixel_and_an_empty_mask():
    mask = np.zeros((5, 7), bool)
    assert pixel_polygons(mask) == []
    assert box_bits(Segment(mask, 0.5, None)) == b"[]"
    mask[2, 6] = True
    assert pixel_polygons(mask) == [[[6, 2]]]
    assert box_bits(Segment(mask, 0.5, None)) == b"[1,6,2,6,2]"


@pytest.mark.parametrize("size", [0.0, 0.7, 3.0])
def test_brushes_are_read_as_they_are_written(size):
    for seed in range(5):
        mask = waves(seed, size, (31, 45))
        assert np.array_equal(decode_brush(encode_brush(mask), (45, 31)), mask)


def packed(values, counts, pieces):
    """Return Label Studio's code of values; pieces are (number of values, whether they are one value repeated)."""
    bits = f"{len(values):032b}{7:05b}" + "".join(f"{count - 1:04b}" for count in counts)
    start = 0
    for number, repeats in pieces:
        some = values[start : start + 1] if repeats else values[start : start + number]
        bits += f"{int(repeats)}{3:02b}{number - 1:0{counts[3]}b}" + "".join(f"{value:08b}" for value in some)
        start += number
    bits += "0" * (-len(bits) % 8)
    return [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]


def test_brushes_of_other_writers():
    """Runs begin and end within a pixel, some values are written out, and only alpha says what is drawn."""
    pixels = np.zeros((2, 3, 4), np.uint8)
    pixels[0, 1:, 3] = 200
    pixels[1, 0] = 255, 10, 0, 0
    values = pixels.ravel().tolist()
    for pieces in ([(24, False)], [(7, True), (10, False), (7, False)], [(1, False)] * 24, [(5, False), (19, False)]):
        code = packed(values, [3, 4, 8, 16], pieces)
        assert decode_brush(code, (3, 2)).tolist() == [[False, True, True], [False] * 3]


def test_brushes_that_cannot_be_read():
    for code, words in (
        ([0, 0, 0, 24], "ends too early"),
        ([0, 0, 0, 23, 56, 1, 1, 128], "23 values"),
        ([0, 0, 0, 24, 56, 1, 1, 128], "ends too early"),
        ([0, 0, 0, 24, 48, 1, 1, 128], "7 bits"),
        *((code, "0..255") for code in ([256], [1.5], [True], ["a", 1], [[1], [1, 2]])),
    ):
        with pytest.raises(ValueError, match=words):
            decode_brush(code, (3, 2))


def drawn(kind, family="sam2", size=(80, 60), **value):
    return drawn_prompt(Region(type=kind, value={**value, kind: ["cat"]}), size, get_family(family))


def test_a_polygon_is_a_box_and_a_mask():
    asked = drawn("polygonlabels", points=[[25, 25], [75, 25], [75, 75], [25, 75]])
    assert (asked.label, asked.target.box) == ("cat", (20, 15, 60, 45))
    assert not asked.target.points
    assert asked.target.mask.shape == (256, 256)
    assert (asked.target.mask[70:190, 70:190] > 0).all()
    assert (asked.target.mask > 0).mean() == pytest.approx(40 * 30 / 4800, abs=0.01)


def test_a_brush_is_a_mask_and_a_point_in_each_stroke():
    mask = np.zeros((60, 80), bool)
    mask[10:20, 5:75] = mask[40:50, 30:33] = True
    asked = drawn("brushlabels", format="rle", rle=encode_brush(mask))
    assert asked.target.box is None
    assert (asked.target.points, asked.target.labels) == ([[40.0, 15.5], [31.5, 45.5]], [1, 1])
    assert asked.target.mask is not None
    assert drawn("brushlabels", "sam3", rle=encode_brush(mask)).target.mask is None  # it takes none
    assert drawn("brushlabels", rle=encode_brush(mask & False)) is None


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("brushlabels", {}, "in `rle`"),
        ("brushlabels", {"rle": [1, 2]}, "rle: it ends too early"),
        ("polygonlabels", {}, "in `points`"),
        ("polygonlabels", {"points": [[1, 2]] * 2}, "3 to 65536 corners, not 2"),
        ("polygonlabels", {"points": [[1, 2]] * 70000}, "3 to 65536 corners, not 70000"),
        ("polygonlabels", {"points": [[1, 0], [2, 100]] * 600}, "up and down more than 1024 times"),
        ("polygonlabels", {"points": [[1, 2], [3, 4], [5]]}, "a corner"),
        ("polygonlabels", {"points": [[1, 2], [3, 4], [5, float("nan")]]}, "a corner"),
        ("polygonlabels", {"points": [[1, 2], [3, 4], [5, {}]]}, "a corner"),
    ],
)
def test_drawn_regions_that_cannot_be_used(kind, value, words):
    with pytest.raises(Problem, match=words):
        drawn(kind, **value)


def test_points_that_are_no_numbers():
    for number in (10**400, float("nan"), "3", True, None):
        region = Region(type="keypointlabels", value={"x": number, "y": 3})
        with pytest.raises(Problem, match="a region needs the numbers x, y, in percent"):
            asked_of([region], (10, 10))


def clicks(*points, box=None):
    return Target([[x, y] for x, y in points], [1] * len(points), box)


def test_logits_are_those_of_the_call_with_one_point_less():
    cache = LogitsCache()
    logits = [np.full((2, 2), number, np.float32) for number in range(4)]
    cache.save("a", [clicks((1, 1))], logits[:1])
    cache.save("a", [clicks((1, 1), (2, 2))], logits[1:2])
    cache.save("a", [clicks((1, 1), (5, 5))], logits[2:3])  # another second point
    cache.save("b", [clicks((1, 1), (2, 2))], logits[3:4])  # another image
    assert cache.load("a", [clicks((2, 2), (3, 3), (1, 1))])[0] is logits[1]
    assert cache.load("a", [clicks((1, 1), (2, 2), (5, 5))])[0] is logits[2]  # the newest of two
    assert cache.load("a", [clicks((1, 1), (2, 2), (3, 3), (4, 4))])[0] is logits[1]  # the one with the most points
    assert cache.load("a", [clicks((1, 1))]) == [None]  # nothing is new
    assert cache.load("a", [clicks((9, 9), (2, 2))]) == [None]
    assert cache.load("a", [clicks((1, 1), (2, 2), box=[0, 0, 5, 5])]) == [None]


def test_each_object_is_refined_by_its_own_mask():
    cache = LogitsCache()
    first, second = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    cache.save("a", [clicks((1, 1)), clicks(box=[0, 0, 5, 5])], [first, second])
    found = cache.load("a", [clicks((7, 7)), clicks((3, 3), box=[0, 0, 5, 5]), clicks((1, 1))])
    assert found[0] is None
    assert found[1] is second
    assert found[2] is first
    assert cache.load("a", [clicks((1, 1), (2, 2))]) == [None]  # an object of the earlier call is missing


def test_the_oldest_logits_go_first():
    cache = LogitsCache(limit=2 * 16)
    for number in range(3):
        cache.save("a", [clicks((number, 0))], [np.zeros((2, 2), np.float32)])
    kept = [cache.load("a", [clicks((number, 0), (9, 9))])[0] is not None for number in range(3)]
    assert kept == [False, True, True]


def test_the_best_of_overlapping_masks_by_their_iou():
    """As many pairs are left out without a look at their pixels, the result is compared with that of all pairs."""
    dice = np.random.default_rng(5)
    found = []
    for number in range(120):
        mask = np.zeros((60, 80), bool)
        x, y = dice.integers(0, 70), dice.integers(0, 50)
        mask[y : y + dice.integers(0, 30), x : x + dice.integers(0, 30)] = True
        mask &= dice.random(mask.shape) < 0.9
        found.append((number % 3, Instance(mask, 1 - number / 200, None)))
    for threshold in (0.0, 0.2, 0.5, 1.0):
        kept = []
        for number, each in found:
            if not each.area or all(
                intersection_over_union(each.mask, other.mask) <= threshold for _, other in kept if other.area
            ):
                kept.append((number, each))
        assert [id(each) for _, each in _best_of_all(iter(found), threshold)] == [id(each) for _, each in kept]
        assert kept


# Shapes for people who edit them


@pytest.fixture
def parts():
    """Return the masks of an object: two large parts, one of 36 pixels, and a speck of one pixel."""
    rectangles = (slice(5, 45), slice(5, 45)), (slice(5, 45), slice(60, 90)), (slice(50, 53), slice(5, 8))
    masks = np.zeros((4, 60, 100), bool)
    for mask, (rows, columns) in zip(masks, (*rectangles, (slice(58, 59), slice(98, 99))), strict=True):
        mask[rows, columns] = True
    return list(masks)


def segment(masks):
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
    assert json.loads(feature(segment(few), 0, "sam2"))["geometry"]["type"] == "Polygon"


def test_an_empty_mask_is_no_shape(parts):
    assert shapes_of(segment([parts[0] & False]), Drawing()) == []
    assert feature(segment([parts[0] & False]), 0, "sam2") is None


def test_qupath_gets_no_specks_and_no_pinholes(parts):
    parts[0][20:35, 20:35] = False  # a hole
    parts[0][8, 8] = False  # a pinhole
    geometry = json.loads(feature(segment(parts), 0, "sam2"))["geometry"]
    assert geometry["type"] == "MultiPolygon"
    assert [len(rings) for rings in geometry["coordinates"]] == [2, 1]
    assert all(ring[0] == ring[-1] for rings in geometry["coordinates"] for ring in rings)


def test_a_labelling_setup_is_read_in_one_pass(monkeypatch):
    """For each of its thousands of tags, a search of all images would block the service for minutes."""
    visits = []

    class Counted(ElementTree.Element):
        def iter(self, tag=None):
            visits.append(tag)
            return super().iter(tag)

    tags = (
        '<BrushLabels toName="none"/>' * 50
        + '<BrushLabels name="mask" toName="photo"><Label value="Dog"/></BrushLabels>'
    )
    config = f'<View><Image name="photo" value="$image"/>{tags}</View>'
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(element_factory=Counted))
    tree = ElementTree.fromstring(config, parser)
    monkeypatch.setattr(ElementTree, "fromstring", lambda _: tree)
    found = control_of(config)
    assert (found.name, found.image, found.key, found.labels) == ("mask", "photo", "image", ("Dog",))
    assert len(visits) <= 4


def test_two_images_of_one_name_in_a_labelling_setup():
    config = '<View><Image name="a" value="$x"/><Image name="a" value="$y"/><BrushLabels name="b" toName="a"/></View>'
    with pytest.raises(Problem, match="two images of the labelling setup have the name 'a': rename one"):
        control_of(config)
    config = '<View><Image value="$x"/><Image value="$y"/><Image name="a" value="$z"/><BrushLabels toName="a"/></View>'
    assert control_of(config).key == "z"
