"""Simulated prompts as tensor operations: clicks and boxes for thousands of regions per second on a GPU.

Coordinates are x and y in pixels of the frame.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

CELL = 4
"""Input pixels for each cell of the low-resolution masks, along one axis."""

_CENTRE_SHARE = 0.5  # share of clicks at the centre of a region; the others are anywhere inside it
_JITTER = 0.05  # standard deviation of a corner as a share of the box's side (SAM: 10 %, at most 20 of 1024 pixels)
_STEADY_SHARE = 0.3  # boxes without jitter
_LIMIT = 20 / 1024  # largest movement of a corner, as a share of the frame
_DEPTHS = 48  # maximum distance from the outline, in cells


def click_inside(regions: Tensor, side: int) -> Tensor:
    """Click into regions: the innermost cell or a random one, and a random pixel in it.

    Args:
        regions: bool (P, h, w).

    Returns:
        float32 (P, 2); undefined for empty regions.
    """
    count, height, width = regions.shape
    noise = torch.rand((count, height, width), device=regions.device)
    depth = _depths(regions)
    central = torch.rand(count, device=regions.device) < _CENTRE_SHARE
    worth = torch.where(central[:, None, None], depth + noise, 1 + noise) * regions
    place = worth.flatten(1).argmax(1)
    cell = side / width
    inside = torch.rand((count, 2), device=regions.device).mul(cell).floor()
    return torch.stack([place % width, torch.div(place, width, rounding_mode="floor")], 1) * cell + inside


def _depths(regions: Tensor) -> Tensor:
    """Return the distance of each cell of a region from the outside, up to `_DEPTHS` cells, (P, h, w)."""
    left = F.pad(regions.float(), (1, 1, 1, 1))[:, None]
    depth = torch.zeros_like(left)
    for _ in range(_DEPTHS):
        depth += left
        left = -F.max_pool2d(-left, 3, stride=1, padding=1)
    return depth[:, 0, 1:-1, 1:-1]


def shaken_boxes(regions: Tensor, side: int) -> Tensor:
    """Return inaccurate boxes of regions.

    Args:
        regions: bool (P, h, w), not empty.

    Returns:
        float32 (P, 2, 2), the top left and the bottom right corners.
    """
    cell = side / regions.shape[-1]
    edges = []
    for axis in (1, 2):  # reducing the rows leaves the columns
        line = regions.any(axis).float()
        length = line.shape[1]
        edges.append((line.argmax(1), length - line.flip(1).argmax(1)))
    corners = torch.stack([torch.stack(edge, 1) for edge in edges], 2).float() * cell
    lengths = (corners[:, 1] - corners[:, 0])[:, None]
    shake = (torch.randn_like(corners) * _JITTER * lengths).clamp(-_LIMIT * side, _LIMIT * side)
    shake *= torch.rand((len(corners), 1, 1), device=corners.device) >= _STEADY_SHARE
    return (corners + shake).clamp(0, side)


def correction_clicks(masks: Tensor, targets: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Click into the error of each mask, as in the training of SAM (Kirillov et al., 2023, appendix A).

    Args:
        masks: bool (P, h, w), the current masks.
        targets: bool (P, h, w), the true masks.

    Returns:
        float32 points (P, 2) and float32 labels (P,). Masks without errors get another click inside the object.
    """
    missing, surplus = targets & ~masks, masks & ~targets
    lacking, excess = (error.flatten(1).sum(1) for error in (missing, surplus))
    wrong = lacking + excess
    positive = (lacking > torch.rand(len(masks), device=masks.device) * wrong) | (wrong == 0)
    region = torch.where((wrong == 0)[:, None, None], targets, torch.where(positive[:, None, None], missing, surplus))
    return click_inside(region, side), positive.float()
