"""A dense helper task: every pixel says which others belong to the same object, without the decoder.

A prompt teaches the encoder about one object through the whole decoder; here sixteen objects a picture teach it
directly, for a fraction of the time. The helper maps the encoder's three outputs to a few numbers a pixel, close for
pixels of one object and far for others (Fathi et al., "Semantic Instance Segmentation via Deep Metric Learning", 2017).
It is trained beside the model and is no part of it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from .losses import dice_loss
from .network import Features

_WIDTH = 16  # numbers a pixel
_ANCHORS = 16  # pixels of a picture that are compared with all others
_MIN_CELLS = 4  # smaller objects are not asked for


class Affinity(nn.Module):
    """Maps encoder outputs to (B, 16, S/4, S/4); `loss` compares pixels of it."""

    def __init__(self) -> None:
        super().__init__()
        levels = [nn.Conv2d(channels, _WIDTH, 1) for channels in (32, 64, 256)]
        for level in levels:
            level.weight.data.mul_(0.3)  # the encoder's outputs are large: far apart at first means no gradient
        self.levels = nn.ModuleList(levels)
        self.offset = nn.Parameter(torch.tensor(2.0))

    def forward(self, features: Features) -> Tensor:
        """Sum the projections of all levels at the finest."""
        maps = (*features.high_res, features.embedding)
        size = maps[0].shape[-2:]
        projected = [level(x) for level, x in zip(self.levels, maps, strict=True)]
        return torch.stack([F.interpolate(x, size, mode="bilinear") for x in projected]).sum(0)

    def loss(self, features: Features, labels: NDArray[np.uint8], rng: np.random.Generator) -> Tensor:
        """Compare anchors with all pixels: same object or not.

        Args:
            features: of B pictures.
            labels: (B, S/4, S/4), the object at each cell, 0 for the background.
            rng: the source of randomness.

        Returns:
            Balanced cross entropy + dice, a scalar; 0 where there is no object.
        """
        owners, anchors = _anchors(labels, rng)
        if len(anchors) == 0:
            return torch.zeros((), device=features.embedding.device)
        codes = self(features).flatten(2)
        owner, anchor = (torch.from_numpy(a).to(codes.device) for a in (owners, anchors))
        flat = torch.from_numpy(labels.reshape(len(labels), -1)).to(codes.device)
        wanted = (flat[owner] == flat[owner, anchor][:, None]).float()
        at_anchor = codes[owner, :, anchor]
        squares = (codes**2).sum(1)
        shared = torch.bmm(at_anchor[:, None], codes[owner])[:, 0]
        distances = (at_anchor**2).sum(1)[:, None] + squares[owner] - 2 * shared
        logits = self.offset - distances
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        inside = (each * wanted).sum(1) / wanted.sum(1).clamp(min=1)
        outside = (each * (1 - wanted)).sum(1) / (1 - wanted).sum(1).clamp(min=1)
        return (inside + outside).mean() / 2 + dice_loss(logits[:, None], wanted[:, None]).mean()


def _anchors(labels: NDArray[np.uint8], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pick pixels, each of an object drawn at random. Returns the picture and the flat place of each."""
    owners, places = [], []
    for number, picture in enumerate(labels.reshape(len(labels), -1)):
        sizes = np.bincount(picture)
        sizes[0] = 0
        objects = np.flatnonzero(sizes >= _MIN_CELLS)
        if len(objects) == 0:
            continue
        for label in rng.choice(objects, _ANCHORS):
            owners.append(number)
            places.append(int(rng.choice(np.flatnonzero(picture == label))))
    return np.array(owners, np.int64), np.array(places, np.int64)
