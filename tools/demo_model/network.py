"""The networks of the training: SAM2 with gradients and at any side, and the teacher MobileSAM.

Image encoder and mask decoder run as in SAM2ImagePredictor. The mask decoder of SAM2 is SAM's decoder with three
additions (Ravi et al., "SAM 2", 2024, appendix C): high-resolution features, a token for the object score, and a
sigmoid after the score of a mask. It can therefore start from weights of SAM, which were trained on 11 million
photographs of real objects. MobileSAM (Zhang et al., "Faster Segment Anything", 2023) has the decoder of SAM's largest
model, and a small encoder with nearly the same embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name of this module
from torch import Tensor, nn

from triton_sam.export.mobilesam import EXPORTER
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


SIDE = 1024
"""Side in pixels of the images of MobileSAM, whose code supports only this size."""
VARIANCE = 0.0105
"""Mean square of MobileSAM's embeddings. Losses are relative to it."""

_PARTS = {"prompt_encoder": "sam_prompt_encoder", "mask_decoder": "sam_mask_decoder"}  # SAM's name: SAM2's name
_LAYERS = {"mlp.lin1": "mlp.layers.0", "mlp.lin2": "mlp.layers.1"}
_SLOPE = 4.0  # sigmoid(4 x - 2) is close to x for scores 0..1
_RIDGE = 1e-4  # share of a feature's mean square that is added to it


class Teacher:
    """MobileSAM with a checkpoint or with random weights.

    Args:
        checkpoint: the official checkpoint, from ``triton-sam download mobilesam``; None for random weights.
        size: None for the official size, or "micro" for tests.
        random_seed: seed of random weights; None with a checkpoint.
    """

    def __init__(self, checkpoint: Path | None, size: str | None = None, random_seed: int | None = None) -> None:
        self._model: Any = EXPORTER.load(checkpoint, size, random_seed=random_seed)
        self._bf16 = False

    def to(self, device: str, bf16: bool) -> Teacher:
        """Move the teacher to a device, where it may compute in bfloat16. Returns the teacher."""
        self._model, self._bf16 = self._model.to(device), bf16
        return self

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings, float32 (B, 256, 64, 64), of RGB images, uint8 (B, 1024, 1024, 3)."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self._bf16):
            embeddings: Tensor = self._model.image_encoder(normalise(images))
        return embeddings.float()

    def decoder_state(self) -> dict[str, Tensor]:
        """Return the weights of the prompt encoder and of the mask decoder, by their names in SAM2."""
        state = {}
        for name, value in self._model.state_dict().items():
            part, _, rest = name.partition(".")
            if part in _PARTS:
                for ours, theirs in _LAYERS.items():
                    rest = rest.replace(ours, theirs)
                state[f"{_PARTS[part]}.{rest}"] = value
        return state


def adopt_decoder(model: nn.Module, teacher: Teacher) -> None:
    """Give a SAM2Base the teacher's prompt encoder and mask decoder, in place.

    The additions of SAM2 start with no or minimal influence: no high-resolution features and no code for the missing
    memory. The token of the object score equals the token of the scores. The head of the scores is scaled so that
    values stay nearly the same after the sigmoid.
    """
    adopted = teacher.decoder_state()
    model.load_state_dict(adopted, strict=False)
    decoder: Any = model.sam_mask_decoder
    with torch.no_grad():
        for parameter in (*decoder.conv_s0.parameters(), *decoder.conv_s1.parameters(), model.no_mem_embed):
            parameter.zero_()
        decoder.obj_score_token.weight.copy_(decoder.iou_token.weight)
        last = decoder.iou_prediction_head.layers[-1]
        last.weight.mul_(_SLOPE)
        last.bias.mul_(_SLOPE).sub_(_SLOPE / 2)


@torch.no_grad()
def fit_projection(model: nn.Module, lessons: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Set the neck's projections so that embeddings are as close to the teacher's as the trunk's features allow.

    This is a linear regression on the features of the trunk's last two stages, in closed form.

    Args:
        lessons: pairs of an RGB image, uint8 (S, S, 3), and the teacher's embedding of it, (256, S/16, S/16).

    Returns:
        The mean square error, as a share of the embeddings' mean square.
    """
    neck: Any = model.image_encoder.neck  # type: ignore[union-attr]
    own: Any = 0.0
    shared: Any = 0.0
    total = 0.0
    for image, embedding in lessons:
        trunk: Any = model.image_encoder.trunk  # type: ignore[union-attr]
        _, _, coarse, coarsest = trunk(normalise(image[None]))
        top = F.interpolate(coarsest, scale_factor=2.0, mode="nearest")
        rows = torch.cat([coarse, top, torch.ones_like(top[:, :1])], 1)[0].flatten(1).double()
        wanted = embedding.flatten(1).double()
        own, shared = own + rows @ rows.T, shared + rows @ wanted.T
        total += float(wanted.square().sum())
    ridge = _RIDGE * own.diagonal().mean() * torch.eye(len(own), dtype=own.dtype, device=own.device)
    solution = torch.linalg.solve(own + ridge, shared)
    split = neck.convs[1].conv.in_channels
    for projection, weights in ((neck.convs[1].conv, solution[:split]), (neck.convs[0].conv, solution[split:-1])):
        projection.weight.copy_(weights.T[..., None, None])
        projection.bias.zero_()
    neck.convs[1].conv.bias.copy_(solution[-1])
    error = total - 2 * float((solution * shared).sum()) + float((solution * (own @ solution)).sum())
    return error / total
