"""The results of comparisons between an accelerator and fp32, stored beside the weights that were compared.

`openvino.json` in the folder of a model is a list with one result for each precision. Triton ignores the file. The
local backend reads it, too (`openvino_session.py`), and cannot import this package.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._common import strict_json
from .._common.files import atomic_write
from ..errors import RepositoryError
from .hashes import sha256_of

RECORD_NAME = "openvino.json"
LIMITS = {"fp32": 0.9999, "bf16": 0.995}
"""Smallest mean IoU of masks, by precision, with which an accelerator may be used."""


@dataclass(frozen=True)
class Comparison:
    """Masks of a model pair whose encoder runs on OpenVINO, beside those of ONNX Runtime in fp32.

    Args:
        precision: precision of OpenVINO's arithmetic, "fp32" or "bf16".
        weights: SHA-256 of the encoder's ONNX file, in hexadecimal digits.
        images: number of images.
        masks: number of masks on all images together.
        mean_iou: mean IoU of the full-size masks, 0..1.
        worst_iou: smallest IoU of two masks, 0..1.
        openvino: version of OpenVINO.
    """

    precision: str
    weights: str
    images: int
    masks: int
    mean_iou: float
    worst_iou: float
    openvino: str

    @property
    def passed(self) -> bool:
        """Whether the mean IoU reaches the limit of the precision. NaN never does."""
        return self.mean_iou >= LIMITS[self.precision]

    def describe(self) -> str:
        """Return one line for people."""
        verdict = "passed" if self.passed else f"below {LIMITS[self.precision]:g}"
        return (
            f"OpenVINO {self.precision}: mask IoU {self.mean_iou:.4f} to fp32 (worst {self.worst_iou:.4f}, "
            f"{self.masks} masks on {self.images} images), {verdict}"
        )


def store_comparison(folder: Path, found: Comparison) -> None:
    """Store a result in the folder of its model, in place of the one of the same precision.

    Raises:
        RepositoryError: the file cannot be written.
    """
    kept = [one for one in _read(folder) if one.precision != found.precision and one.weights == found.weights]
    rows = [{**asdict(one), "passed": one.passed} for one in (*kept, found)]
    try:
        atomic_write(folder / RECORD_NAME, (strict_json.dumps(rows, indent=1) + "\n").encode())
    except OSError as error:
        raise RepositoryError(f"{folder / RECORD_NAME} cannot be written: {error.strerror or error}") from error


def comparisons(folder: Path, file: Path) -> list[Comparison]:
    """Return the stored results for a model's file, and none of those for other weights.

    Args:
        folder: the folder of the model.
        file: its ONNX file.
    """
    found = _read(folder)
    if not found or not file.is_file():
        return []
    digest = sha256_of(file)
    return [one for one in found if one.weights == digest]


def _read(folder: Path) -> list[Comparison]:
    """Return all results; none if the file is missing or damaged, because a comparison can be repeated."""
    try:
        rows = json.loads((folder / RECORD_NAME).read_text("utf-8"))
        not_a_number: Any = math.nan  # JSON has null for it
        plain = [{key: not_a_number if value is None else value for key, value in row.items()} for row in rows]
        found = [Comparison(**{key: value for key, value in row.items() if key != "passed"}) for row in plain]
    except (OSError, ValueError, TypeError, AttributeError):
        return []
    return [one for one in found if one.precision in LIMITS]
