"""Check prompts (points, labels, boxes and a mask) once, then turn them into decoder tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .._common.text import first_line
from ..errors import PromptError
from ..families.base import LABEL_BACKGROUND, LABEL_FOREGROUND, LABEL_NO_POINT, Family, FloatArray, Size
from ..families.tables import MAX_PROMPT_POINTS

LABELS = (LABEL_BACKGROUND, LABEL_FOREGROUND, LABEL_NO_POINT)

MASK_LOGIT = 10.0
"""The logit inside a mask prompt; outside, its negative. As in SAM2's video predictor (sam2_base.py)."""
_LARGEST_LOGIT = 100.0
"""Decoders return logits of about -60 to 60. Larger numbers are not logits but, for example, grey values."""

PromptArray: TypeAlias = "npt.ArrayLike | None"
"""Points, labels, boxes or a mask from the caller: an array, a tensor, nested sequences of any lengths, or None."""


@dataclass(frozen=True)
class Prompts:
    """Checked prompts for P objects on one image, in pixels of the original image.

    Args:
        coords: float32 (P,N,2), x and y of each point; N is 0 if there are no points.
        labels: int64 (P,N): 1 foreground, 0 background, -2 no point (padding).
        mask: float32 (1 or P,1,S,S) logits of an earlier prediction, or None; a single mask serves all objects.
        image_size: width and height of the original image in pixels.
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
        """Whether some points are padding (label -2), as in prompts from lists of different lengths."""
        return bool((self.labels == LABEL_NO_POINT).any())

    def tensors(self, family: Family) -> dict[str, npt.NDArray[np.generic]]:
        """Return the decoder's input tensors, except for the embeddings, with coordinates in the frame of ``family``.

        A point position that is padding for every object is left out. Otherwise, it would change the masks of a decoder
        that does not mask out padding (see Family.masks_out_padding).
        """
        scale = np.array(family.scale(self.image_size), np.float32)
        boxes = None if self.boxes is None else self.boxes * np.tile(scale, 2)
        used = (self.labels != LABEL_NO_POINT).any(axis=0)
        return family.decoder_inputs(self.coords[:, used] * scale, self.labels[:, used], boxes, self.mask)

    def clicks(self, index: int) -> FloatArray:
        """Return the foreground points of one object, float32 (N,2), x and y in pixels of the original image."""
        clicks: FloatArray = self.coords[index][self.labels[index] == LABEL_FOREGROUND]
        return clicks

    def box(self, index: int) -> FloatArray | None:
        """Return the box of one object, float32 (4,) as x1,y1,x2,y2 in pixels of the original image, or None."""
        return None if self.boxes is None else self.boxes[index]

    def fitting_parts(self, size: int) -> list[Prompts]:
        """Split into parts of at most ``size`` objects that a decoder accepts, with the points that pad them."""
        points = self.coords.shape[1] + (0 if self.boxes is None else 2)
        return self.parts(min(size, max(1, MAX_PROMPT_POINTS // max(1, points))))

    def parts(self, size: int) -> list[Prompts]:
        """Split into prompts for at most ``size`` objects each, in order; every part has a mask for all objects."""
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
    """Check the caller's prompts and convert them to one form.

    Args:
        point_coords: points in pixels of the original image, where (0,0) is the top left corner of the top left pixel:
            (2,) for one point, (N,2) for one object, (P,N,2) for P objects, or P lists of different lengths. None if
            there are no points.
        point_labels: one label for each point, (N,) or (P,N) or P lists: 1 foreground, 0 background, -2 no point; a
            single number for a single point. None if every point is foreground.
        box: (4,) or (P,4) as x1,y1,x2,y2 with x1 < x2 and y1 < y2, or None.
        mask_input: logits of an earlier prediction: (S,S), (1,S,S) or (P,1,S,S), or None. A mask of this size (bool, or
            only 0 and 1, or only 0 and 255) becomes logits of -10 and 10.
    """
    coords, labels = _points(point_coords, point_labels)
    boxes = None if box is None else _boxes(box, image_size)
    mask = None if mask_input is None else _mask(mask_input, mask_size)
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
            raise PromptError("point_labels were given without point_coords")
        return None, None
    if _is_ragged(coords):
        coords, labels = _pad(coords, labels)
    points = _numbers("point_coords", coords)
    if points.size == 0:  # no points of one object, or of P objects as (P,0,2) or P empty lists
        objects = points.shape[0] if points.ndim == 3 or points.shape[1:] == (0,) else 1
        points = points.reshape(max(objects, 1), 0, 2)
    if points.shape == (2,):
        points = points[None]
    if points.ndim == 2:
        points = points[None]
    if points.ndim != 3 or points.shape[2] != 2:
        raise PromptError(f"point_coords must be (2,), (N,2) or (P,N,2), not {np.shape(coords)}")
    if labels is None:
        return points, np.full(points.shape[:2], LABEL_FOREGROUND, np.int64)
    return points, _labels(labels, points)


def _labels(labels: Any, points: FloatArray) -> npt.NDArray[np.int64]:
    values = _numbers("point_labels", labels)
    if values.ndim == 0:
        values = values[None]
    if values.ndim == 1 and points.shape[0] == 1:
        values = values[None]
    if values.shape != points.shape[:2]:
        raise PromptError(
            f"point_labels has shape {np.shape(labels)}, but {points.shape[0]} object(s) with {points.shape[1]} "
            "point(s) each need one label for each point"
        )
    for value in values.ravel():
        if value not in LABELS:
            raise PromptError(f"label {value:g} is unknown: use 1 (foreground), 0 (background) or -2 (no point)")
    return values.astype(np.int64)


def _is_ragged(coords: Any) -> bool:
    """Whether ``coords`` is a list of point lists with different lengths."""
    if isinstance(coords, np.ndarray) or not isinstance(coords, Sequence) or not coords:
        return False
    try:
        rows = [np.asarray(points) for points in coords]
        return len({len(row) if row.size else 0 for row in rows if row.ndim == 2 or not row.size}) > 1
    except (ValueError, TypeError, IndexError, RuntimeError):
        return False


def _row(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the points of one object unchanged, or as (0,2) if there are none."""
    return points if points.size else points.reshape(0, 2)


def _pad(coords: Sequence[Any], labels: Any) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Pad point lists to the length of the longest one, with points of label -2 after the real points."""
    rows = [_row(_numbers("point_coords", points)) for points in coords]
    if any(row.ndim != 2 or row.shape[1] != 2 for row in rows):
        raise PromptError("the points of each object must be (N,2)")
    if labels is None:
        labels = [np.ones(len(row)) for row in rows]
    if not isinstance(labels, (Sequence, np.ndarray)) or len(labels) != len(rows):
        raise PromptError(f"point_labels must hold one list for each of the {len(rows)} objects")
    longest = max(len(row) for row in rows)
    padded = np.zeros((len(rows), longest, 2), np.float32)
    padded_labels = np.full((len(rows), longest), LABEL_NO_POINT, np.int64)
    for index, (row, row_labels) in enumerate(zip(rows, labels, strict=True)):
        padded[index, : len(row)] = row
        padded_labels[index, : len(row)] = _labels(row_labels, row[None])[0]
    return padded, padded_labels


def _boxes(box: Any, size: Size) -> FloatArray:
    boxes = _numbers("box", box)
    if boxes.ndim == 1 and boxes.size:
        boxes = boxes[None]
    if boxes.ndim != 2 or boxes.shape[1] != 4 or len(boxes) == 0:
        raise PromptError(f"box must be (4,) or (P,4) as x1,y1,x2,y2, not {np.shape(box)}")
    _check_inside("box corner", boxes.reshape(-1, 2), size)
    for x1, y1, x2, y2 in boxes:
        if x1 >= x2 or y1 >= y2:
            raise PromptError(
                f"box {x1:g},{y1:g},{x2:g},{y2:g} has swapped corners: it must be x1,y1,x2,y2 with x1 < x2 and y1 < y2"
            )
    return boxes


def _mask(mask: Any, side: int) -> FloatArray:
    logits = _numbers("mask_input", mask)
    shape = logits.shape
    if shape == (0, 0):
        raise PromptError("mask_input is empty, because the server sent no logits: call segment(..., logits=True)")
    fits = logits.size > 0 and shape[-2:] == (side, side) and shape[:-2] in ((), (1,), (shape[0], 1))
    if not fits:
        raise PromptError(
            f"mask_input must be ({side},{side}), (1,{side},{side}) or (P,1,{side},{side}) logits, not {shape}: "
            "take one mask of an earlier predict(), for example masks[0, 0]"
        )
    return _as_logits(logits, np.asarray(mask).dtype).reshape(-1, 1, side, side)


def _as_logits(values: FloatArray, given: np.dtype[Any]) -> FloatArray:
    """Return logits unchanged, and a mask as logits."""
    low, high = float(values.min()), float(values.max())
    if low == high == 0:
        if given.kind in "bui":
            raise PromptError("mask_input is an empty mask: give logits, or a mask with foreground")
        return values  # neutral logits
    if low >= 0 and high in (1, 255) and bool(((values == 0) | (values == high)).all()):
        return np.where(values > 0, np.float32(MASK_LOGIT), np.float32(-MASK_LOGIT))
    if given.kind in "bu" or 0 <= low <= high <= 1 or max(-low, high) > _LARGEST_LOGIT:
        raise PromptError(
            f"mask_input holds {low:g} to {high:g}, which are not logits: give logits of an earlier prediction, or a "
            "mask of 0 and 1"
        )
    return values


def _common_count(coords: FloatArray | None, boxes: FloatArray | None, mask: FloatArray | None) -> int:
    """Return the number of objects P: points and boxes must agree on it, and one mask may serve all objects."""
    counts = {name: len(part) for name, part in (("point_coords", coords), ("box", boxes)) if part is not None}
    if len(set(counts.values())) > 1:
        raise PromptError(f"point_coords is for {counts['point_coords']} object(s), but box is for {counts['box']}")
    masks = 0 if mask is None else len(mask)
    count = next(iter(counts.values()), masks)
    if count == 0:
        raise PromptError("the prompt is empty: give point_coords, box or mask_input")
    if masks > 1 and masks != count:
        raise PromptError(f"mask_input holds {masks} masks for {count} object(s): give one, or one for each object")
    return count


def _check_inside(name: str, points: FloatArray, size: Size) -> None:
    width, height = size
    outside = (points < 0).any(axis=-1) | (points > np.array([width, height], np.float32)).any(axis=-1)
    if outside.any():
        x, y = points[outside][0]
        raise PromptError(f"{name} ({x:g}, {y:g}) lies outside the image of {width}x{height} pixels")


def _numbers(name: str, value: Any) -> FloatArray:
    try:
        array = np.asarray(value)
        if array.size == 0:  # the dtype of an empty array does not matter
            return np.zeros(array.shape, np.float32)
        if array.dtype.kind not in "biuf":
            raise ValueError
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused below
            array = array.astype(np.float32)
    except (ValueError, TypeError, OverflowError):
        raise PromptError(f"{name} must be an array of numbers") from None
    except RuntimeError as error:  # from PyTorch, for a tensor that requires gradients or is on a GPU
        raise PromptError(f"{name} cannot be read: {first_line(error)}") from None
    if not np.isfinite(array).all():
        raise PromptError(f"{name} holds NaN or infinity: give finite numbers")
    return array
