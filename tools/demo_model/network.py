"""The image encoder and mask decoder of SAM2, as SAM2ImagePredictor runs them, with gradients and at any side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name of this module
from torch import Tensor, nn

from triton_sam.export.sam2.graphs import Sam2Decoder
from triton_sam.families.sam2 import SAM2

STRIDE = 16
"""Input pixels for each cell of the image embedding, along one axis. Masks have a quarter of the input's side."""

_TRAINED = ("image_encoder", "sam_prompt_encoder", "sam_mask_decoder")


@dataclass(frozen=True)
class Features:
    """The encoder outputs that the decoder needs, for B images of side S.

    Attributes:
        embedding: (B, 256, S/16, S/16), with no_mem_embed added.
        high_res: the high-resolution features, (B, 32, S/4, S/4) and (B, 64, S/8, S/8).
    """

    embedding: Tensor
    high_res: tuple[Tensor, Tensor]

    def float(self) -> Features:
        """Return the features in single precision."""
        return Features(self.embedding.float(), (self.high_res[0].float(), self.high_res[1].float()))

    def repeat(self, count: int) -> Features:
        """Return (B * count, ...) features, repeated for the `count` prompts of each image."""

        def repeated(x: Tensor) -> Tensor:  # expand, not index: its gradient is a sum, not a slow scatter
            return x[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1)

        return Features(repeated(self.embedding), (repeated(self.high_res[0]), repeated(self.high_res[1])))


@dataclass(frozen=True)
class Prediction:
    """The decoder's answers to P prompts on images of side S. Mask 0 is the single mask, masks 1..3 are the multimasks.

    Attributes:
        logits: (P, 4, S/4, S/4), mask logits.
        iou: (P, 4), the predicted IoU of each mask, 0..1.
        present: (P,), the logit that the prompt points at an object.
    """

    logits: Tensor
    iou: Tensor
    present: Tensor

    def float(self) -> Prediction:
        """Return the answers in single precision."""
        return Prediction(self.logits.float(), self.iou.float(), self.present.float())


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the names and parameters that images use. The memory modules have their own trainer."""
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in _TRAINED or name == "no_mem_embed":
            yield name, parameter


def set_side(model: nn.Module, side: int) -> None:
    """Configure the prompt encoder for images of a side in pixels, a multiple of 16."""
    encoder: Any = model.sam_prompt_encoder
    cells = side // STRIDE
    encoder.image_embedding_size = (cells, cells)
    encoder.input_image_size = (side, side)
    encoder.mask_input_size = (4 * cells, 4 * cells)


def normalise(images: Tensor) -> Tensor:
    """Convert RGB images, uint8 (B, S, S, 3), to float32 (B, 3, S, S), normalised by ImageNet's mean and deviation."""
    scaled = images.permute(0, 3, 1, 2).float() / 255
    mean = torch.tensor(SAM2.pixel_mean, device=images.device).view(1, 3, 1, 1)
    return (scaled - mean) / torch.tensor(SAM2.pixel_std, device=images.device).view(1, 3, 1, 1)


def encode(model: nn.Module, pixels: Tensor) -> Features:
    """Run the image encoder.

    The result equals that of SAM2ImagePredictor.set_image, which calls SAM2Base.forward_image and adds no_mem_embed. At
    the two fine levels, a linear projection to 256 channels is followed by a projection to 32 or 64 channels. Both are
    combined into one projection, which halves the time.

    Args:
        pixels: float32 (B, 3, S, S), normalised images.
    """
    encoder: Any = model.image_encoder
    decoder: Any = model.sam_mask_decoder
    no_memory: Any = model.no_mem_embed
    neck = encoder.neck
    fine, middle, coarse, coarsest = encoder.trunk(pixels)
    top = F.interpolate(neck.convs[0](coarsest), scale_factor=2.0, mode="nearest")
    embedding = neck.convs[1](coarse) + top + no_memory.view(1, -1, 1, 1)
    high_res = (
        _project_twice(fine, neck.convs[3].conv, decoder.conv_s0),
        _project_twice(middle, neck.convs[2].conv, decoder.conv_s1),
    )
    return Features(embedding, high_res)


def _project_twice(x: Tensor, first: Any, second: Any) -> Tensor:
    """Apply two successive 1x1 convolutions as one equivalent convolution."""
    outer, inner = second.weight.flatten(1), first.weight.flatten(1)
    return F.conv2d(x, (outer @ inner)[..., None, None], outer @ first.bias + second.bias)


def decode(model: nn.Module, features: Features, points: Tensor, labels: Tensor, mask: Tensor | None) -> Prediction:
    """Run the prompt encoder and the mask decoder for P prompts, after set_side().

    Args:
        points: (P, N, 2), x and y in pixels. A box is two points with the labels 2 and 3.
        labels: (P, N), the label of each point; -2 is padding for prompts that have fewer points than others.
        mask: (P, 1, S/4, S/4), logits of an earlier round, or None.
    """
    decoder: Any = Sam2Decoder(model)
    encoder = decoder.prompt_encoder
    dense = encoder.no_mask_embed.weight.reshape(1, -1, 1, 1) if mask is None else encoder.mask_downscaling(mask)
    image = (features.embedding + dense).flatten(2)
    logits, iou, present = decoder.all_masks(image, *features.high_res, points, labels)
    return Prediction(logits, iou, present[:, 0])
