"""Planes of a napari layer as RGB images (single images, stacks, time series, pyramids), and the prompts in a plane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import ImageError
from ...families.base import Size
from ...inputs.samples import Bytes, Stretch
from ...tiles import LargeImage
from ...tiles.pyramid import Level

Plane = tuple[int, ...]
"""The index of a plane in a stack, with one number for each axis before the last two. An image has one plane, ()."""

LARGE = 4096
"""Images whose longer side has more pixels are read part by part."""


@dataclass(frozen=True, eq=False)
class Source:
    """An image layer.

    Args:
        levels: the arrays of a pyramid, largest first, or a single array. Each is (...,H,W), or (...,H,W,3|4) with
            ``rgb``. Only the required parts are read, so dask and zarr arrays are supported.
        limits: the values that are shown as black and white; None for 8-bit colours.
    """

    levels: Sequence[Any]
    rgb: bool = False
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.shape) - (3 if self.rgb else 2) < 0:
            raise ImageError(f"an image layer needs at least two axes, not {self.shape}")
        if self.rgb and self.shape[-1] not in (3, 4):
            raise ImageError(f"colours need 3 or 4 channels, not {self.shape[-1]}")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.levels[0].shape)

    @property
    def stack(self) -> tuple[int, ...]:
        """The lengths of the axes before the last two."""
        return self.shape[: -3 if self.rgb else -2]

    @property
    def size(self) -> Size:
        height, width = self.shape[len(self.stack) : len(self.stack) + 2]
        return int(width), int(height)

    @property
    def is_large(self) -> bool:
        return max(self.size) > LARGE

    def has(self, plane: Plane) -> bool:
        return all(0 <= index < length for index, length in zip(plane, self.stack, strict=True))

    def pixels(self, plane: Plane) -> Bytes:
        """Return a plane as uint8 (H,W,3)."""
        return self._rgb(np.asarray(self.levels[0][plane]))

    def large(self, plane: Plane) -> LargeImage:
        return LargeImage("the layer", [self._level(array, plane) for array in self.levels])

    def frames(self, plane: Plane, axis: int) -> Frames:
        """Return the planes along an axis as the frames of a video.

        Args:
            plane: the indexes of the other axes; the index of ``axis`` is ignored.
        """
        if not 0 <= axis < len(self.stack):
            raise ImageError("objects are tracked along an axis of a stack: this layer is a single image")
        return Frames(self, plane, axis)

    def _level(self, array: Any, plane: Plane) -> Level:
        height, width = array.shape[len(plane) : len(plane) + 2]

        def read(x1: int, y1: int, x2: int, y2: int) -> Bytes:
            return self._rgb(np.asarray(array[(*plane, slice(y1, y2), slice(x1, x2))]))

        return Level((int(width), int(height)), read)

    def _rgb(self, values: npt.NDArray[Any]) -> Bytes:
        if values.dtype == bool:
            values = values.astype(np.uint8) * 255
        elif self.limits is not None:
            values = Stretch(*self.limits).to_bytes(values)
        elif values.dtype.kind == "f":  # napari shows floating-point colours from 0 to 1
            values = Stretch(0, 1).to_bytes(values)
        elif values.dtype != np.uint8:
            raise ImageError(f"colours of the type {values.dtype} cannot be sent: convert the layer to uint8")
        colours = values[..., :3] if self.rgb else np.repeat(values[..., None], 3, axis=-1)
        return np.ascontiguousarray(colours)


class Frames(Sequence[Image.Image]):
    """The planes along an axis of a stack, each read on access."""

    def __init__(self, source: Source, plane: Plane, axis: int) -> None:
        self._source, self._plane, self.axis = source, plane, axis

    def __len__(self) -> int:
        return self._source.stack[self.axis]

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Image.fromarray(self._source.pixels(self.plane(index)))

    @property
    def size(self) -> Size:
        return self._source.size

    def plane(self, index: int) -> Plane:
        return (*self._plane[: self.axis], int(index), *self._plane[self.axis + 1 :])

    def shows(self, plane: Plane) -> bool:
        return 0 <= plane[self.axis] < len(self) and self.plane(plane[self.axis]) == plane


Key = tuple[Plane, int]
"""A plane, and the number of an object in it, from 1."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of an object in a plane.

    Args:
        points: x, y in pixels of the plane; the centre of the first pixel is 0, 0.
        labels: 1 for each point inside the object, 0 for each outside.
    """

    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None

    def with_point(self, x: float, y: float, label: int) -> Prompt:
        return Prompt((*self.points, (x, y)), (*self.labels, label), self.box)

    def within(self, size: Size) -> Prompt:
        """Return the prompt, moved into an image of this width and height."""
        high = np.array(size, float) - 1
        points = np.clip(np.reshape(self.points, (-1, 2)), 0, high).tolist()
        box = None
        if self.box is not None:
            x1, y1, x2, y2 = np.clip(np.reshape(self.box, (2, 2)), 0, np.array(size, float)).ravel().tolist()
            box = (x1, y1, x2, y2)
        return Prompt(tuple((x, y) for x, y in points), self.labels, box)

    def arguments(self) -> dict[str, Any]:
        """Return the prompt as arguments of the clients, without empty parts."""
        points = {"point_coords": self.points, "point_labels": self.labels} if self.points else {}
        return {**points, **({} if self.box is None else {"box": self.box})}


def collect(
    points: npt.ArrayLike,
    point_features: Mapping[str, Sequence[Any]],
    boxes: Iterable[npt.ArrayLike],
    box_features: Mapping[str, Sequence[Any]],
) -> dict[Key, Prompt]:
    """Return the prompts of two layers.

    Args:
        points: (N,D), coordinates in axis order: stack indexes, row, column.
        point_features: ``object``, the number of the object of each point, and ``label``, 1 inside and 0 outside.
        boxes: (V,D) vertices of each rectangle. Only an object's last rectangle in a plane counts.
    """
    found: dict[Key, Prompt] = {}
    rows = np.asarray(points, float)
    for row, number, label in zip(rows, point_features["object"], point_features["label"], strict=True):
        key = _plane(row), int(number)
        found[key] = found.get(key, Prompt()).with_point(float(row[-1]), float(row[-2]), int(label))
    for each, number in zip(boxes, box_features["object"], strict=True):
        vertices = np.asarray(each, float)
        key = _plane(vertices[0]), int(number)
        (y1, x1), (y2, x2) = vertices[:, -2:].min(axis=0).tolist(), vertices[:, -2:].max(axis=0).tolist()
        known = found.get(key, Prompt())
        found[key] = Prompt(known.points, known.labels, (x1, y1, x2, y2))
    return found


def differences(before: Mapping[Key, Prompt], after: Mapping[Key, Prompt]) -> tuple[dict[Key, Prompt], list[Key]]:
    """Return new or changed prompts, and the keys of removed ones."""
    changed = {key: prompt for key, prompt in after.items() if before.get(key) != prompt}
    return changed, [key for key in before if key not in after]


def _plane(place: npt.NDArray[np.float64]) -> Plane:
    return tuple(round(value) for value in place[:-2].tolist())
