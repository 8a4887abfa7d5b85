"""Masks made of rectangles."""

from __future__ import annotations

import numpy as np


def mask(*rectangles: tuple[int, int, int, int], size: tuple[int, int] = (20, 30)) -> np.ndarray:
    """Return a bool (H,W) mask that is True inside the rectangles x1,y1,x2,y2."""
    pixels = np.zeros(size, bool)
    for x1, y1, x2, y2 in rectangles:
        pixels[y1:y2, x1:x2] = True
    return pixels
