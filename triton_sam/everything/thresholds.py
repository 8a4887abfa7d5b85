"""Thresholds of the search for all objects that fit a model. They travel in the metadata of its ONNX files.

The official thresholds fit official weights. The scores of other weights may be lower or higher: with the official
thresholds, the demo model leaves no object of a photograph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigurationError
from ..repository.folder import is_demo_model, version_folders
from ..repository.onnx_header import read_metadata

METADATA_KEY = "triton_sam.everything"
"""The key of the metadata: a JSON object with any of NAMES."""
NAMES = ("pred_iou_thresh", "stability_score_thresh")
_DEMO_MODEL = {"pred_iou_thresh": 0.35, "stability_score_thresh": 0.6}


def check_thresholds(thresholds: Mapping[str, float]) -> None:
    """Check thresholds."""
    for name, value in thresholds.items():
        if name not in NAMES:
            raise ConfigurationError(f"there is no threshold {name!r}: give {' or '.join(NAMES)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ConfigurationError(f"{name} must be a number within 0..1, not {value!r}")


def thresholds_of(metadata: Mapping[str, str]) -> dict[str, float]:
    """Return the thresholds in the metadata of an ONNX file; an empty dict if the official ones fit."""
    text = metadata.get(METADATA_KEY)
    if text is None:
        return dict(_DEMO_MODEL) if is_demo_model(metadata) else {}
    try:
        thresholds = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{METADATA_KEY}: invalid JSON: {error}") from error
    if not isinstance(thresholds, dict):
        raise ConfigurationError(f"{METADATA_KEY} must be an object, not {text}")
    check_thresholds(thresholds)
    return thresholds


def thresholds_in(folder: Path, filename: str) -> dict[str, float]:
    """Return the thresholds of the newest version in the folder of a model; an empty dict for an alias."""
    versions = version_folders(folder)
    path = versions[-1] / filename if versions else folder / filename
    return thresholds_of(read_metadata(path)) if path.is_file() else {}
