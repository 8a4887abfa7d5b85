"""Files that `triton-sam predict` reads besides images: the logits of an earlier call."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from triton_sam.commands._predict_files import read_logits
from triton_sam.errors import PromptError


def saved(path: Path, array: np.ndarray) -> bytes:
    np.save(path, array)
    return path.read_bytes()


def test_logits_are_read_as_float32(tmp_path: Path) -> None:
    saved(tmp_path / "x.npy", np.ones((1, 1, 4, 4), np.float64))
    assert read_logits(tmp_path / "x.npy").dtype == np.float32


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x93NUMPY", b"PK\x03\x04xx"),  # zipfile.BadZipFile
        (b"(1, 1, 4, 4), }", b"(1, 1, 4, (4), "),  # tokenize.TokenError
        (b"(1, 1, 4, 4)", b"(9**9, 9**9)"),
        (b"4, 4), }       ", b"4, 4000000000),}"),  # MemoryError
        (b"\x93NUMPY", b"number"),
    ],
)
def test_a_damaged_file_of_logits_is_one_clear_error(old: bytes, new: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(saved(path, np.ones((1, 1, 4, 4), np.float32)).replace(old, new, 1))
    with pytest.raises(
        PromptError, match=re.escape(f"cannot read the logits in {path}: it is no .npy file of numbers")
    ):
        read_logits(path)


def test_a_missing_file_and_an_archive_are_told(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="No such file or directory"):
        read_logits(tmp_path / "none.npy")
    np.savez(tmp_path / "two.npz", np.ones(3))
    with pytest.raises(PromptError, match="holds no logits"):
        read_logits(tmp_path / "two.npz")
