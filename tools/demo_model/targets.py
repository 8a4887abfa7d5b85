"""The targets of prompts as tensors: the teacher's masks of photographs, and the regions of scenes."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tools.demo_model import network
from tools.demo_model.losses import prompt_loss
from tools.demo_model.prompts import CELL, click_inside
from tools.demo_model.teacher import Teacher, adopt_decoder

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
    """Return losses.prompt_loss() of one decoder call, with the target of each mask.

    Args:
        ambiguous: bool (P,), True if the prompt is a single click.
    """
    single = torch.where((ambiguous & first)[:, None, None], targets.single, targets.whole)
    masks = torch.stack([single, *3 * [targets.whole]], 1)
    return prompt_loss(answer, masks, targets.present, ambiguous, targets.known)
