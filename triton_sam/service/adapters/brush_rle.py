"""Label Studio's run-length encoding of brush masks.

The bits of a code are: 32 of the number of values, 5 of the length of a value less 1, four times 4 of the length of a
count less 1, and then runs. A run is one bit that is 1 if a single value is repeated, two bits that choose the length
of the count, the count less 1, and the value. The last byte is filled with 0. Each pixel is four equal values, red,
green, blue and alpha: 0 or 255. Reference: decode_rle() in label_studio_sdk/converter/brush.py, and rle-pack of
https://github.com/thi-ng/umbrella.
"""

from __future__ import annotations

import numpy as np

from ...masks.rle import BoolArray

CHANNELS = 4
VALUE_BITS = 8
COUNT_BITS = (4, 8, 12, 16)
"""Lengths of counts: short runs are frequent at the edges of a mask, long ones in its background."""
LONGEST = 1 << COUNT_BITS[-1]


def encode_brush(mask: BoolArray) -> list[int]:
    """Return a mask (H,W) as the bytes of Label Studio's code, in 0..255."""
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
