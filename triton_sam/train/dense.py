"""An auxiliary task that trains the encoder without the decoder: predict which pixels belong to the same object.

A prompt teaches the encoder about one object, and the gradient must pass through the whole decoder. The auxiliary task
teaches it about sixteen objects in each image directly, in a fraction of the time. An auxiliary network maps the three
encoder outputs to a short code for each pixel. Codes are close for pixels of the same object and far apart for others
(Fathi et al., "Semantic Instance Segmentation via Deep Metric Learning", 2017). The network is trained together with
the model but is not part of it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from .losses import dice_loss
from .network import Features

_WIDTH = 16  # length of the code of a pixel
_ANCHORS = 16  # pixels of each image that are compared with all others
_MIN_CELLS = 4  # objects that cover fewer cells get no anchors


class Affinity(nn.Module):
    """The auxiliary network: it maps the encoder outputs to codes (B, 16, S/4, S/4), which `loss` compares."""

    def __init__(self) -> None:
        super().__init__()
        levels = [nn.Conv2d(channels, _WIDTH, 1) for channels in (32, 64, 256)]
        for level in levels:
            level.weight.data.mul_(
                0.3
            )  # the encoder's outputs are large, and codes that start far apart get no gradient
        self.levels = nn.ModuleList(levels)
        self.offset = nn.Parameter(torch.tensor(2.0))

    def forward(self, features: Features) -> Tensor:
        """Return the codes: the sum of the projections of all levels at the finest resolution."""
        maps = (*features.high_res, features.embedding)
        size = maps[0].shape[-2:]
        projected = [level(x) for level, x in zip(self.levels, maps, strict=True)]
        return torch.stack([F.interpolate(x, size, mode="bilinear") for x in projected]).sum(0)

    def loss(self, features: Features, labels: NDArray[np.uint8], rng: np.random.Generator) -> Tensor:
        """Predict, for random anchor pixels, which pixels of their image belong to the same object.

        Args:
            features: encoder outputs of B images.
            labels: uint8 (B, S/4, S/4), the number of the object at each cell, or 0 for the background.
            rng: the source of randomness.

        Returns:
            A scalar: balanced cross entropy plus dice loss, or 0 if no image has an object.
        """
        image_numbers, anchors = _anchors(labels, rng)
        if len(anchors) == 0:
            return torch.zeros((), device=features.embedding.device)
        codes = self(features).flatten(2)
        image_index, anchor = (torch.from_numpy(a).to(codes.device) for a in (image_numbers, anchors))
        flat = torch.from_numpy(labels.reshape(len(labels), -1)).to(codes.device)
        same_object = (flat[image_index] == flat[image_index, anchor][:, None]).float()
        at_anchor = codes[image_index, :, anchor]
        squares = (codes**2).sum(1)
        shared = torch.bmm(at_anchor[:, None], codes[image_index])[:, 0]
        distances = (at_anchor**2).sum(1)[:, None] + squares[image_index] - 2 * shared
        logits = self.offset - distances
        each = F.binary_cross_entropy_with_logits(logits, same_object, reduction="none")
        inside = (each * same_object).sum(1) / same_object.sum(1).clamp(min=1)
        outside = (each * (1 - same_object)).sum(1) / (1 - same_object).sum(1).clamp(min=1)
        return (inside + outside).mean() / 2 + dice_loss(logits[:, None], same_object[:, None]).mean()


def _anchors(labels: NDArray[np.uint8], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose pixels of random objects. Returns the image number (K,) and the flat pixel index (K,) of each."""
    image_numbers, indices = [], []
    for number, image in enumerate(labels.reshape(len(labels), -1)):
        sizes = np.bincount(image)
        sizes[0] = 0
        objects = np.flatnonzero(sizes >= _MIN_CELLS)
        if len(objects) == 0:
            continue
        for label in rng.choice(objects, _ANCHORS):
            image_numbers.append(number)
            indices.append(int(rng.choice(np.flatnonzero(image == label))))
    return np.array(image_numbers, np.int64), np.array(indices, np.int64)
