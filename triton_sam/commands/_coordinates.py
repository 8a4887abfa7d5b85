"""Points and boxes as options: comma-separated numbers."""

from __future__ import annotations

import argparse


def point(text: str) -> tuple[float, float, int]:
    """Parse ``X,Y`` or ``X,Y,LABEL``; the default label is 1, foreground."""
    values = numbers(text, (2, 3), "X,Y or X,Y,LABEL")
    label = values[2] if len(values) == 3 else 1
    if label not in (0, 1):
        raise argparse.ArgumentTypeError(f"{text!r}: the label must be 1 (foreground) or 0 (background)")
    return values[0], values[1], int(label)


def box(text: str) -> list[float]:
    """Parse ``X1,Y1,X2,Y2``."""
    return numbers(text, (4,), "X1,Y1,X2,Y2")


def numbers(text: str, counts: tuple[int, ...], form: str) -> list[float]:
    """Parse comma-separated numbers. ``form`` describes them in the error about another count."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in counts:
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return values
