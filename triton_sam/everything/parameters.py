"""The parameters of a search for all objects, with the names and meanings of the official mask generators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.checks import check_fields, check_names, number, switch
from ..errors import ConfigurationError
from ..families import get_family
from ..masks.cleanup import Cleanup
from ..repository.folder import is_demo_model, version_folders
from ..repository.onnx_header import read_metadata

METADATA_KEY = "triton_sam.everything"
"""The key of the thresholds in the metadata of an ONNX file: a JSON object with any of THRESHOLDS.

The official thresholds fit official weights. The scores of other weights may be lower or higher: with the official
thresholds, the demo model finds no object in a photograph."""
THRESHOLDS = ("pred_iou_thresh", "stability_score_thresh")
_DEMO_MODEL = {"pred_iou_thresh": 0.35, "stability_score_thresh": 0.6}
MAX_POINTS_PER_SIDE = 256
MAX_CROP_LAYERS = 3
_NO_CLEANUP = Cleanup()


def check_thresholds(thresholds: Mapping[str, float]) -> None:
    for name, value in thresholds.items():
        if name not in THRESHOLDS:
            raise ConfigurationError(f"there is no threshold {name!r}: give {' or '.join(THRESHOLDS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ConfigurationError(f"{name} must be a number within 0..1, not {value!r}")


def thresholds_of(metadata: Mapping[str, str]) -> dict[str, float]:
    """Return the thresholds in the metadata of an ONNX file; an empty dict for the official ones."""
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


@dataclass(frozen=True)
class Parameters:
    """The parameters of the official generators, with the defaults of SAM2AutomaticMaskGenerator.

    Args:
        points_per_side: points along each side of the image, 1..256; None with ``point_grids``.
        pred_iou_thresh: masks need a predicted IoU above this, 0..1; 0 turns the filter off.
        stability_score_thresh: minimum stability of a mask, 0..1; 0 turns the filter off.
        stability_score_offset: distance between the two logit thresholds whose masks the stability compares.
        box_nms_thresh: if the boxes of two masks of one crop have an IoU above this, 0..1, one mask is dropped.
        crop_n_layers: layers of crops, 0..3; layer i has (2^i)^2 crops.
        crop_overlap_ratio: overlap of the crops as a fraction of the shorter side, 0 to below 1.
        point_grids: one array (N,2) of points in 0..1 for each layer, instead of ``points_per_side``.
        use_m2m: whether to refine each mask once, with its logits as a prompt.
        multimask_output: whether each point returns all candidates (Family.candidates) instead of the mask for
            clear prompts.
        min_mask_region_area: in the full-size masks, holes with fewer pixels are filled, and parts with fewer pixels
            dropped, as in segment_anything; 0 turns this off.
        cleanup: how each mask is cleaned before the filters. The min_mask_region_area of sam2's generator is
            ``Cleanup(max_hole_area=area, max_sprinkle_area=area)`` here.
        left_open: names of the thresholds that the caller has not given. A session model replaces them by those that
            fit the model, see thresholds_in().
    """

    points_per_side: int | None = number(32, 1, MAX_POINTS_PER_SIDE, whole=True, optional=True)
    pred_iou_thresh: float = number(0.8, 0, 1)
    stability_score_thresh: float = number(0.95, 0, 1)
    stability_score_offset: float = number(1.0, 0)
    mask_threshold: float = number(0.0)
    box_nms_thresh: float = number(0.7, 0, 1)
    crop_n_layers: int = number(0, 0, MAX_CROP_LAYERS, whole=True)
    crop_nms_thresh: float = number(0.7, 0, 1)
    crop_overlap_ratio: float = number(512 / 1500, 0, below=1)
    crop_n_points_downscale_factor: int = number(1, 1, whole=True)
    point_grids: Sequence[npt.NDArray[Any]] | None = None
    use_m2m: bool = switch(False)
    multimask_output: bool = switch(True)
    min_mask_region_area: float = number(0, 0)
    cleanup: Cleanup = _NO_CLEANUP
    left_open: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        check_fields(self, ConfigurationError)
        if not isinstance(self.cleanup, Cleanup):
            raise ConfigurationError(f"cleanup must be a Cleanup, not {self.cleanup!r}")
        if (self.points_per_side is None) == (self.point_grids is None):
            raise ConfigurationError("give exactly one of points_per_side and point_grids")
        if self.cleanup.mask_threshold:
            raise ConfigurationError("a search has the parameter mask_threshold: leave it out of cleanup")
        self._check_grids()

    def _check_grids(self) -> None:
        if self.point_grids is None:
            return
        is_list = isinstance(self.point_grids, (Sequence, np.ndarray)) and getattr(self.point_grids, "ndim", 1) > 0
        if not is_list or not all(map(_is_grid, self.point_grids)):
            raise ConfigurationError("point_grids must hold arrays (N,2) of numbers within 0..1, one for each layer")
        if len(self.point_grids) <= self.crop_n_layers:
            raise ConfigurationError(f"{self.crop_n_layers} layers of crops need {self.crop_n_layers + 1} point_grids")

    def grid(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the points (N,2) of a layer, x and y in 0..1, row by row."""
        if self.point_grids is not None:
            return np.asarray(self.point_grids[layer], np.float64).reshape(-1, 2)
        count = int((self.points_per_side or 0) / self.crop_n_points_downscale_factor**layer)
        if count == 0:
            return np.zeros((0, 2))
        places = np.linspace(1 / (2 * count), 1 - 1 / (2 * count), count)
        grid: npt.NDArray[np.float64] = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)
        return grid


def _is_grid(value: Any) -> bool:
    """Whether a value holds points (N,2) within 0..1. An empty list holds none, as an empty array does."""
    try:
        grid = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return grid.size == 0 or (grid.ndim == 2 and grid.shape[1] == 2 and bool(((grid >= 0) & (grid <= 1)).all()))


def parameters_of(family: str, given: Mapping[str, Any]) -> Parameters:
    """Return parameters with the defaults of the family's official generator, or of SAM2's if it has none."""
    names = [each.name for each in fields(Parameters) if each.name != "left_open"]
    check_names(given, names, ConfigurationError)
    try:
        defaults = {"pred_iou_thresh": get_family(family).pred_iou_thresh}
        parameters = Parameters(**{**defaults, **given}, left_open=frozenset(THRESHOLDS) - given.keys())
    except TypeError as error:
        raise ConfigurationError(f"a parameter has a wrong type: {error}") from None
    if parameters.use_m2m and not get_family(family).takes_mask:
        raise ConfigurationError(f"{family} takes no mask as a prompt, so it cannot refine masks: leave out use_m2m")
    return parameters
