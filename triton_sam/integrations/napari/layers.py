"""The plugin's layers: the user's points and boxes, the preview, and the objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...masks import mask_to_box
from ...masks.polygons import trace_polygons
from ...masks.rle import BoolArray
from .sources import Key, Plane, Prompt, Source, collect

HIGHEST = np.iinfo(np.uint16).max


@dataclass(frozen=True, eq=False)
class Patch:
    """The part of a plane that contains an object."""

    mask: BoolArray
    row: int
    column: int

    @property
    def place(self) -> tuple[slice, slice]:
        height, width = self.mask.shape
        return slice(self.row, self.row + height), slice(self.column, self.column + width)


def patch_of(mask: BoolArray) -> Patch | None:
    """Return the foreground of a plane's mask, bool (H,W); None if the mask is empty."""
    box = mask_to_box(mask)
    if box is None:
        return None
    x1, y1, x2, y2 = box
    return Patch(mask[y1:y2, x1:x2].copy(), y1, x1)


MAX_LABELS = 1 << 28
"""Layers with more pixels get outlines instead of labels, which would need more than 500 MB."""
POINT_COLORS = ["#ff3b30", "#34c759"]
"""For labels 0 (outside) and 1 (inside)."""


def source_of(layer: Any) -> Source:
    levels = list(layer.data) if layer.multiscale else [layer.data]
    is_plain = layer.rgb or np.dtype(levels[0].dtype) == bool
    if is_plain:
        return Source(levels, layer.rgb)
    low, high = layer.contrast_limits
    return Source(levels, layer.rgb, (float(low), float(high)))


class Layers:
    """Adds the layers of one image to a viewer, with the image's scale and position."""

    def __init__(self, viewer: Any, image: Any, source: Source) -> None:
        self._viewer, self._source = viewer, source
        place = {name: getattr(image, name) for name in ("scale", "translate", "rotate", "shear", "affine")}
        ndim, shape = len(source.stack) + 2, (*source.stack, *source.size[::-1])
        name = image.name
        self.objects: Objects
        if np.prod(shape, dtype=np.int64) <= MAX_LABELS:
            labels = viewer.add_labels(np.zeros(shape, np.uint16), name=f"{name}: objects", **place)
            self.objects = Labels(labels)
        else:
            self.objects = Outlines(viewer.add_shapes(ndim=ndim, name=f"{name}: objects", opacity=0.5, **place))
        self.preview = viewer.add_shapes(
            ndim=ndim, name=f"{name}: preview", edge_color="yellow", face_color="#ffff0033", edge_width=1, **place
        )
        self.preview.editable = False
        self.boxes = viewer.add_shapes(
            ndim=ndim, name=f"{name}: boxes", edge_color="yellow", face_color="transparent", edge_width=2, **place
        )
        self.boxes.features = {"object": np.empty(0, int)}
        self.boxes.mode = "add_rectangle"
        self.points = viewer.add_points(
            ndim=ndim,
            name=f"{name}: points",
            features={"object": np.empty(0, int), "label": np.empty(0, int)},
            size=max(4, max(source.size) // 80),
            **place,
        )
        self.choose(1, 1)
        self.points.mode = "add"

    def all(self) -> list[Any]:
        return [self.objects.layer, self.preview, self.boxes, self.points]

    def choose(self, number: int, label: int) -> None:
        """Assign new points and boxes to an object; label 1 is inside, 0 outside."""
        self.points.selected_data = set()
        self.points.feature_defaults = {"object": number, "label": label}
        self.points.current_face_color = POINT_COLORS[label]
        self.boxes.selected_data = set()
        self.boxes.feature_defaults = {"object": number}

    def prompts(self) -> dict[Key, Prompt]:
        points, boxes = self.points, self.boxes
        rectangles = [number for number, kind in enumerate(boxes.shape_type) if kind == "rectangle"]
        numbers = boxes.features["object"].to_numpy()[rectangles]
        return collect(points.data, points.features, [boxes.data[each] for each in rectangles], {"object": numbers})

    def show_preview(self, plane: Plane, patch: Patch | None) -> None:
        """Show the outline of a mask; None hides it."""
        rings = [] if patch is None else outlines(plane, patch)
        self.preview.data = []
        if rings:
            self.preview.add_polygons(rings)

    def remove(self) -> None:
        """Remove points, boxes and preview from the viewer. The layer of objects stays, unless it is empty."""
        objects = [self.objects.layer] if self.objects.is_empty else []
        for each in (*objects, self.preview, self.boxes, self.points):
            if each in self._viewer.layers:
                self._viewer.layers.remove(each)


class Labels:
    """The objects as a layer of labels. Labels that a person painted do not change.

    Where objects overlap, the last changed object is on top; removing it shows the one below.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self._patches: dict[Key, Patch] = {}

    @property
    def is_empty(self) -> bool:
        return not self.layer.data.any()

    def put(self, plane: Plane, patches: dict[int, Patch | None]) -> None:
        """Show the masks of objects instead of their earlier ones. None removes a mask."""
        for number, patch in patches.items():
            self._put(plane, number, patch)
        self.layer.refresh()

    def add(self, plane: Plane, patches: list[Patch], least: int) -> None:
        """Show objects with numbers that are free in all planes, from ``least`` on."""
        for number, patch in enumerate(patches, max(least, self.free_number())):
            self._put(plane, min(number, HIGHEST), patch)
        self.layer.refresh()

    def free_number(self) -> int:
        """Return the first number above those of all objects and all painted labels."""
        shown = max((number for _, number in self._patches), default=0)
        return min(max(shown, int(self.layer.data.max(initial=0))) + 1, HIGHEST)

    def _put(self, plane: Plane, number: int, patch: Patch | None) -> None:
        target = self.layer.data[plane]
        old = self._patches.pop((plane, number), None)
        if old is not None:
            part = target[old.place]
            part[old.mask & (part == number)] = 0
            self._show_below(plane, old)
        if patch is not None:
            target[patch.place][patch.mask] = number
            self._patches[plane, number] = patch

    def _show_below(self, plane: Plane, gone: Patch) -> None:
        target = self.layer.data[plane]
        freed = np.zeros(target.shape, bool)
        freed[gone.place] = gone.mask
        for (where, number), other in self._patches.items():
            if where == plane:
                part = target[other.place]
                part[other.mask & freed[other.place] & (part == 0)] = number


_DRAWN = {"object": 0, "plane": ""}
"""The features of polygons that a person draws."""


class Outlines:
    """The objects of a very large image as polygons without holes. Polygons that a person drew do not change.

    The features of a polygon are its plane and the number of its object, which is 0 for drawn ones.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        layer.features = {"object": np.empty(0, int), "plane": np.empty(0, object)}
        layer.feature_defaults = _DRAWN

    @property
    def is_empty(self) -> bool:
        return not self.layer.data

    def put(self, plane: Plane, patches: dict[int, Patch | None]) -> None:
        """Show the outlines of objects instead of their earlier ones. None removes an object."""
        layer, name = self.layer, str(plane)
        features = layer.features
        old = np.flatnonzero((features["plane"] == name) & features["object"].isin(list(patches)))
        if len(old):
            mode, layer.mode = layer.mode, "pan_zoom"  # ends the drawing of a polygon, whose index changes
            layer.selected_data = set(old.tolist())
            layer.remove_selected()
            layer.mode = mode
            layer.feature_defaults = _DRAWN  # napari 0.5 takes those of the selected polygons
        found = [(number, patch) for number, patch in patches.items() if patch is not None]
        rings = [(number, ring) for number, patch in found for ring in outlines(plane, patch)]
        if rings:
            layer.add_polygons([ring for _, ring in rings])
            new = layer.features.index[-len(rings) :]
            layer.features.loc[new, "object"] = [number for number, _ in rings]
            layer.features.loc[new, "plane"] = name

    def add(self, plane: Plane, patches: list[Patch], least: int) -> None:
        self.put(plane, dict(enumerate(patches, max(least, self.free_number()))))

    def free_number(self) -> int:
        return int(self.layer.features["object"].to_numpy().max(initial=0)) + 1


Objects = Labels | Outlines


def outlines(plane: Plane, patch: Patch) -> list[Any]:
    """Return the outlines of a mask as napari polygons, each (N,D): stack indexes, row, column."""
    found = []
    for polygon in trace_polygons(patch.mask):
        columns, rows = (polygon.exterior + np.array([patch.column, patch.row]) - 0.5).T  # pixel centres
        found.append(np.column_stack([*(np.full(len(rows), index) for index in plane), rows, columns]))
    return found
