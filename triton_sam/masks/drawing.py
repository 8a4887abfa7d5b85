"""Draws masks, points and boxes into an image, antialiased and readable at any image size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from ..errors import InputError
from ..inputs.images import ImageSource, open_image
from .boxes import Box, mask_to_box
from .label_map import LabelMap, label_map_of
from .rle import BoolArray

Color = tuple[int, int, int]
"""Red, green, blue in 0..255."""

PALETTE: tuple[Color, ...] = (
    (30, 144, 255),
    (255, 149, 0),
    (175, 82, 222),
    (0, 199, 190),
    (255, 214, 10),
    (255, 55, 130),
    (124, 205, 50),
    (94, 92, 230),
)
"""Colours of the objects, used in turn. They are vivid and differ from the green and red of the markers."""

FOREGROUND: Color = (40, 180, 80)
BACKGROUND: Color = (225, 50, 55)
_WHITE: Color = (255, 255, 255)
_BLACK: Color = (0, 0, 0)
_FILL = np.uint8(115)
"""Opacity of the fill of overlay_objects(), 0..255."""
_SUPERSAMPLING = 4


def overlay(
    image: ImageSource,
    masks: Sequence[npt.ArrayLike],
    points: Any = None,
    labels: Any = None,
    boxes: Any = None,
    *,
    colors: Sequence[Color] | None = None,
    alpha: float = 0.5,
    outline: bool = True,
) -> Image.Image:
    """Draw masks, clicks and boxes into a copy of an image.

    Args:
        image: the image in any form that the client accepts. It is rotated by its EXIF orientation and drawn in 8 bits.
        masks: arrays (H,W), foreground where not 0. The last mask is on top.
        points: (N,2) or (P,N,2) x, y in pixels. Foreground is a green disc with a plus, background a red one with a
            minus.
        labels: (N,) or (P,N): 1 foreground, 0 background; points with other labels are not drawn. None: all foreground.
        boxes: (4,) or (P,4) as x1,y1,x2,y2 in pixels. Each has the colour of the mask with the same index.
        colors: colours of the masks, used in turn. None: PALETTE.
        alpha: opacity of the fill, 0..1.
        outline: whether to draw the border of the masks, an opaque line with a white line around it.

    Returns:
        RGB image of the same size. Lines and markers scale with the image.

    Raises:
        ImageError: the image cannot be opened.
        InputError: a mask and the image differ in size, points or boxes have a wrong shape or contain NaN or infinity,
            or alpha is outside 0..1.
    """
    canvas = open_image(image)  # always a copy: the caller's image is unchanged
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha must be within 0..1, not {alpha}")
    chosen = PALETTE if colors is None or not len(colors) else [(int(r), int(g), int(b)) for r, g, b in colors]
    width = max(1.5, max(canvas.size) / 600)
    for index, mask in enumerate(masks):
        _draw_mask(canvas, mask, chosen[index % len(chosen)], alpha, width if outline else 0)
    for index, box in enumerate(_nearby(_rows(boxes, 4, "boxes"), canvas)):
        _draw_box(canvas, box, chosen[index % len(chosen)], round(width))
    _draw_points(canvas, points, labels)
    return canvas


def cutout(image: ImageSource, mask: npt.ArrayLike) -> Image.Image:
    """Cut an object out of an image.

    Args:
        image: the image in any form that the client accepts. It is rotated by its EXIF orientation and has 8 bits.
        mask: array (H,W), foreground where not 0.

    Returns:
        RGBA image in the size of the object's box; pixels outside the mask are transparent.

    Raises:
        ImageError: the image cannot be used.
        InputError: the mask has another size than the image, or no foreground.
    """
    picture, inside, box = _object_in(image, mask)
    cut = picture.convert("RGBA")
    cut.putalpha(Image.fromarray(inside.astype(np.uint8) * 255))
    return Image.composite(cut, Image.new("RGBA", cut.size), cut.getchannel("A")).crop(box)


def crop(image: ImageSource, mask: npt.ArrayLike, margin: int = 0) -> Image.Image:
    """Return the part of an image around an object, with the background.

    Args:
        image: see cutout().
        mask: array (H,W), foreground where not 0.
        margin: pixels to keep around the object's box, clipped to the image.

    Returns:
        RGB image in the size of the box and its margin.

    Raises:
        ImageError: the image cannot be used.
        InputError: the mask has another size than the image, or no foreground; or the margin is negative.
    """
    if margin < 0:
        raise InputError(f"margin must be at least 0, not {margin}")
    picture, _, (x1, y1, x2, y2) = _object_in(image, mask)
    return picture.crop(
        (max(0, x1 - margin), max(0, y1 - margin), min(picture.width, x2 + margin), min(picture.height, y2 + margin))
    )


def _object_in(image: ImageSource, mask: npt.ArrayLike) -> tuple[Image.Image, BoolArray, Box]:
    """Return the opened image, the mask as bool, and the mask's box."""
    picture, inside = open_image(image), np.asarray(mask) != 0
    if inside.shape != (picture.height, picture.width):
        raise InputError(f"the mask has the shape {inside.shape}, but the image {(picture.height, picture.width)}")
    box = mask_to_box(inside)
    if box is None:
        raise InputError("the mask is empty: there is no object in it")
    return picture, inside, box


def overlay_objects(image: ImageSource, masks: Sequence[BoolArray]) -> Image.Image:
    """Draw all objects of an image, with their borders, into a copy. Neighbours differ in colour.

    Args:
        image: see overlay().
        masks: bool (H,W), which may overlap: only the smallest one is drawn there.

    Returns:
        RGB image of the same size.

    Raises:
        ImageError: the image cannot be opened.
        InputError: a mask and the image differ in size.
    """
    canvas = open_image(image)
    if not masks:
        return canvas
    labels = label_map_of(masks)
    if labels.shape != (canvas.height, canvas.width):
        raise InputError(
            f"the masks have shape {labels.shape}, but the image has (H,W) {(canvas.height, canvas.width)}"
        )
    colors = _distinct_colors(labels, len(masks))
    fill = Image.fromarray(np.array([_BLACK, *colors], np.uint8)[labels])
    canvas.paste(fill, mask=Image.fromarray((labels > 0) * _FILL))
    width = max(1.0, max(canvas.size) / 1000)
    for number, color in enumerate(colors, 1):
        _draw_mask(canvas, labels == number, color, 0, width)
    return canvas


def _distinct_colors(labels: LabelMap, count: int) -> list[Color]:
    """Choose a colour of PALETTE for each object, different from its neighbours' colours if possible.

    The colours are used in turn, so that all of them appear.
    """
    neighbours: dict[int, set[int]] = {}
    for one, other in ((labels[1:], labels[:-1]), (labels[:, 1:], labels[:, :-1])):
        touches = (one != other) & (one > 0) & (other > 0)
        for a, b in np.unique(np.stack([one[touches], other[touches]], axis=1), axis=0).tolist():
            neighbours.setdefault(a, set()).add(b)
            neighbours.setdefault(b, set()).add(a)
    chosen: dict[int, int] = {}
    for number in range(1, count + 1):
        taken = {chosen[other] for other in neighbours.get(number, ()) if other in chosen}
        turns = [(number - 1 + step) % len(PALETTE) for step in range(len(PALETTE))]
        chosen[number] = next((index for index in turns if index not in taken), turns[0])
    return [PALETTE[chosen[number]] for number in range(1, count + 1)]


def _draw_mask(canvas: Image.Image, mask: npt.ArrayLike, color: Color, alpha: float, width: float) -> None:
    pixels = np.asarray(mask) != 0
    if pixels.shape != (canvas.height, canvas.width):
        raise InputError(f"the mask has shape {pixels.shape}, but the image has (H,W) {(canvas.height, canvas.width)}")
    stencil = Image.fromarray(pixels.astype(np.uint8) * np.uint8(255))
    inner = stencil.getbbox()
    if inner is None:
        return
    margin = math.ceil(4 * width)
    region = (
        max(inner[0] - margin, 0),
        max(inner[1] - margin, 0),
        min(inner[2] + margin, canvas.width),
        min(inner[3] + margin, canvas.height),
    )
    stencil = stencil.crop(region)
    canvas.paste(color, region, stencil.point([round(value * alpha) for value in range(256)]))
    if width > 0:
        sigma = width
        blurred = stencil.filter(ImageFilter.GaussianBlur(sigma))
        canvas.paste(_WHITE, region, blurred.point(_band(sigma, -1.0 * width, 0.2)))
        canvas.paste(color, region, blurred.point(_band(sigma, -0.2 * width, width)))


def _band(sigma: float, low: float, high: float) -> list[int]:
    """Return the opacity for each of the 256 grey values of a blurred mask.

    The opacity is 255 where the distance from the border is ``low``..``high`` pixels; the inside is positive.

    A straight border blurred by a Gaussian of width sigma has the grey value 255 * Phi(distance / sigma), which
    this function inverts. Both ends of the band fade over one pixel, so that the line is smooth.
    """
    from statistics import NormalDist  # here, for a faster `import triton_sam`

    quantile = NormalDist().inv_cdf
    opacities = []
    for value in range(256):
        distance = sigma * quantile((value + 0.5) / 256)
        coverage = min(distance - low, high - distance) + 0.5
        opacities.append(round(255 * min(max(coverage, 0.0), 1.0)))
    return opacities


def _draw_box(canvas: Image.Image, box: npt.NDArray[np.float64], color: Color, width: int) -> None:
    """Draw a coloured box inside a thin white box."""
    draw = ImageDraw.Draw(canvas)
    x1, y1, x2, y2 = (round(float(value)) for value in (*np.minimum(box[:2], box[2:]), *np.maximum(box[:2], box[2:])))
    casing = max(1, width // 2)
    draw.rectangle((x1 - casing, y1 - casing, x2 + casing, y2 + casing), outline=_WHITE, width=width + 2 * casing)
    draw.rectangle((x1, y1, x2, y2), outline=color, width=width)


def _draw_points(canvas: Image.Image, points: Any, labels: Any) -> None:
    coords = _nearby(_rows(points, 2, "points"), canvas)
    marks = np.ones(len(coords)) if labels is None else _rows(labels, 1, "labels")[:, 0]
    if len(marks) != len(coords):
        raise InputError(f"{len(coords)} points need as many labels, not {len(marks)}")
    radius = max(5.0, max(canvas.size) / 110)
    for label, color in ((0, BACKGROUND), (1, FOREGROUND)):
        marker = _marker(color, radius, plus=label == 1)
        for x, y in coords[marks == label]:
            corner = (round(float(x) - marker.width / 2), round(float(y) - marker.height / 2))
            canvas.paste(marker, corner, marker)


def _marker(color: Color, radius: float, *, plus: bool) -> Image.Image:
    """Draw a disc with a white rim and a shadow. A plus or a minus helps people with red-green colour blindness."""
    side = 2 * math.ceil(radius * 1.2)
    scale = _SUPERSAMPLING
    large = Image.new("RGBA", (side * scale, side * scale), (*_BLACK, 0))
    draw = ImageDraw.Draw(large)
    middle = side * scale / 2
    for size, fill in ((1.12, (*_BLACK, 110)), (1.0, (*_WHITE, 255)), (0.76, (*color, 255))):
        reach = radius * scale * size
        draw.ellipse((middle - reach, middle - reach, middle + reach, middle + reach), fill=fill)
    arm, half = radius * scale * 0.42, radius * scale * 0.1
    draw.rectangle((middle - arm, middle - half, middle + arm, middle + half), fill=_WHITE)
    if plus:
        draw.rectangle((middle - half, middle - arm, middle + half, middle + arm), fill=_WHITE)
    return large.resize((side, side), Image.Resampling.BOX)


def _rows(values: Any, columns: int, name: str) -> npt.NDArray[np.float64]:
    """Flatten nested points or boxes to a float64 array (N,columns)."""
    if values is None:
        return np.zeros((0, columns))
    try:
        rows = np.asarray(values, np.float64).reshape(-1, columns)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} must be numbers of shape (..., {columns})") from error
    if not np.isfinite(rows).all():
        raise InputError(f"{name} hold NaN or infinity")
    return rows


def _nearby(coords: npt.NDArray[np.float64], canvas: Image.Image) -> npt.NDArray[np.float64]:
    """Clip coordinates far outside of the image to an invisible range that does not overflow in Pillow."""
    side = max(*canvas.size, 64)
    return np.clip(coords, -side, 2 * side)
