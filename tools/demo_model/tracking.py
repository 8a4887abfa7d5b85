"""Tracking with gradients: the steps of SAM2VideoPredictor for a batch of objects, and the loss of the masks.

The image encoder, the prompt encoder and the mask decoder are unchanged except for the head of the object score, so
that masks of prompts on images do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tools.demo_model.targets import mask_costs, mask_iou
from triton_sam.scenes.clip import FRAMES

_TRAINED = ("memory_attention.", "memory_encoder.", "obj_ptr_proj.", "obj_ptr_tpos_proj.")
_TRAINED_TENSORS = ("maskmem_tpos_enc", "no_obj_ptr", "no_obj_embed_spatial")
_OBJECT_HEAD = "sam_mask_decoder.pred_obj_score_head."
_LOCALITY = (3.0, 2.0, 1.0)  # strength of the three fastest rotations in the first attention, for each axis
_MASK_SCALE, _MASK_BIAS = 20.0, -10.0  # from a mask 0..1 to logits, as in SAM2Base


@dataclass(frozen=True)
class FrameMaps:
    """The maps of one frame for B objects, at side S.

    Attributes:
        embedding: (B, 256, S/16, S/16), without no_mem_embed.
        high_res: the high-resolution features, (B, 32, S/4, S/4) and (B, 64, S/8, S/8).
    """

    embedding: Tensor
    high_res: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Answer:
    """The decoder's answers of one frame for B objects.

    Attributes:
        logits: (B, M, S/4, S/4), logits of the M candidates.
        iou: (B, M), their scores.
        present: (B, 1), the logit that the object is visible.
        best: (B,), the candidate with the highest score.
        token: (B, 256), the decoder's token of that candidate.
    """

    logits: Tensor
    iou: Tensor
    present: Tensor
    best: Tensor
    token: Tensor

    def mask(self) -> Tensor:
        """Return the logits of the best candidate, (B, 1, S/4, S/4)."""
        return self.logits[torch.arange(len(self.best), device=self.best.device), self.best][:, None]

    def shown(self) -> Tensor:
        """Return the visible mask, 0 or 1, (B, S/4, S/4): empty if the object is not visible."""
        return (self.present[:, :, None] > 0).float() * (self.mask()[:, 0] > 0)


@dataclass(frozen=True)
class FirstPrompt:
    """The prompts of B objects in the first frame.

    Attributes:
        points: (B, N, 2), x and y in pixels.
        labels: (B, N), the label of each point; 2 and 3 are the corners of a box.
        multimask: whether the decoder answers with three candidates (a click) or with a single mask.
    """

    points: Tensor
    labels: Tensor
    multimask: bool


def memory_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the names and parameters of the memory half, which only videos use."""
    for name, parameter in model.named_parameters():
        if name.startswith(_TRAINED) or name in _TRAINED_TENSORS:
            yield name, parameter


def object_head(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the names and parameters of the head of the object score, which does not affect masks of images."""
    for name, parameter in model.named_parameters():
        if name.startswith(_OBJECT_HEAD):
            yield name, parameter


def freeze_images(model: nn.Module) -> None:
    """Disable the gradients of all parameters except those of the memory half and the object score."""
    trained = {name for name, _ in (*memory_parameters(model), *object_head(model))}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)


def prepare_memory(model: nn.Module, embedding: Tensor) -> None:
    """Set initial weights of the memory half in place, so that memories are useful after few steps.

    - The memory attention adds nothing at first. Its last normalisation is fitted to the embeddings with which the
      decoder was trained, so the decoder starts with familiar maps.
    - Queries and keys start with equal biases. The rotations of RoPE turn these into an attention to the nearest
      positions of the memories.
    - A mask prompt reaches the decoder as the average of each cell in the scale of logits.

    Args:
        embedding: (B, 256, h, w), embeddings of some frames, without no_mem_embed.
    """
    half: Any = model
    attention = half.memory_attention
    with torch.no_grad():
        for layer in attention.layers:
            cross = layer.cross_attn_image
            nn.init.zeros_(layer.self_attn.out_proj.weight)
            nn.init.zeros_(layer.self_attn.out_proj.bias)
            nn.init.zeros_(layer.linear2.weight)
            nn.init.zeros_(layer.linear2.bias)
            cross.out_proj.weight.mul_(0.2)
            nn.init.zeros_(cross.out_proj.bias)
            bias = _local_bias(cross.internal_dim)
            cross.q_proj.bias.copy_(bias)
            cross.k_proj.bias.copy_(bias)
            cross.q_proj.weight.mul_(0.5)
            cross.k_proj.weight.mul_(0.5)
        for block in half.memory_encoder.fuser.layers:
            block.gamma.fill_(0.1)
        cells = half.mask_downsample.weight[0, 0].numel()
        half.mask_downsample.weight.fill_(_MASK_SCALE / cells)
        half.mask_downsample.bias.fill_(_MASK_BIAS)
        wanted = embedding + half.no_mem_embed.view(1, -1, 1, 1)
        start = embedding + 0.1 * half.image_encoder.neck.position_encoding(embedding)
        given = F.layer_norm(start.permute(0, 2, 3, 1), (start.shape[1],)).flatten(0, 2)
        target = wanted.permute(0, 2, 3, 1).flatten(0, 2)
        spread = given - given.mean(0)
        scale = (spread * (target - target.mean(0))).mean(0) / (spread**2).mean(0).clamp(min=1e-6)
        attention.norm.weight.copy_(scale)
        attention.norm.bias.copy_(target.mean(0) - scale * given.mean(0))


def _local_bias(channels: int) -> Tensor:
    """Return a bias of queries and keys whose rotated products are largest at equal positions.

    RoPE rotates pairs of channels, fastest rotation first: the first half of the pairs by column, the others by row.
    """
    bias = torch.zeros(channels)
    for axis in (0, channels // 2):
        for number, strength in enumerate(_LOCALITY[: channels // 4]):
            bias[axis + 2 * number] = strength
    return bias


class Tracker:
    """Tracks B objects through frames, one at a time."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self._outputs: dict[str, dict[int, dict[str, Any]]] = {
            "cond_frame_outputs": {},
            "non_cond_frame_outputs": {},
        }

    def start(self, maps: FrameMaps, prompt: FirstPrompt, mask: Tensor | None, is_mask: Tensor | None) -> Answer:
        """Segment the prompts of the first frame, and store the masks in the memory.

        Args:
            mask: (B, 1, S, S) true masks 0..1, or None.
            is_mask: bool (B,), True for objects whose true mask is stored instead of the answer.
        """
        with torch.no_grad():
            image = maps.embedding + self._model.no_mem_embed.view(1, -1, 1, 1)
        answer = self._decode(image, maps, prompt)
        whole = self._enlarge(answer.mask())
        if mask is not None and is_mask is not None:
            whole = torch.where(is_mask[:, None, None, None], mask * _MASK_SCALE + _MASK_BIAS, whole)
        self._remember("cond_frame_outputs", 0, maps, whole, answer, torch.ones_like(answer.present))
        return answer

    def step(self, frame: int, maps: FrameMaps, present: Tensor | None = None) -> Answer:
        """Segment the objects in the next frame, and store the masks in the memory.

        Args:
            present: (B, 1), 1 if the object is visible, else 0; None: according to the score.
        """
        model = self._model
        side = maps.embedding.shape[-1]
        position = model.image_encoder.neck.position_encoding(maps.embedding)
        image = model._prepare_memory_conditioned_features(  # noqa: SLF001 - the official choice of memories
            frame_idx=frame,
            is_init_cond_frame=False,
            current_vision_feats=[maps.embedding.flatten(2).permute(2, 0, 1)],
            current_vision_pos_embeds=[position.flatten(2).permute(2, 0, 1)],
            feat_sizes=[(side, side)],
            output_dict=self._outputs,
            num_frames=FRAMES,
        )
        answer = self._decode(image, maps, None)
        seen = (answer.present > 0).float() if present is None else present
        whole = self._enlarge(torch.where(seen[:, :, None, None] > 0, answer.mask(), -1024.0))
        self._remember("non_cond_frame_outputs", frame, maps, whole, answer, seen)
        return answer

    def _enlarge(self, logits: Tensor) -> Tensor:
        side = self._model.image_size
        # Memories of masks are learned from the loss of later frames; the mask from the loss of its own frame.
        return F.interpolate(logits.detach(), size=(side, side), mode="bilinear", align_corners=False)

    def _decode(self, image: Tensor, maps: FrameMaps, prompt: FirstPrompt | None) -> Answer:
        model, count = self._model, len(image)
        if prompt is None:
            points = image.new_zeros(count, 1, 2)
            labels = -torch.ones(count, 1, dtype=torch.int32, device=image.device)
        else:
            points, labels = prompt.points, prompt.labels
        sparse, dense = model.sam_prompt_encoder(points=(points, labels), boxes=None, masks=None)
        logits, iou, tokens, present = model.sam_mask_decoder(
            image_embeddings=image,
            image_pe=model.sam_prompt_encoder.get_dense_pe(),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=prompt is None or prompt.multimask,
            repeat_image=False,
            high_res_features=list(maps.high_res),
        )
        best = iou.argmax(1)
        token = tokens[torch.arange(count, device=best.device), best.clamp(max=tokens.shape[1] - 1)].detach()
        return Answer(logits, iou, present, best, token)

    def _remember(self, kind: str, frame: int, maps: FrameMaps, mask: Tensor, answer: Answer, present: Tensor) -> None:
        """Add a frame to the memories: its mask logits (B, 1, S, S) and its object pointer."""
        model = self._model
        side = maps.embedding.shape[-1]
        features, positions = model._encode_new_memory(  # noqa: SLF001
            current_vision_feats=[maps.embedding.flatten(2).permute(2, 0, 1)],
            feat_sizes=[(side, side)],
            pred_masks_high_res=mask,
            object_score_logits=present - 0.5,
            is_mask_from_pts=kind == "cond_frame_outputs",
        )
        pointer = present * model.obj_ptr_proj(answer.token) + (1 - present) * model.no_obj_ptr
        self._outputs[kind][frame] = {
            "maskmem_features": features,
            "maskmem_pos_enc": positions,
            "obj_ptr": pointer,
        }


def track_loss(
    model: nn.Module,
    frames: Sequence[FrameMaps],
    prompt: FirstPrompt,
    targets: Tensor,
    first_masks: Tensor | None = None,
    is_mask: Tensor | None = None,
    easy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Track objects from their prompts through all frames and return the loss.

    All three candidates get a gradient, the best a stronger one, because the mask of a tracked object is unambiguous.
    The weights of focal and dice loss are those of the training on images.

    Args:
        targets: (T, B, S/4, S/4), the share of each cell that the object covers, 0..1.
        first_masks: (B, 1, S, S), the true masks of the first frame, or None.
        is_mask: bool (B,), True for objects that start from their true mask.

    Returns:
        The loss, a scalar, and the IoU of the chosen masks of the following frames, (T - 1, B).
    """
    tracker = Tracker(model)
    answer = tracker.start(frames[0], prompt, first_masks, is_mask)
    visible = (targets.flatten(2).amax(2) > 0.5).float()
    losses = [F.binary_cross_entropy_with_logits(answer.present[:, 0], visible[0])]
    measured: list[Tensor] = []
    for number in range(1, len(frames)):
        answer = tracker.step(number, frames[number], visible[number][:, None] if easy else None)
        target = targets[number][:, None].expand_as(answer.logits)
        logits = answer.logits.clamp(-32, 32)
        per_mask = mask_costs(logits, target)
        each = 0.5 * per_mask.mean(1) + 0.5 * per_mask.amin(1)
        seen = visible[number]
        losses.append((each * seen).sum() / seen.sum().clamp(min=1))
        losses.append(F.binary_cross_entropy_with_logits(answer.present[:, 0], seen))
        measured.append(mask_iou(answer.shown() - 0.5, targets[number]))
    return torch.stack(losses).sum() / (len(frames) - 1), torch.stack(measured)
