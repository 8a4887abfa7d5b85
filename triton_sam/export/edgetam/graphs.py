"""EdgeTAM's two graphs as modules. They compute the same as transformers' EdgeTamModel.

Reference: transformers 5, models/edgetam/modeling_edgetam.py.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...families.edgetam import EDGETAM
from ..sam2.transformers_modules import PixelPositions
from ..sam3.graphs import Sam3Encoder


class EdgeTamEncoder(Sam3Encoder):
    """Computes the embeddings of images, as EdgeTamModel.get_image_embeddings does."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model, add_no_memory=True)
        self.vision = fused(self.vision)
        self.register_buffer("mean", torch.tensor(EDGETAM.pixel_mean).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(EDGETAM.pixel_std).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode images.

        Args:
            image: (B,3,S,S) RGB in 0..1; S is the image size in pixels.

        Returns:
            image_embeddings (B,256,S/16,S/16), high_res_feats_0 (B,32,S/4,S/4), high_res_feats_1 (B,64,S/8,S/8).
        """
        fine, middle, coarse = super().forward((image - self.mean) / self.std)
        return coarse, fine, middle


def fused(vision: nn.Module) -> nn.Module:
    """Return a copy of a vision encoder in which each convolution includes the batch normalisation after it.

    RepViT is trained with two parallel convolutions and the identity; timm merges them into one for inference.
    """
    result = copy.deepcopy(vision)
    for parent in list(result.modules()):
        for name, child in parent.named_children():
            # The parts of a RepVggDw are also visited, but are no longer used then.
            if hasattr(child, "fuse"):
                fusible: Any = child
                setattr(parent, name, fusible.fuse())
    return result


class EdgeTamDecoder(PixelPositions):
    """Computes masks from embeddings and prompts, as EdgeTamModel.forward does, with SAM2's decoder."""
