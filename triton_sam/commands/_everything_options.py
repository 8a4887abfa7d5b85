"""The options of automatic masks, named like the parameters of the official generators."""

from __future__ import annotations

import argparse
from typing import Any

_OPTIONS: tuple[tuple[str, type, str, str], ...] = (
    ("points_per_side", int, "N", "points along one side of the image (official default: 32)"),
    (
        "pred_iou_thresh",
        float,
        "0..1",
        "keep masks with a higher predicted IoU (official default: 0.8, sam1 0.88)",
    ),
    (
        "stability_score_thresh",
        float,
        "0..1",
        "keep masks of at least this stability (official default: 0.95)",
    ),
    ("stability_score_offset", float, "LOGIT", "distance of the thresholds that the stability compares (default: 1)"),
    ("mask_threshold", float, "LOGIT", "logits above it are foreground (default: 0)"),
    ("box_nms_thresh", float, "0..1", "of two masks whose boxes have a higher IoU, drop one (default: 0.7)"),
    ("crop_n_layers", int, "N", "layers of crops in addition to the whole image; layer i has 4^i crops (default: 0)"),
    ("crop_nms_thresh", float, "0..1", "as --box-nms-thresh, for masks of different crops (default: 0.7)"),
    ("crop_overlap_ratio", float, "0..1", "overlap of crops as a fraction of the image (default: 0.341)"),
    ("crop_n_points_downscale_factor", int, "N", "divides the points per side from layer to layer (default: 1)"),
    ("min_mask_region_area", int, "PIXELS", "fill holes and drop parts of fewer pixels of the image (default: 0)"),
)
_SWITCHES = (
    ("use_m2m", True, "--use-m2m", "refine each mask once, with its logits as a prompt"),
    ("multimask_output", False, "--single-mask", "one candidate for each point instead of three"),
)


def add_parameters(parser: argparse.ArgumentParser) -> None:
    """Add the parameters as a group. The defaults are those of the family."""
    group = parser.add_argument_group(
        "automatic masks",
        "The parameters of the official mask generators. --pred-iou-thresh and\n--stability-score-thresh default to "
        "the values exported with the served model, if any.",
    )
    for name, kind, metavar, text in _OPTIONS:
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    for name, value, flag, text in _SWITCHES:
        group.add_argument(flag, dest=name, action="store_const", const=value, help=text)


def parameters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that the caller gave."""
    names = [name for name, *_ in (*_OPTIONS, *_SWITCHES)]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
