"""Requests of annotation tools, for tests of adapters."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np

from triton_sam.annotate.prompts import mask_logits
from triton_sam.masks import mask_to_box
from triton_sam.masks.polygons import fill_polygons, mask_to_polygons, trace_polygons
from triton_sam.masks.rle import BoolArray

CLICK, AWAY = [200, 180], [400, 300]
BOX = [88, 68, 312, 292]
RING = [[80, 180], [200, 60], [320, 180], [200, 300]]
"""A rough outline of the object at CLICK."""


LABEL_SETUP = """<View><Image name="image" value="$image"/>
<BrushLabels name="tag" toName="image"><Label value="cat"/></BrushLabels>
<KeyPointLabels name="kp" toName="image" smart="true"><Label value="cat"/></KeyPointLabels></View>"""
"""A labelling setup of Label Studio."""


def asked_of_label_studio(image64: str, *regions: Any, config: str = LABEL_SETUP, task: int = 1) -> dict[str, Any]:
    """Return a call of Label Studio with the regions drawn by a user in an image."""
    data = {"image": f"data:image/jpeg;base64,{image64}"}
    params = {"context": {"result": list(regions)}, "login": None, "password": None}
    return {"tasks": [{"id": task, "data": data}], "project": "1.2", "label_config": config, "params": params}


def stroke() -> BoolArray:
    """Return a brush stroke over the object at CLICK, in an image of 800 x 600 pixels."""
    mask = np.zeros((600, 800), bool)
    mask[170:190, 150:250] = True
    return mask


def drawn_prompts(client: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the client's prompts for the stroke and the outline."""
    outlined = fill_polygons([RING], (800, 600))
    return (
        {"point_coords": [[200, 180.5]], "mask_input": mask_logits(stroke(), client.family)},
        {"box": mask_to_box(outlined), "mask_input": mask_logits(outlined, client.family)},
    )


def base64_of(content: bytes) -> str:
    """Return bytes in the form that tools send."""
    return base64.b64encode(content).decode()


def waves(seed: int, size: float, shape: tuple[int, int] = (60, 80)) -> BoolArray:
    """Return a mask with parts, holes and thin places: noise whose waves are about ``size`` pixels long."""
    noise = np.random.default_rng(seed).normal(size=shape)
    frequencies = np.add.outer(*(np.fft.fftfreq(side) ** 2 for side in shape))
    return np.asarray(np.fft.ifft2(np.fft.fft2(noise) * np.exp(-frequencies * 20 * size**2)).real > 0)


def filled(rings: Iterable[Any], shape: tuple[int, int]) -> BoolArray:
    """Return the pixels whose centres are inside rings, by the even-odd rule; the origin of x and y is a corner."""
    inside = np.zeros(shape, bool)
    columns = np.arange(shape[1]) + 0.5
    for ring in rings:
        points = np.reshape(np.asarray(ring, float), (-1, 2))
        after = np.roll(points, -1, axis=0)
        for row in range(shape[0]):
            y = row + 0.5
            crosses = (points[:, 1] > y) != (after[:, 1] > y)
            (x1, y1), (x2, y2) = points[crosses].T, after[crosses].T
            edges = np.sort(x1 + (y - y1) * (x2 - x1) / (y2 - y1))
            inside[row] ^= (np.searchsorted(edges, columns) % 2).astype(bool)
    return inside


def without_holes(mask: BoolArray) -> BoolArray:
    """Return a mask with filled holes, for formats without holes."""
    return filled_each(mask_to_polygons(mask, 0), mask.shape)


def without_specks(mask: BoolArray, share_of_mean: float = 0.0) -> BoolArray:
    """Return a mask without small parts and with filled small holes, for formats for manual editing.

    Args:
        mask: the mask.
        share_of_mean: parts and holes below this share of the mean area of the parts are small; 0: those below a
            hundredth of the largest part, or below ten pixels.
    """
    size = mask.shape[0], mask.shape[1]
    polygons = trace_polygons(mask, 0)
    areas = [int(filled([polygon.exterior, *polygon.holes], size).sum()) for polygon in polygons]
    least = share_of_mean * float(np.mean(areas or 0)) if share_of_mean else max(areas, default=0) / 100
    least = max(least, 10)
    kept = np.zeros(size, bool)
    for polygon, area in zip(polygons, areas, strict=True):
        if area >= least:
            holes = [hole for hole in polygon.holes if filled([hole], size).sum() >= least]
            kept |= filled([polygon.exterior, *holes], size)
    return kept


def filled_each(rings: Iterable[Any], shape: tuple[int, ...]) -> BoolArray:
    """Return the pixels inside any of the rings."""
    return np.logical_or.reduce([filled([ring], (shape[0], shape[1])) for ring in rings])


def near(mask: BoolArray, other: BoolArray, pixels: int = 1) -> bool:
    """Return whether masks differ only within some pixels of an edge. The border of the image is also an edge."""
    grown, shrunk = mask.copy(), mask.copy()
    for _ in range(pixels):
        grown, shrunk = _dilated(grown), ~_dilated(~shrunk, True)
    return bool((other <= grown).all() and (shrunk <= other).all())


def _dilated(mask: BoolArray, outside: bool = False) -> BoolArray:
    padded = np.pad(mask, 1, constant_values=outside)
    parts = [padded[y : y + mask.shape[0], x : x + mask.shape[1]] for y in range(3) for x in range(3)]
    return np.logical_or.reduce(parts)


def brushed(result: dict[str, Any]) -> BoolArray:
    """Decode a mask of Label Studio bit by bit, as its own decoder does."""
    bits = "".join(f"{byte:08b}" for byte in result["value"]["rle"])
    place = 0

    def read(count: int) -> int:
        nonlocal place
        place += count
        return int(bits[place - count : place], 2)

    total, size = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    values = np.zeros(total, np.uint8)
    start = 0
    while start < total:
        repeats = read(1)
        end = start + read(sizes[read(2)]) + 1
        if repeats:
            values[start:end] = read(size)
        else:
            values[start:end] = [read(size) for _ in range(start, end)]
        start = end
    rgba = values.reshape(result["original_height"], result["original_width"], 4)
    return np.asarray(rgba[:, :, 3] > 0)
