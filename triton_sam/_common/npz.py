"""Writes NumPy's .npz files, and closes them even if the disk is full."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt


def write_npz(stream: BinaryIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays without compression, as np.savez() does.

    After an error, np.savez() leaves its archive open. Python later tries to complete the file, and reports the error
    of that attempt where no caller can handle it.

    Args:
        arrays: arrays by name, without Python objects.
    """
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.save(entry, array, allow_pickle=False)
