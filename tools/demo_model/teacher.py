"""The teacher MobileSAM: its embeddings and masks, and its prompt encoder and mask decoder as initial weights for SAM2.

The mask decoder of SAM2 is SAM's decoder with three additions (Ravi et al., "SAM 2", 2024, appendix C): high-resolution
features, a token for the object score, and a sigmoid after the score of a mask. It can therefore start from weights of
SAM, which were trained on 11 million photographs of real objects. MobileSAM (Zhang et al., "Faster Segment Anything",
2023) has the decoder of SAM's largest model, and a small encoder with nearly the same embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tools.demo_model import network
from triton_sam.export.mobilesam.recipe import EXPORTER

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
            embeddings: Tensor = self._model.image_encoder(network.normalise(images))
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
        _, _, coarse, coarsest = trunk(network.normalise(image[None]))
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
