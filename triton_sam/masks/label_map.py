"""PNG files of masks, and label maps of many objects, in which each pixel is the number of one object."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import InputError
from ..families.base import Size
from .rle import BoolArray, foreground

LabelMap = npt.NDArray[np.uint16]
"""uint16 (H,W): 0 for background, else the number of the object, from 1."""
MAX_OBJECTS = 65535
_PALETTE_SIZE = 256
_RUNS = zlib.Z_RLE
"""For the long runs of masks, this strategy is as fast as low levels, with smaller files than high levels."""


def size_of_masks(shapes: Iterable[tuple[int, ...]]) -> Size:
    """Return the common size of the masks of a label map, width and height.

    Args:
        shapes: height and width of each mask.

    Raises:
        InputError: no masks, or the masks differ in size.
    """
    found = set(shapes)
    if len(found) != 1:
        sizes = ", ".join(f"{width} x {height}" for height, width in sorted(found)) or "no mask"
        raise InputError(f"a label map needs masks of one size, not {sizes}")
    height, width = found.pop()
    return width, height


def label_map_of(masks: Sequence[BoolArray]) -> LabelMap:
    """Merge masks, which may overlap, so that each pixel belongs to at most one object, the smallest.

    The parts of an object thus stay visible. Of masks with equal areas, the first one wins.

    Args:
        masks: bool (H,W), at least one, all of one size. Mask i is object i + 1.

    Raises:
        InputError: no masks, more than 65535, or the masks differ in size.
    """
    size = size_of_masks(mask.shape for mask in masks)
    return label_map_by_area(size, [int(np.count_nonzero(mask)) for mask in masks], masks.__getitem__)


def label_map_by_area(size: Size, areas: Sequence[int], mask_of: Callable[[int], BoolArray]) -> LabelMap:
    """Merge masks like label_map_of(), with one in memory at a time.

    Args:
        size: width and height, pixels.
        areas: number of foreground pixels of each mask.
        mask_of: returns the bool mask (H,W) of an index.

    Raises:
        InputError: more than 65535 masks.
    """
    if len(areas) > MAX_OBJECTS:
        raise InputError(f"a label map holds {MAX_OBJECTS} objects, not {len(areas)}: filter the masks first")
    labels = np.zeros(size[::-1], np.uint16)
    for index in sorted(range(len(areas)), key=lambda index: (areas[index], index), reverse=True):
        labels[mask_of(index)] = index + 1
    return labels


def numbered_png(masks: Sequence[BoolArray], numbers: Sequence[int]) -> bytes:
    """Encode masks, which may overlap, as one PNG.

    Args:
        masks: bool (H,W), all of one size; small ones win over large ones.
        numbers: the value of each mask, from 1. The file has 8 bits for numbers up to 255, and 16 bits for higher ones;
            a single mask has the value 255.

    Raises:
        InputError: no masks, so that the size of the file is unknown; or a number exceeds 65535.
    """
    if not masks:
        raise InputError("there is no object, so there is no label image of them: request another format")
    if len(masks) == 1:
        return mask_to_png(masks[0])
    if max(numbers) > MAX_OBJECTS:
        raise InputError(f"a label image holds {MAX_OBJECTS} objects, not {max(numbers)}: filter the masks first")
    values = np.array([0, *numbers], np.uint8 if max(numbers) < _PALETTE_SIZE else np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(values[label_map_of(masks)]).save(buffer, "PNG", compress_type=_RUNS)
    return buffer.getvalue()


def mask_to_png(mask: npt.ArrayLike) -> bytes:
    """Encode a mask (H,W) as 8-bit greyscale PNG. Pixels are 255 where the mask is not 0, else 0.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    buffer = io.BytesIO()
    pixels = foreground(mask).astype(np.uint8) * np.uint8(255)
    Image.fromarray(pixels).save(buffer, format="PNG", compress_type=_RUNS)
    return buffer.getvalue()


def label_map_png(labels: LabelMap | npt.NDArray[np.uint8], *, palette: bool = True) -> bytes:
    """Encode a label map as PNG, of 8 bits for up to 255 objects, else of 16 bits.

    Args:
        palette: give the 8 bits DAVIS's palette. Pillow still reads the numbers of the objects, but OpenCV and
            scikit-image read colours.
    """
    has_few = labels.max(initial=0) < _PALETTE_SIZE
    image = Image.fromarray(labels.astype(np.uint8) if has_few else labels)
    if palette and has_few:
        image.putpalette(davis_palette())  # the same bytes become palette indices
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def davis_palette() -> bytes:
    """Return the 256 colours of the palette as 768 bytes, red, green, blue.

    The colour of a number follows from its bits, as in the data sets PASCAL VOC and DAVIS: bits 0, 1 and 2 become the
    highest bits of red, green and blue, bits 3, 4 and 5 the second highest, and so on.
    """
    numbers = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        channel, place = bit % 3, 7 - bit // 3
        colors[:, channel] |= (((numbers >> bit) & 1) << place).astype(np.uint8)
    return colors.tobytes()
