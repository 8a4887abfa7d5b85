"""Label Studio's run-length encoding of brush masks.

The code begins with 32 bits for the number of values, 5 bits for the length of a value minus 1, and four times 4 bits
for the length of a count minus 1. Runs follow. A run is one bit that is 1 if a single value is repeated, two bits that
choose the length of the count, the count minus 1, and the value or values. The last byte is padded with 0. Each pixel
is four equal values, 0 or 255, for red, green, blue and alpha. Reference: decode_rle() in
label_studio_sdk/converter/brush.py, and rle-pack of https://github.com/thi-ng/umbrella.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...families.base import Size
from ...masks.rle import BoolArray

CHANNELS = 4
VALUE_BITS = 8
COUNT_BITS = (4, 8, 12, 16)
"""Lengths of counts: short runs are common at the edges of a mask, long runs in its background."""
LONGEST = 1 << COUNT_BITS[-1]


def encode_brush(mask: BoolArray) -> list[int]:
    """Return a mask (H,W) as bytes of Label Studio's code, each in 0..255."""
    flat = mask.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths = np.diff(np.concatenate(([0], edges, [flat.size]))) * CHANNELS
    head = _bits(flat.size * CHANNELS, 32) + _bits(VALUE_BITS - 1, 5)
    parts = [head, *(_bits(count - 1, 4) for count in COUNT_BITS)]
    value = bool(flat[0])
    for length in lengths.tolist():
        parts.append(_run(length, 255 if value else 0))
        value = not value
    text = "".join(parts)
    text += "0" * (-len(text) % 8)
    return list(np.packbits(np.frombuffer(text.encode(), np.uint8) - ord("0")).tobytes())


def decode_brush(code: Sequence[int], size: Size) -> BoolArray:
    """Return the mask (H,W) of Label Studio's code: the pixels whose alpha is not 0.

    Args:
        code: bytes in 0..255. The sender chooses the lengths of values and counts.
    """
    width, height = size
    bits = _Bits(code)
    total, value_bits = bits.number(32), bits.number(5) + 1
    count_bits = [bits.number(4) + 1 for _ in COUNT_BITS]
    if total != width * height * CHANNELS:
        raise ValueError(f"it has {total} values, but an image of {width} x {height} pixels has {CHANNELS} a pixel")
    if value_bits != VALUE_BITS:
        raise ValueError(f"its values have {value_bits} bits: send {VALUE_BITS}")
    alpha = np.zeros(width * height, bool)
    start = 0
    while start < total:
        is_run = bits.number(1)
        count = bits.number(count_bits[bits.number(2)]) + 1
        end = min(start + count, total)
        first = start // CHANNELS  # the first pixel whose last value, alpha, is in the run
        last = end // CHANNELS
        if is_run:
            alpha[first:last] = bits.number(VALUE_BITS) != 0
        else:
            values = bits.values(count)[: end - start]
            alpha[first:last] = values[first * CHANNELS + CHANNELS - 1 - start :: CHANNELS] != 0
        start = end
    return alpha.reshape(height, width)


class _Bits:
    """Reads numbers from a code, a list of bytes."""

    def __init__(self, code: Sequence[int]) -> None:
        try:
            numbers = np.array(code)
        except ValueError:  # nested lists of different lengths
            numbers = np.empty(0)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or (numbers != numbers.astype(np.uint8)).any():
            raise ValueError("a byte is a whole number in 0..255")
        self._bits = np.unpackbits(numbers.astype(np.uint8))
        self._text = (self._bits + ord("0")).tobytes()
        self._place = 0

    def number(self, count: int) -> int:
        return int(self._text[self._next(count)], 2)

    def values(self, count: int) -> npt.NDArray[np.uint8]:
        return np.packbits(self._bits[self._next(count * VALUE_BITS)])

    def _next(self, count: int) -> slice:
        start = self._place
        self._place += count
        if self._place > len(self._text):
            raise ValueError("it ends too early")
        return slice(start, self._place)


def _run(length: int, value: int) -> str:
    pieces = []
    while length:
        part = min(length, LONGEST)
        place = next(place for place, bits in enumerate(COUNT_BITS) if part <= 1 << bits)
        pieces.append("1" + _bits(place, 2) + _bits(part - 1, COUNT_BITS[place]) + _bits(value, VALUE_BITS))
        length -= part
    return "".join(pieces)


def _bits(number: int, count: int) -> str:
    return f"{number:0{count}b}"
