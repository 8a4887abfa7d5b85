"""Encodes masks as COCO run-length encoding, compressed or not, byte-identical to pycocotools.

Runs are counted column by column, starting with background. The compressed form stores each count from the fourth on as
the difference from the count two places before. It splits each number into groups of 5 bits, lowest first, and writes
each group as one character: bit 5 is set if more groups follow, and 48 is added to make the character printable.
Reference: cocoapi, common/maskApi.c, rleToString.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_BITS = 5
_SIGN = 0x10
_MORE = 0x20
_OFFSET = 48
_NOISE = 128
"""A mask with one change of value per this many pixels, as from random weights, is not an object."""
_MAX_GROUPS = 12
"""60 bits, enough for any count. The limit prevents shifts beyond 64 bits for damaged input."""


@dataclass(frozen=True)
class Rle:
    """COCO run-length encoding, compressed; ``size`` is height and width."""

    size: list[int]
    counts: str


def foreground(mask: npt.ArrayLike) -> BoolArray:
    """Return bool (H,W), true where a mask is not 0.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    pixels = np.asarray(mask)
    if pixels.ndim != 2:
        raise InputError(f"a mask is an (H,W) array, not {pixels.shape}")
    return pixels if pixels.dtype == np.bool_ else np.asarray(pixels != 0)


def mask_to_rle(mask: npt.ArrayLike, compressed: bool = True) -> dict[str, Any]:
    """Encode a mask as COCO RLE.

    Args:
        mask: (H,W), foreground where not 0.
        compressed: whether counts is a string, as in COCO result files, or a list, as in crowd annotations.

    Returns:
        ``{"size": [H, W], "counts": ...}`` as JSON values. pycocotools accepts both forms.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    pixels = foreground(mask)
    counts = _runs(pixels)
    height, width = pixels.shape
    return {"size": [height, width], "counts": _compress(counts) if compressed else counts.tolist()}


def rle_to_mask(rle: Mapping[str, Any]) -> BoolArray:
    """Decode COCO RLE.

    Args:
        rle: ``{"size": [H, W], "counts": ...}`` with counts as text, bytes or a list.

    Returns:
        bool mask (H,W).

    Raises:
        InputError: the counts are damaged or do not add up to H x W, or there is not enough memory for the pixels.
    """
    height, width, counts = _read(rle)
    values = np.arange(len(counts)) % 2 == 1
    try:
        return np.repeat(values, counts).reshape((height, width), order="F")
    except (MemoryError, ValueError, OverflowError) as error:
        raise InputError(f"a COCO RLE of {height} x {width} pixels: no mask of that size fits into memory") from error


def rle_json_to_mask(content: bytes) -> BoolArray:
    """Decode COCO RLE as JSON, see rle_to_mask()."""
    try:
        return rle_to_mask(json.loads(content))
    except ValueError as error:  # the JSON is invalid
        raise InputError(f"this is not COCO RLE: {error}") from error


def rle_to_box(rle: Mapping[str, Any]) -> tuple[int, int, int, int] | None:
    """Return the tight box of COCO RLE without decoding pixels, see mask_to_box(); None for an empty mask.

    Raises:
        InputError: the counts are damaged, or do not add up to H x W.
    """
    height, _, counts = _read(rle)
    ends = np.cumsum(counts)
    starts, ends = (ends - counts)[1::2], ends[1::2]
    some = ends > starts
    starts, ends = starts[some], ends[some] - 1  # the first and the last pixel of each run
    if not len(starts):
        return None
    is_tall = starts // height != ends // height  # a run that continues in the next column has the first and last row
    top, bottom = np.where(is_tall, 0, starts % height), np.where(is_tall, height - 1, ends % height)
    left, right = starts[0] // height, ends[-1] // height
    return int(left), int(top.min()), int(right) + 1, int(bottom.max()) + 1


def _read(rle: Mapping[str, Any]) -> tuple[int, int, IntArray]:
    """Return height, width and counts of COCO RLE.

    Raises:
        InputError: see rle_to_box().
    """
    try:
        height, width = (int(side) for side in rle["size"])
        text = rle["counts"]
        text = text.encode("ascii") if isinstance(text, str) else text
        counts = _decompress(text) if isinstance(text, bytes) else np.asarray(text, np.int64).reshape(-1)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError('this is not COCO RLE: give {"size": [H, W], "counts": text or list}') from error
    # Python's sum, because a 64-bit sum could overflow, and repeat() would then write beyond its buffer.
    if min(height, width) < 0 or (counts < 0).any() or sum(counts.tolist()) != height * width:
        raise InputError(f"damaged COCO RLE: the counts do not add up to {height} x {width} pixels")
    return height, width, counts


def _runs(pixels: BoolArray) -> IntArray:
    """Return the lengths of the runs. The first run is background, of length 0 if the mask begins with foreground."""
    if pixels.size == 0:
        return np.zeros(0, np.int64)
    height, width = pixels.shape
    changed = pixels[1:] != pixels[:-1]
    if np.count_nonzero(changed) > pixels.size // _NOISE:
        column_order = pixels.ravel(order="F")
        changes = np.flatnonzero(column_order[1:] != column_order[:-1]) + 1
    else:  # sorting few changes is faster than reordering all pixels by column
        row, column = np.divmod(np.flatnonzero(changed), width)
        next_column = np.flatnonzero(pixels[0, 1:] != pixels[-1, :-1]) + 1
        changes = np.sort(np.concatenate((column * height + row + 1, next_column * height)))
    counts = np.diff(changes, prepend=0, append=pixels.size).astype(np.int64)
    return np.concatenate(([0], counts)) if pixels[0, 0] else counts


def _compress(counts: IntArray) -> str:
    values = counts.copy()
    values[3:] -= counts[1:-2]
    magnitude = np.where(values < 0, ~values, values)
    groups = np.ones(len(values), np.intp)  # of 5 bits that each value needs, the sign included
    bits = _BITS - 1
    while (larger := magnitude >= 1 << bits).any():
        groups += larger
        bits += _BITS
    place = np.cumsum(groups) - groups
    characters = np.empty(groups.sum(), np.uint8)
    while len(values):
        more = groups > 1
        characters[place] = (values & (_MORE - 1)) + np.where(more, _MORE, 0) + _OFFSET
        values, place, groups = values[more] >> _BITS, place[more] + 1, groups[more] - 1
    return str(characters.tobytes(), "ascii")


def _decompress(text: bytes) -> IntArray:
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - _OFFSET
    if codes.size == 0:
        return codes
    last = (codes & _MORE) == 0
    if (codes < 0).any() or (codes >= 2 * _MORE).any() or not last[-1]:
        raise ValueError("not a character of compressed RLE")
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _MAX_GROUPS:
        raise ValueError("a count of more than 60 bits")
    place = np.arange(codes.size) - np.repeat(starts, lengths)
    values = np.add.reduceat((codes & (_MORE - 1)) << (_BITS * place), starts)
    values -= np.where(codes[ends] & _SIGN, np.int64(1) << (_BITS * lengths), 0)
    values[1::2] = np.cumsum(values[1::2])  # counts 1, 3, 5, ... and 2, 4, 6, ... are chains of differences
    values[2::2] = np.cumsum(values[2::2])
    return values
