"""Functions that draw the images of pools. Other processes import them, so they are not in a test module."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from triton_sam.errors import ConfigurationError
from triton_sam.train.pools import Arrays


def draw_number(_folder: Path, number: int) -> Arrays:
    """Draw a plain image: uint8 (8, 8, 3)."""
    return {"image": np.full((8, 8, 3), number, np.uint8)}


def end_process(_folder: Path, _number: int) -> Arrays:
    """End the process, as a system without memory does."""
    os._exit(1)


def fail(_folder: Path, _number: int) -> Arrays:
    """Fail as a damaged material does."""
    raise ConfigurationError("x.png cannot be read")
