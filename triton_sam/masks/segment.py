"""A full-size mask with its score and logits, and the methods that encode it."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from .._common.files import atomic_write
from ..families.base import FloatArray
from ..inputs.images import ImageSource
from .detections import to_supervision
from .drawing import PALETTE, Color, crop, cutout, overlay
from .formats import TOLERANCE, find_format
from .polygons import mask_to_polygons
from .rle import BoolArray, foreground, mask_to_rle


@dataclass(frozen=True, eq=False)
class Segment:
    """One object found in an image.

    Args:
        mask: bool (H,W) at the size of the original image.
        score: the IoU with the true mask that the model predicts, about 0..1.
        logits: float32 (h,w) low-resolution logits; pass them to predict() as mask_input to refine the mask. None if
            they were not requested.
        object_index: index of the prompt, 0..P-1.
        candidate: index of the candidate for that prompt, from 0.
        label: the text that found the object; empty if none did.
    """

    mask: BoolArray
    score: float
    logits: FloatArray | None
    object_index: int = 0
    candidate: int = 0
    label: str = field(default="", kw_only=True)

    def __repr__(self) -> str:
        height, width = self.mask.shape
        return f"{type(self).__name__}({width}x{height}, {self.area} px, box={self.box}, score={self.score:.2f})"

    @property
    def area(self) -> int:
        """Number of foreground pixels."""
        return int(np.count_nonzero(self.mask))

    @property
    def box(self) -> tuple[int, int, int, int] | None:
        """Tight box, see mask_to_box()."""
        return mask_to_box(self.mask)

    def encode(self, form: str, tolerance: float = TOLERANCE) -> bytes:
        """Return the mask as the content of a file, in any format of triton_sam.masks.formats.FORMATS.

        Args:
            form: name of the format: "rle", "polygons", "geojson" or "png".
            tolerance: maximum distance, in pixels, between a polygon and the exact outline.

        Raises:
            InputError: there is no such format.
            MissingDependencyError: a polygon format, and contourpy is not installed.
        """
        return find_format(form, "client").to_bytes(self, tolerance)

    def to_png(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return the mask as PNG, see mask_to_png(). With a path, also write the file, either completely or not at all.

        Raises:
            OSError: the file cannot be written; an existing file stays intact.
        """
        content = mask_to_png(self.mask)
        if path is not None:
            atomic_write(path, content)
        return content

    def to_rle(self, compressed: bool = True) -> dict[str, Any]:
        """Return the mask as COCO RLE, see mask_to_rle()."""
        return mask_to_rle(self.mask, compressed)

    def to_polygons(self, tolerance: float = TOLERANCE) -> list[list[float]]:
        """Return the mask as COCO polygons with filled holes, see mask_to_polygons().

        Raises:
            MissingDependencyError: contourpy is not installed.
        """
        return mask_to_polygons(self.mask, tolerance)

    def to_pycocotools(self) -> dict[str, Any]:
        """Return the mask as the functions of pycocotools.mask take it: compressed RLE whose ``counts`` are bytes."""
        rle = self.to_rle()
        return {**rle, "counts": rle["counts"].encode()}

    def to_supervision(self) -> Any:
        """Return the mask as supervision.Detections, see triton_sam.masks.to_supervision().

        Raises:
            MissingDependencyError: supervision is not installed.
        """
        return to_supervision([self])

    def cutout(self, image: ImageSource) -> Image.Image:
        """Return the object alone, RGBA in the size of its box, see triton_sam.masks.cutout().

        Args:
            image: the image that was segmented, in any form that the client accepts.

        Raises:
            ImageError: the image cannot be used.
            InputError: the image has another size than the mask, or the mask is empty.
        """
        return cutout(image, self.mask)

    def crop(self, image: ImageSource, margin: int = 0) -> Image.Image:
        """Return the part of an image that holds the object, with everything around it, as RGB.

        Args:
            image: the image that was segmented, in any form that the client accepts.
            margin: pixels to keep around the box, as far as the image reaches.

        Raises:
            ImageError: the image cannot be used.
            InputError: the image has another size than the mask, the mask is empty, or the margin is negative.
        """
        return crop(image, self.mask, margin)

    def _repr_png_(self) -> bytes:
        """Return the mask as PNG, which notebooks show."""
        return self.to_png()

    def overlay(
        self,
        image: ImageSource,
        color: Color | None = None,
        alpha: float = 0.5,
        outline: bool = True,
    ) -> Image.Image:
        """Return the image with the mask drawn in, see triton_sam.masks.overlay().

        Args:
            image: the image that was segmented, in any form that the client accepts.
            color: red, green, blue in 0..255. None: a colour of PALETTE, chosen by object_index.
            alpha: opacity of the fill, 0..1.
            outline: whether to draw the border, too.
        """
        chosen = color if color is not None else PALETTE[self.object_index % len(PALETTE)]
        return overlay(image, [self.mask], colors=[chosen], alpha=alpha, outline=outline)


def mask_to_box(mask: npt.ArrayLike) -> tuple[int, int, int, int] | None:
    """Return the tight box (x1, y1, x2, y2) of a mask (H,W), None for an empty one.

    Coordinates are corners of pixels: x2 and y2 are one past the last foreground pixel, so that x2 - x1 is the width.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    pixels = foreground(mask)
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    if rows.size == 0:
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def mask_to_png(mask: npt.ArrayLike) -> bytes:
    """Encode a mask (H,W) as 8-bit greyscale PNG. Pixels are 255 where the mask is not 0, else 0.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    buffer = io.BytesIO()
    pixels = foreground(mask).astype(np.uint8) * np.uint8(255)
    # Masks consist of long runs, so higher levels save almost nothing and take several times as long.
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()
