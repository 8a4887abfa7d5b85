"""The losses of SAM, computed on low-resolution logits.

Targets are soft: each is the share of a low-resolution cell that the object covers, so that the model learns outlines
with subcell precision. Sources: Lin et al., "Focal Loss" (2017); Milletari et al., "V-Net" (2016) for the dice loss;
Kirillov et al., "Segment Anything" (2023), appendix A, and Ravi et al., "SAM 2" (2024), appendix D, for the weights and
for the minimum over the masks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tools.demo_model.network import Prediction

FOCAL_WEIGHT = 5.0
"""SAM uses 20. In a short run from scratch, the model would first learn to predict background everywhere."""
DICE_WEIGHT = 1.0
OFFSET_WEIGHT = 0.05
MULTIMASK_WEIGHT_LATER = 0.5
"""Weight of the multimasks for an unambiguous prompt: several clicks, or a box."""

_ALPHA, _GAMMA = 0.25, 2.0


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return alpha_t |t - p|^gamma BCE(p, t), averaged over the last two axes of (..., H, W).

    For hard targets (0 or 1) this equals the focal loss of Lin et al.
    """
    probability = logits.sigmoid()
    cross_entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    alpha = _ALPHA * target + (1 - _ALPHA) * (1 - target)
    return (alpha * (target - probability).abs() ** _GAMMA * cross_entropy).mean((-2, -1))


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return 1 - (2 sum(pt) + 1) / (sum(p) + sum(t) + 1), with sums over the last two axes of (..., H, W)."""
    probability = logits.sigmoid()
    shared = (probability * target).sum((-2, -1))
    return 1 - (2 * shared + 1) / (probability.sum((-2, -1)) + target.sum((-2, -1)) + 1)


def mask_costs(logits: Tensor, target: Tensor) -> Tensor:
    """Return the weighted sum of focal and dice loss over the last two axes of (..., H, W)."""
    return FOCAL_WEIGHT * focal_loss(logits, target) + DICE_WEIGHT * dice_loss(logits, target)


def mask_iou(logits: Tensor, target: Tensor) -> Tensor:
    """Return the IoU of logits > 0 and target > 0.5 over the last two axes of (..., H, W), without a gradient.

    The IoU of two empty masks is 1.
    """
    with torch.no_grad():
        predicted, expected = logits > 0, target > 0.5
        union = (predicted | expected).sum((-2, -1)).float()
        return torch.where(union > 0, (predicted & expected).sum((-2, -1)) / union.clamp(min=1), torch.ones_like(union))


def offset_loss(embedding: Tensor) -> Tensor:
    """Return the weighted mean square of the offset: the mean of each channel of embeddings (B, C, H, W).

    The trunk has no final normalisation, so a growing offset would hide the image and the position codes.
    """
    return OFFSET_WEIGHT * (embedding.mean((0, 2, 3)) ** 2).mean()


def prompt_loss(
    prediction: Prediction, target: Tensor, present: Tensor, ambiguous: Tensor, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss of one decoder call.

    The single mask is always trained. Of the three multimasks, only the one with the smallest loss gets a gradient,
    with full weight if the prompt is ambiguous. A prompt without an object trains only the object score.

    Args:
        target: (P, H, W), the share of each cell that the object covers, 0..1; or (P, 4, H, W), one for each mask.
        present: (P,), 1 if the prompt points at an object, else 0.
        ambiguous: bool (P,), True if the prompt is a single click.
        known: (P,), 0 for an ignored prompt, else 1; None: all count.

    Returns:
        The loss, a scalar, and the IoU of each mask, (P, 4).
    """
    targets = (target if target.ndim == 4 else target[:, None]).expand_as(prediction.logits)
    known = torch.ones_like(present) if known is None else known
    per_mask = mask_costs(prediction.logits, targets)
    iou = mask_iou(prediction.logits, targets)
    weight = torch.where(ambiguous, 1.0, MULTIMASK_WEIGHT_LATER)
    mask_loss = per_mask[:, 0] + weight * per_mask[:, 1:].amin(1)
    score_loss = (prediction.iou - iou).abs().mean(1)
    object_loss = F.binary_cross_entropy_with_logits(prediction.present, present, known, reduction="sum")
    counted = present * known
    loss = ((mask_loss + score_loss) * counted).sum() / counted.sum().clamp(min=1)
    return loss + object_loss / known.sum().clamp(min=1), iou
