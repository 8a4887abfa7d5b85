"""What becomes of a decoder's logits: a full-size mask, and the forms in which it is handed on."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ._files import atomic_write
from .drawing import PALETTE, Color, overlay
from .errors import InputError
from .families.base import Family, FloatArray, Size
from .images import ImageSource
from .polygons import Polygon, mask_to_polygons, trace_polygons
from .rle import BoolArray, foreground, mask_to_rle, rle_to_mask

__all__ = [
    "Polygon",
    "Segment",
    "full_size_logits",
    "mask_to_box",
    "mask_to_png",
    "mask_to_polygons",
    "mask_to_rle",
    "overlay",
    "resize_logits",
    "rle_to_mask",
    "trace_polygons",
]

_BLOCK_ROWS = 16
"""Rows that are blended at a time: their operands stay in the cache of the processor, whatever the size."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One object found in an image.

    Args:
        mask: bool (H,W) at the size of the original image.
        score: IoU with the true mask as the model predicts it, about 0..1.
        logits: float32 (h,w) low-resolution logits; hand them to predict() as mask_input to refine the mask. None where
            they were not asked for.
        object_index: which of the P prompts it answers, from 0.
        candidate: which of the model's candidates for that prompt it is, from 0.
    """

    mask: BoolArray
    score: float
    logits: FloatArray | None
    object_index: int = 0
    candidate: int = 0

    @property
    def area(self) -> int:
        """Number of foreground pixels."""
        return int(np.count_nonzero(self.mask))

    @property
    def box(self) -> tuple[int, int, int, int] | None:
        """Tight box, see mask_to_box()."""
        return mask_to_box(self.mask)

    def to_png(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return the mask as PNG, see mask_to_png(), and write it when a path is given; whole or not at all.

        Raises:
            OSError: the file cannot be written; an older one is intact then.
        """
        content = mask_to_png(self.mask)
        if path is not None:
            atomic_write(path, content)
        return content

    def to_rle(self, compressed: bool = True) -> dict[str, Any]:
        """Return the mask as COCO RLE, see mask_to_rle()."""
        return mask_to_rle(self.mask, compressed)

    def to_polygons(self, tolerance: float = 0.5) -> list[list[float]]:
        """Return the mask as COCO polygons, holes filled, see mask_to_polygons().

        Raises:
            MissingDependencyError: contourpy is not installed.
        """
        return mask_to_polygons(self.mask, tolerance)

    def overlay(
        self,
        image: ImageSource,
        color: Color | None = None,
        alpha: float = 0.5,
        outline: bool = True,
    ) -> Image.Image:
        """Return the image with the mask drawn in, see triton_sam.masks.overlay().

        Args:
            image: the picture that was segmented, as the client got it.
            color: red, green, blue in 0..255; None: one for the object_index.
            alpha: opacity of the fill, 0..1.
            outline: draw the border too.
        """
        chosen = color if color is not None else PALETTE[self.object_index % len(PALETTE)]
        return overlay(image, [self.mask], colors=[chosen], alpha=alpha, outline=outline)


def resize_logits(logits: npt.ArrayLike, size: Size) -> FloatArray:
    """Resize logits bilinearly, without antialiasing, as the official predictors do before they cut at 0.

    Equals torch.nn.functional.interpolate(mode="bilinear", align_corners=False): the sample for output position i lies
    at max((i + 0.5) * n_in / n_out - 0.5, 0), between its two neighbours; computed in float32 as there.

    Args:
        logits: [..., h, w], any real type.
        size: width and height of the result, pixels.

    Returns:
        float32 [..., height, width], a new array.

    Raises:
        InputError: fewer than two dimensions, no pixels, or a size below 1.
    """
    source = np.asarray(logits, np.float32)
    width, height = size
    if source.ndim < 2 or 0 in source.shape[-2:]:
        raise InputError(f"logits must be [..., h, w] with h and w above 0, not {source.shape}")
    if width < 1 or height < 1:
        raise InputError(f"cannot resize logits to {width} x {height} pixels")
    result = np.empty((*source.shape[:-2], height, width), np.float32)
    for index in np.ndindex(source.shape[:-2]):
        _resize(source[index], result[index])
    return result


def full_size_logits(logits: npt.ArrayLike, size: Size, family: Family) -> FloatArray:
    """Bring low-resolution logits to the size of the original image, as the family's official predictor does.

    A family that squashes the picture: one resize. One that pads it: up to the model's frame, the padding cut off,
    then to the image (segment_anything.modeling.Sam.postprocess_masks).

    Args:
        logits: [..., h, w] of the decoder.
        size: width and height of the original image, pixels.
        family: the family of the decoder.

    Returns:
        float32 [..., height, width], a new array.
    """
    if not family.keep_aspect:
        return resize_logits(logits, size)
    width, height = family.resized(size)
    frame = resize_logits(logits, (family.image_size, family.image_size))
    return resize_logits(frame[..., :height, :width], size)


def mask_to_box(mask: npt.ArrayLike) -> tuple[int, int, int, int] | None:
    """Return the tight box (x1, y1, x2, y2) of a mask (H,W), None for an empty one.

    In pixel corners: x2 and y2 are one past the last foreground pixel, so that x2 - x1 is the width.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    pixels = foreground(mask)
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    if rows.size == 0:
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def mask_to_png(mask: npt.ArrayLike) -> bytes:
    """Encode a mask (H,W) as 8-bit greyscale PNG: 255 where it is not 0, else 0.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    buffer = io.BytesIO()
    pixels = foreground(mask).astype(np.uint8) * np.uint8(255)
    # Masks are long runs: higher levels take several times as long and save next to nothing.
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def _resize(source: FloatArray, result: FloatArray) -> None:
    """Resize (h,w) into (H,W): first the axis after which less is left to do."""
    height, width = result.shape
    if source.shape[0] > height:
        rows = np.empty((height, source.shape[1]), np.float32)
        _blend_rows(source, rows)
        source = rows
    if source.shape[1] != width:
        columns = np.empty((width, source.shape[0]), np.float32)
        _blend_rows(np.ascontiguousarray(source.T), columns)
        source = np.ascontiguousarray(columns.T)
    _blend_rows(source, result)


def _blend_rows(source: FloatArray, result: FloatArray) -> None:
    """Interpolate rows (n_in,w) to (n_out,w)."""
    if len(source) == len(result):
        np.copyto(result, source)
        return
    lower, upper, weight = _taps(len(source), len(result))
    for start in range(0, len(result), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        # lower + (upper - lower) * weight, in place
        base = source[lower[part]]
        target = np.subtract(source[upper[part]], base, out=result[part])
        target *= weight[part, None]
        target += base


def _taps(n_in: int, n_out: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]:
    """Return for each output position the two input positions and the weight of the second one."""
    scale = np.float32(n_in) / np.float32(n_out)
    position = np.maximum((np.arange(n_out, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), 0)
    lower = np.minimum(position.astype(np.intp), n_in - 1)
    weight: FloatArray = np.clip(position - lower.astype(np.float32), 0, 1)
    return lower, np.minimum(lower + 1, n_in - 1), weight
