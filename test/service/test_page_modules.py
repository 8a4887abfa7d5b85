"""Modules of the page that compute with masks, against Python: random masks, and pixels that touch at a corner."""

import numpy as np
import pytest
from scipy import ndimage

pytest.importorskip("skimage")

from skimage import measure
from support.tools import filled

from triton_sam.masks import mask_to_box
from triton_sam.masks.rle import mask_to_rle

SADDLES = [np.array(rows, bool) for rows in ([[1, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]])]
CENTRES = """(path, width, height) => {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  const inside = (x, y) => context.isPointInPath(path, x + 0.5, y + 0.5, "evenodd");
  return Array.from({ length: height }, (_, y) => Array.from({ length: width }, (_, x) => Number(inside(x, y))));
}"""
"""A function that returns which pixels have their centre inside a path."""


def masks(seed, count=120, largest=24):
    """Return masks of all densities, among them empty and full ones, and saddles."""
    rng = np.random.default_rng(seed)
    drawn = [rng.random(rng.integers(1, largest, 2)) < density for density in rng.uniform(0, 1, count)]
    return [*SADDLES, np.zeros((3, 4), bool), np.ones((5, 2), bool), np.ones((1, 1), bool), *drawn]


def signed(mask, rng):
    """Return int8 logits that are above 0 inside a mask, and 0 or below it elsewhere."""
    return np.where(mask, rng.integers(1, 128, mask.shape), rng.integers(-128, 1, mask.shape))


def spans_of(mask):
    """Return where the runs of foreground begin and end, column by column."""
    edges = np.diff(np.pad(mask.ravel(order="F").astype(np.int8), 1))
    return np.flatnonzero(edges).tolist()


def test_run_lengths_are_read_and_written_as_in_python(modules):
    drawn = masks(1)
    encoded = [mask_to_rle(mask) for mask in drawn]
    plain = [mask_to_rle(mask, compressed=False)["counts"] for mask in drawn]
    assert modules.run("spans", "({ counts }, { runsOf }) => runsOf(counts)", encoded) == plain
    assert modules.run("spans", "(rle, { spansOf }) => [...spansOf(rle)]", encoded) == list(map(spans_of, drawn))
    assert modules.run("spans", "(rle, { spansOf, toRle }) => toRle(spansOf(rle), rle.size)", encoded) == encoded


def test_areas_boxes_and_unions_are_those_of_the_pixels(modules):
    drawn = masks(3)
    rng = np.random.default_rng(3)
    others = [rng.random(mask.shape) < 0.3 for mask in drawn]
    thirds = [rng.random(mask.shape) < 0.1 for mask in drawn]
    source = """([size, ...masks], { measure, union }) => ({ ...measure(masks[0], size), union: [...union(masks)] })"""
    inputs = [[mask.shape, *map(spans_of, group)] for mask, *group in zip(drawn, drawn, others, thirds, strict=True)]
    found = modules.run("spans", source, inputs)
    for each, mask, other, third in zip(found, drawn, others, thirds, strict=True):
        box = mask_to_box(mask)
        assert each["area"] == mask.sum()
        assert each["bbox"] == (box and [box[0], box[1], box[2] - box[0], box[3] - box[1]])
        assert each["union"] == spans_of(mask | other | third)  # spans that touch are one


def test_a_mask_contains_the_pixels_under_its_points(modules):
    source = """({ rle }, { spansOf, contains }) => { const [height, width] = rle.size, spans = spansOf(rle);
      return Array.from({ length: height }, (_, y) => Array.from({ length: width }, (_, x) =>
        [[0, 0], [0.99, 0.5], [0.3, 0.99]].map(([dx, dy]) => contains(spans, rle, { x: x + dx, y: y + dy })))); }"""
    drawn = masks(4)
    found = modules.run("spans", source, [{"rle": mask_to_rle(mask)} for mask in drawn])
    for each, mask in zip(found, drawn, strict=True):
        assert np.array_equal(each, np.repeat(mask[:, :, None], 3, axis=2))


def test_outlines_hold_the_pixels_and_separate_those_that_touch_at_a_corner(modules):
    """Each connected piece has a ring, and each hole one. Pixels that touch only at a corner are not connected."""
    rng = np.random.default_rng(5)
    drawn = masks(5)
    inputs = []
    for mask in drawn:
        side = max(mask.shape) + int(rng.integers(0, 3))
        logits = rng.integers(-128, 128, (side, side))  # the rest of the square belongs to no pixel of the image
        logits[: mask.shape[0], : mask.shape[1]] = signed(mask, rng)
        used = [mask.shape[1] / side, mask.shape[0] / side]
        size = {"width": mask.shape[1], "height": mask.shape[0]}
        inputs.append({"logits": logits.ravel().tolist(), "side": side, "used": used, "size": size})
    source = f"""({{ logits, side, used, size }}, {{ outline, measureLogits }}) => {{
      const values = Int8Array.from(logits), path = outline(values, side, used, size);
      return {{ rings: path.rings, centres: ({CENTRES})(path, size.width, size.height),
        ...measureLogits(values, side, used, size) }}; }}"""
    for found, mask, sent in zip(modules.run("outline", source, inputs), drawn, inputs, strict=True):
        # With zeros at its neighbours, an outline runs through the centre of a pixel, which then counts as either side.
        logits = np.reshape(sent["logits"], (sent["side"], -1))[: mask.shape[0], : mask.shape[1]]
        around = np.pad(logits, 1, constant_values=-1)
        is_clear = np.pad(logits, 1, constant_values=-1)[1:-1, 1:-1] != 0
        assert np.array_equal(np.array(found["centres"], bool)[is_clear], mask[is_clear])
        pieces = ndimage.label(mask)[1]
        holes = ndimage.label(~np.pad(mask, 1), np.ones((3, 3)))[1] - 1
        assert len(found["rings"]) == pieces + holes
        expected = measure.find_contours(np.where(around == 0, -1e-9, around), 0, fully_connected="low")
        corners = [point for ring in expected for point in ring[:-1, ::-1] - 0.5]
        mine = np.array([point for ring in found["rings"] for point in ring]).reshape(-1, 2)
        limits = [mask.shape[1], mask.shape[0]]
        clipped = np.clip(np.reshape(corners, (-1, 2)), 0, limits)
        assert np.allclose(sorted(mine.round(5).tolist()), sorted(clipped.round(5).tolist()), atol=1e-4)
        box = mask_to_box(mask)
        assert found["area"] == mask.sum()
        assert found["bbox"] == (box and [box[0], box[1], box[2] - box[0], box[3] - box[1]])


def test_outlines_of_run_lengths_hold_the_pixels(modules):
    source = f"""({{ rle, bbox }}, {{ pathOf }}) => ({CENTRES})(pathOf(rle, bbox), rle.size[1], rle.size[0])"""
    drawn = masks(6)
    inputs = [{"rle": mask_to_rle(mask)} for mask in drawn]
    expected = list(drawn)
    for mask in drawn:
        if box := mask_to_box(mask):
            inputs.append({"rle": mask_to_rle(mask), "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]})
            expected.append(mask)
    for found, mask in zip(modules.run("spans", source, inputs), expected, strict=True):
        assert np.array_equal(found, mask)


def test_cells_of_large_masks_are_inside_where_half_of_their_pixels_are(modules):
    rng = np.random.default_rng(7)
    inputs, expected = [], []
    for shape in ((530, 1300), (3, 1025), (1100, 90)):
        mask = ndimage.gaussian_filter(rng.random(shape), 6) > 0.5
        high, wide = (min(512, length) for length in shape)
        rows, columns = (np.arange(length) * cells // length for length, cells in zip(shape, (high, wide), strict=True))
        covered, pixels = np.zeros((2, high, wide))
        np.add.at(covered, (rows[:, None], columns[None]), mask)
        np.add.at(pixels, (rows[:, None], columns[None]), 1)
        share = covered / pixels
        chosen = rng.choice(np.argwhere(abs(share - 0.5) > 0.01), 300)
        places = [((x + 0.5) * shape[1] / wide, (y + 0.5) * shape[0] / high) for y, x in chosen.tolist()]
        inputs.append({"rle": mask_to_rle(mask), "places": places})
        expected.append([bool(share[y, x] > 0.5) for y, x in chosen])
    source = """({ rle, places }, { pathOf }) => {
      const context = new OffscreenCanvas(1, 1).getContext("2d"), path = pathOf(rle);
      return places.map((place) => context.isPointInPath(path, ...place, "evenodd")); }"""
    assert modules.run("spans", source, inputs) == expected


def test_bitmaps_are_painted_as_in_python(modules):
    """Strokes and polygons change the pixels whose centres they cover, and no others."""
    rng = np.random.default_rng(8)
    inputs, expected = [], []
    for mask in masks(8, 80):
        height, width = mask.shape
        ends = rng.uniform(-4, 28, (2, 2)).round(2)
        radius = float(rng.uniform(0.3, 6))
        rings = [rng.uniform(-3, 27, (int(rng.integers(3, 7)), 2)).round(3) for _ in range(rng.integers(1, 3))]
        value = int(rng.integers(0, 2))
        y, x = np.mgrid[:height, :width] + 0.5
        (x1, y1), (x2, y2) = ends
        along = ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / max(1e-12, ((ends[0] - ends[1]) ** 2).sum())
        along = along.clip(0, 1)
        near = np.hypot(x - x1 - along * (x2 - x1), y - y1 - along * (y2 - y1)) <= radius
        inside = filled(rings, (height, width))
        expected.append([mask, np.where(near, value, mask), np.where(inside, value, mask)])
        spots = [dict(zip("xy", end, strict=True)) for end in ends.tolist()]
        rows = [ring.ravel().tolist() for ring in rings]
        inputs.append(
            {
                "spans": spans_of(mask),
                "size": [height, width],
                "spots": spots,
                "radius": radius,
                "rings": rows,
                "value": value,
            }
        )
    source = """({ spans, size, spots, radius, rings, value }, { bitmapOf, spansOfBitmap, stroke, fillRings }) => {
      const [plain, stroked, filled] = Array.from({ length: 3 }, () => bitmapOf(spans, size));
      stroke(stroked, size, ...spots, radius, value);
      fillRings(filled, size, rings, value);
      return [plain, stroked, filled].map((each) => [...spansOfBitmap(each)]); }"""
    for found, wanted in zip(modules.run("bitmap", source, inputs), expected, strict=True):
        assert found == [spans_of(np.asarray(each, bool)) for each in wanted]
