"""Points, labels, boxes and a mask: checked once, then turned into decoder tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import PromptError
from ..families.base import LABEL_BACKGROUND, LABEL_FOREGROUND, LABEL_NO_POINT, Family, FloatArray, Size

LABELS = (LABEL_BACKGROUND, LABEL_FOREGROUND, LABEL_NO_POINT)


@dataclass(frozen=True)
class Prompts:
    """Checked prompts for P objects on one image, in pixels of the original image.

    Args:
        coords: float32 (P,N,2), x and y; N is 0 when there are only boxes or a mask.
        labels: int64 (P,N): 1 foreground, 0 background, -2 no point.
        boxes: float32 (P,4) as x1,y1,x2,y2, or None.
        mask: float32 (1 or P,1,S,S) logits, or None.
        image_size: width and height of the original image.
    """

    coords: FloatArray
    labels: npt.NDArray[np.int64]
    boxes: FloatArray | None
    mask: FloatArray | None
    image_size: Size

    def __len__(self) -> int:
        return len(self.coords)

    @property
    def has_padding(self) -> bool:
        """Whether an object has points that are none, as those have that came in lists of different length."""
        return bool((self.labels == LABEL_NO_POINT).any())

    def tensors(self, family: Family) -> dict[str, npt.NDArray[np.generic]]:
        """Return the decoder's inputs, embeddings aside, in the frame of ``family``.

        Places in which no object has a point are left out: no mask depends on them, but see Family.masks_out_padding.
        """
        scale = np.array(family.scale(self.image_size), np.float32)
        boxes = None if self.boxes is None else self.boxes * np.tile(scale, 2)
        used = (self.labels != LABEL_NO_POINT).any(axis=0)
        return family.decoder_inputs(self.coords[:, used] * scale, self.labels[:, used], boxes, self.mask)

    def parts(self, size: int) -> list[Prompts]:
        """Return prompts for at most ``size`` objects each, in order; a mask for all stays with each part."""
        if len(self) <= size:
            return [self]
        cuts = [slice(start, start + size) for start in range(0, len(self), size)]
        return [
            Prompts(
                self.coords[cut],
                self.labels[cut],
                None if self.boxes is None else self.boxes[cut],
                self.mask if self.mask is None or len(self.mask) == 1 else self.mask[cut],
                self.image_size,
            )
            for cut in cuts
        ]


def check_prompts(
    point_coords: Any,
    point_labels: Any,
    box: Any,
    mask_input: Any,
    *,
    image_size: Size,
    mask_size: int,
) -> Prompts:
    """Check what a caller hands in and bring it to one form.

    Args:
        point_coords: (N,2) for one object, (P,N,2) for several, or a list of P lists of different length; pixels of the
            original image, (0,0) is the top left corner of the top left pixel. None for no points.
        point_labels: (N,) or (P,N) or ragged likewise; 1 foreground, 0 background, -2 no point. None: all foreground.
        box: (4,) or (P,4) as x1,y1,x2,y2 with x1 < x2 and y1 < y2, or None.
        mask_input: logits of an earlier prediction: (S,S), (1,S,S) or (P,1,S,S), or None.
        image_size: width and height of the image.
        mask_size: S.

    Raises:
        PromptError: nothing to go by, or a value of the wrong shape, type or range; the text names the value.
    """
    coords, labels = _points(point_coords, point_labels)
    boxes = _boxes(box, image_size)
    mask = _mask(mask_input, mask_size)
    count = _common_count(coords, boxes, mask)
    if coords is None or labels is None:
        coords, labels = np.zeros((count, 0, 2), np.float32), np.zeros((count, 0), np.int64)
    real = labels != LABEL_NO_POINT
    _check_inside("point", coords[real], image_size)
    if boxes is None and mask is None and not real.any(axis=1).all():
        raise PromptError("every object needs at least one point, a box or a mask_input")
    return Prompts(coords, labels, boxes, mask, image_size)


def _points(coords: Any, labels: Any) -> tuple[FloatArray | None, npt.NDArray[np.int64] | None]:
    if coords is None:
        if labels is not None:
            raise PromptError("point_labels without point_coords")
        return None, None
    if _is_ragged(coords):
        coords, labels = _fill_up(coords, labels)
    points = _numbers("point_coords", coords)
    if points.size == 0:  # of one object, or of each of P: (P,0,2), or a list of P empty lists
        objects = points.shape[0] if points.ndim == 3 or points.shape[1:] == (0,) else 1
        points = points.reshape(max(objects, 1), 0, 2)
    if points.ndim == 2:
        points = points[None]
    if points.ndim != 3 or points.shape[2] != 2:
        raise PromptError(f"point_coords must be (N,2) or (P,N,2), not {_shape(coords)}")
    if labels is None:
        return points, np.full(points.shape[:2], LABEL_FOREGROUND, np.int64)
    return points, _labels(labels, points)


def _labels(labels: Any, points: FloatArray) -> npt.NDArray[np.int64]:
    values = _numbers("point_labels", labels)
    if values.ndim == 1 and points.shape[0] == 1:
        values = values[None]
    if values.shape != points.shape[:2]:
        raise PromptError(
            f"point_labels has shape {_shape(labels)}, but {points.shape[0]} object(s) with {points.shape[1]} "
            "point(s) each need one label a point"
        )
    for value in values.ravel():
        if value not in LABELS:
            raise PromptError(f"label {value:g}: a label is 1 (foreground), 0 (background) or -2 (no point)")
    return values.astype(np.int64)


def _is_ragged(coords: Any) -> bool:
    """Whether ``coords`` is a list of point lists that differ in length."""
    if isinstance(coords, np.ndarray) or not isinstance(coords, Sequence) or not coords:
        return False
    try:
        rows = [_row(np.asarray(points)) for points in coords]
        return len({len(row) for row in rows if row.ndim == 2}) > 1
    except (ValueError, TypeError, IndexError):
        return False


def _row(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an object's points as they are, but no points, whatever their shape, as (0,2)."""
    return points if points.size else points.reshape(0, 2)


def _fill_up(coords: Sequence[Any], labels: Any) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Fill point lists of different length up to the longest, with label -2 behind the real points."""
    rows = [_row(_numbers("point_coords", points)) for points in coords]
    if any(row.ndim != 2 or row.shape[1] != 2 for row in rows):
        raise PromptError("every object's points must be (N,2)")
    if labels is None:
        labels = [np.ones(len(row)) for row in rows]
    if not isinstance(labels, (Sequence, np.ndarray)) or len(labels) != len(rows):
        raise PromptError(f"point_labels must hold one list for each of the {len(rows)} objects")
    longest = max(len(row) for row in rows)
    filled = np.zeros((len(rows), longest, 2), np.float32)
    marks = np.full((len(rows), longest), LABEL_NO_POINT, np.int64)
    for index, (row, row_labels) in enumerate(zip(rows, labels, strict=True)):
        filled[index, : len(row)] = row
        marks[index, : len(row)] = _labels(row_labels, row[None])[0]
    return filled, marks


def _boxes(box: Any, size: Size) -> FloatArray | None:
    if box is None:
        return None
    boxes = _numbers("box", box)
    if boxes.ndim == 1 and boxes.size:
        boxes = boxes[None]
    if boxes.ndim != 2 or boxes.shape[1] != 4 or len(boxes) == 0:
        raise PromptError(f"box must be (4,) or (P,4) as x1,y1,x2,y2, not {_shape(box)}")
    _check_inside("box corner", boxes.reshape(-1, 2), size)
    for x1, y1, x2, y2 in boxes:
        if x1 >= x2 or y1 >= y2:
            raise PromptError(
                f"box {x1:g},{y1:g},{x2:g},{y2:g} has swapped corners: it must be x1,y1,x2,y2 with x1 < x2 and y1 < y2"
            )
    return boxes


def _mask(mask: Any, side: int) -> FloatArray | None:
    if mask is None:
        return None
    logits = _numbers("mask_input", mask)
    shape = logits.shape
    fits = logits.size > 0 and shape[-2:] == (side, side) and shape[:-2] in ((), (1,), (shape[0], 1))
    if not fits:
        raise PromptError(
            f"mask_input must be ({side},{side}), (1,{side},{side}) or (P,1,{side},{side}) logits, not {shape}: "
            "take one mask of an earlier predict(), for example masks[0, 0]"
        )
    return logits.reshape(-1, 1, side, side)


def _common_count(coords: FloatArray | None, boxes: FloatArray | None, mask: FloatArray | None) -> int:
    """Number of objects P; points and boxes must agree, a mask may be shared."""
    counts = {name: len(part) for name, part in (("point_coords", coords), ("box", boxes)) if part is not None}
    if len(set(counts.values())) > 1:
        raise PromptError(f"point_coords is for {counts['point_coords']} object(s), box for {counts['box']}")
    masks = 0 if mask is None else len(mask)
    count = next(iter(counts.values()), masks)
    if count == 0:
        raise PromptError("nothing to go by: give point_coords, box or mask_input")
    if masks > 1 and masks != count:
        raise PromptError(f"mask_input holds {masks} masks for {count} object(s)")
    return count


def _check_inside(what: str, points: FloatArray, size: Size) -> None:
    width, height = size
    outside = (points < 0).any(axis=-1) | (points > np.array([width, height], np.float32)).any(axis=-1)
    if outside.any():
        x, y = points[outside][0]
        raise PromptError(f"{what} ({x:g}, {y:g}) lies outside the image of {width}x{height} pixels")


def _numbers(name: str, value: Any) -> FloatArray:
    try:
        array = np.asarray(value)
        if array.size == 0:  # whatever type nothing has
            return np.zeros(array.shape, np.float32)
        if array.dtype.kind not in "biuf":
            raise ValueError
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
            array = array.astype(np.float32)
    except (ValueError, TypeError, OverflowError):
        raise PromptError(f"{name} must be an array of numbers") from None
    if not np.isfinite(array).all():
        raise PromptError(f"{name} holds NaN or infinity")
    return array


def _shape(value: Any) -> tuple[int, ...]:
    return np.shape(value)
