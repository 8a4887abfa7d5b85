"""Simulated prompts, their targets, and the losses of SAM on low-resolution logits.

Prompts are tensor operations: clicks and boxes for thousands of regions per second on a GPU. Their coordinates are x
and y in pixels of the frame. Targets are the teacher's masks of photographs and the regions of scenes. They are soft:
each is the share of a low-resolution cell that the object covers, so that the model learns outlines with subcell
precision. Sources of the losses: Lin et al., "Focal Loss" (2017); Milletari et al., "V-Net" (2016) for the dice loss;
Kirillov et al., "Segment Anything" (2023), appendix A, and Ravi et al., "SAM 2" (2024), appendix D, for the weights and
for the minimum over the masks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tools.demo_model import network
from tools.demo_model.network import Prediction, Teacher, adopt_decoder

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


_TRIES = 3  # points per required prompt, because the teacher is not confident at every point
_TRUSTED = 0.75  # minimum score of the teacher's masks
_AREAS = (0.0006, 0.7)  # of the teacher's masks, as shares of the frame
_MIN_CELLS = 6  # of a region of a scene
_AREA_POWER, _PART_WEIGHT = 0.4, 0.3  # of the choice of a region
_NUMBERS = 64  # of the regions that can be chosen
_MIN_GROUND = 0.1  # minimum share of the background for a click on it
_HIGH_RES = ((32, 4), (64, 2))  # channels of the high-resolution features, and cells for each cell of the embedding


@dataclass(frozen=True)
class Targets:
    """The expected answers to P prompts, at a quarter of the side S.

    Attributes:
        single: float32 (P, S/4, S/4), the target of the single mask: the covered share of each cell, 0..1.
        whole: float32 (P, S/4, S/4), the same for the other masks, for boxes and for later clicks.
        present: float32 (P,), 1 if there is an object, else 0.
        known: float32 (P,), 0 for ignored prompts.
        clicks: float32 (P, 2), x and y in pixels of the first click.
    """

    single: Tensor
    whole: Tensor
    present: Tensor
    known: Tensor
    clicks: Tensor

    @property
    def side(self) -> int:
        """Side S of the images in pixels."""
        return CELL * self.whole.shape[-1]

    def region(self) -> Tensor:
        """Return the object that the user means, bool (P, S/4, S/4)."""
        return self.whole >= 0.5

    def join(self, other: Targets) -> Targets:
        """Return these targets, followed by the targets of other prompts."""
        return Targets(*(torch.cat([getattr(self, name), getattr(other, name)]) for name in Targets.__annotations__))


def teacher_decoder(model: nn.Module, teacher: Teacher) -> nn.Module:
    """Return a SAM2Base that predicts the teacher's masks from its embeddings; scores are approximate."""
    answering: Any = copy.deepcopy(model)
    adopt_decoder(answering, teacher)
    answering.sam_mask_decoder.pred_obj_scores = False  # the teacher has no token for the object score
    result: nn.Module = answering.eval().requires_grad_(False)
    return result


@torch.no_grad()
def ask(decoder: nn.Module, embeddings: Tensor, points: Tensor, bf16: bool = False) -> network.Prediction:
    """Return the teacher's answers to clicks, image by image.

    Args:
        embeddings: (B, 256, S/16, S/16), the teacher's.
        points: (B, N, 2), x and y in pixels of N clicks on each image.
    """
    images, count = points.shape[:2]
    cells = embeddings.shape[-1]
    network.set_side(decoder, network.STRIDE * cells)
    fine, middle = (embeddings.new_zeros(images, channels, n * cells, n * cells) for channels, n in _HIGH_RES)
    labels = torch.ones((images * count, 1), device=points.device)
    with torch.autocast(points.device.type, torch.bfloat16, enabled=bf16):
        repeated = network.Features(embeddings, (fine, middle)).repeat(count)
        return network.decode(decoder, repeated, points.reshape(-1, 1, 2), labels, None).float()


def taught_targets(decoder: nn.Module, embeddings: Tensor, count: int, bf16: bool = False) -> Targets:
    """Return the teacher's confident masks at random points of photographs.

    Args:
        embeddings: (B, 256, S/16, S/16), the teacher's.
    """
    images, tries = len(embeddings), _TRIES * count
    side = network.STRIDE * embeddings.shape[-1]
    points = torch.rand((images, tries, 2), device=embeddings.device) * side
    answer = ask(decoder, embeddings, points, bf16)
    masks = answer.logits > 0
    shares = masks.float().mean((2, 3))
    fits = (answer.iou >= _TRUSTED) & (shares >= _AREAS[0]) & (shares <= _AREAS[1])
    worth = torch.rand(fits.shape, device=fits.device) * fits
    worth[:, 0] = 0  # the single mask repeats one of the others
    best, candidate = worth.max(1)
    order = (best > 0).view(images, tries).float().argsort(dim=1, descending=True, stable=True)[:, :count]
    rows = (order + torch.arange(images, device=order.device)[:, None] * tries).flatten()
    whole = masks[rows, candidate[rows]].float()
    single = torch.where(fits[rows, 0][:, None, None], masks[rows, 0].float(), whole)
    known = (best[rows] > 0).float()
    return Targets(single, whole, torch.ones_like(known), known, points.reshape(-1, 2)[rows])


def scene_targets(labels: Tensor, parts: Tensor, count: int, absent_share: float = 0.0) -> Targets:
    """Choose random objects and parts of scenes, and click into each.

    Args:
        labels: uint8 (B, S/2, S/2), the number of the object at each pixel, or 0 for the background.
        parts: uint8 (B, S/2, S/2), the number of the part at each pixel, or 0.
        absent_share: share of the prompts that click on the background instead and point at no object, 0..1.
    """
    images, device = len(labels), labels.device
    maps = torch.stack([labels, parts], 1)
    weights = _weights(maps)
    chosen = torch.multinomial(weights + 1e-9, count, replacement=True)
    half = weights.shape[1] // 2
    rows = torch.arange(images, device=device)[:, None]
    regions = maps[rows, (chosen >= half).long()] == (1 + chosen % half)[..., None, None]
    whole = F.avg_pool2d(regions.flatten(0, 1)[:, None].float(), CELL // 2)[:, 0]
    usable = (weights.gather(1, chosen) > 0).flatten() & (whole >= 0.5).flatten(1).any(1)
    side = CELL * whole.shape[-1]
    clicks = click_inside(whole >= 0.5, side)
    ground = (F.max_pool2d(labels[:, None].float(), CELL // 2)[:, 0] == 0).repeat_interleave(count, 0)
    absent = torch.rand(images * count, device=device) < absent_share
    absent &= ground.float().mean((1, 2)) > _MIN_GROUND
    clicks = torch.where(absent[:, None], click_inside(ground, side), clicks)
    whole = whole * ~absent[:, None, None]
    return Targets(whole, whole, (~absent).float(), (usable | absent).float(), clicks)


def _weights(maps: Tensor) -> Tensor:
    """Return the weights of objects and parts, float32 (B, 2 * (_NUMBERS - 1)), from their maps (B, 2, h, w)."""
    flat = maps.flatten(2).long()
    areas = torch.zeros((len(maps), 2, 256), device=maps.device)
    areas.scatter_add_(2, flat, torch.ones((), device=maps.device).expand(flat.shape))
    areas = areas[..., 1:_NUMBERS]
    weights = areas**_AREA_POWER * (areas >= _MIN_CELLS * (CELL // 2) ** 2)
    weights[:, 1] *= _PART_WEIGHT
    return weights.flatten(1)


def target_loss(answer: network.Prediction, targets: Targets, ambiguous: Tensor, first: bool) -> tuple[Tensor, Tensor]:
    """Return prompt_loss() of one decoder call, with the target of each mask.

    Args:
        ambiguous: bool (P,), True if the prompt is a single click.
    """
    single = torch.where((ambiguous & first)[:, None, None], targets.single, targets.whole)
    masks = torch.stack([single, *3 * [targets.whole]], 1)
    return prompt_loss(answer, masks, targets.present, ambiguous, targets.known)
