"""Losses of SAM on low-resolution logits.

Targets are soft: the share of each low-resolution cell that the object covers, so that the outline is learned more
finely than the cell. Sources: Lin et al., "Focal Loss" (2017); Milletari et al., "V-Net" (2016) for dice; weights and
the minimum over the masks from Kirillov et al., "Segment Anything" (2023), appendix A, and Ravi et al., "SAM 2"
(2024), appendix D.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .network import Prediction

FOCAL_WEIGHT = 5.0
"""SAM has 20, which in a short run from scratch teaches `background everywhere` first."""
DICE_WEIGHT = 1.0
OFFSET_WEIGHT = 0.05
MULTIMASK_WEIGHT_LATER = 0.5
"""Weight of the multimasks where a prompt says enough for one mask: more than one click, or a box."""

_ALPHA, _GAMMA = 0.25, 2.0


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """alpha_t |t - p|^gamma BCE(p, t), averaged over (..., H, W); equals the focal loss where t is 0 or 1."""
    probability = logits.sigmoid()
    cross_entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    alpha = _ALPHA * target + (1 - _ALPHA) * (1 - target)
    return (alpha * (target - probability).abs() ** _GAMMA * cross_entropy).mean((-2, -1))


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """1 - (2 sum(pt) + 1) / (sum(p) + sum(t) + 1) over (..., H, W)."""
    probability = logits.sigmoid()
    shared = (probability * target).sum((-2, -1))
    return 1 - (2 * shared + 1) / (probability.sum((-2, -1)) + target.sum((-2, -1)) + 1)


def mask_iou(logits: Tensor, target: Tensor) -> Tensor:
    """IoU of logits > 0 with target > 0.5 over (..., H, W); 1 where both are empty. No gradient."""
    with torch.no_grad():
        found, wanted = logits > 0, target > 0.5
        union = (found | wanted).sum((-2, -1)).float()
        return torch.where(union > 0, (found & wanted).sum((-2, -1)) / union.clamp(min=1), torch.ones_like(union))


def offset_loss(embedding: Tensor) -> Tensor:
    """Mean square of what is the same everywhere in a batch of embeddings (B, C, H, W).

    The trunk ends without a normalisation; a growing offset would drown the picture and the position codes.
    """
    return OFFSET_WEIGHT * (embedding.mean((0, 2, 3)) ** 2).mean()


def prompt_loss(prediction: Prediction, target: Tensor, present: Tensor, ambiguous: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of one decoder call.

    The single mask is always supervised. Of the three multimasks only the best takes gradient (the minimum over the
    masks); their weight is full for an ambiguous prompt. A prompt without an object trains the object score only.

    Args:
        prediction: of P prompts.
        target: (P, H, W) in 0..1.
        present: (P,) 1 where the prompt points at an object, else 0.
        ambiguous: bool (P,), where the prompt is a single click.

    Returns:
        The scalar loss, and the IoU of each mask, (P, 4).
    """
    wanted = target[:, None].expand_as(prediction.logits)
    per_mask = FOCAL_WEIGHT * focal_loss(prediction.logits, wanted) + DICE_WEIGHT * dice_loss(prediction.logits, wanted)
    iou = mask_iou(prediction.logits, wanted)
    weight = torch.where(ambiguous, 1.0, MULTIMASK_WEIGHT_LATER)
    mask_loss = per_mask[:, 0] + weight * per_mask[:, 1:].amin(1)
    score_loss = (prediction.iou - iou).abs().mean(1)
    object_loss = F.binary_cross_entropy_with_logits(prediction.present, present)
    count = present.sum().clamp(min=1)
    return ((mask_loss + score_loss) * present).sum() / count + object_loss, iou
