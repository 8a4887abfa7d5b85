"""The image encoder and mask decoder of SAM2, as SAM2ImagePredictor runs them, with gradients and at any resolution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name of this module
from torch import Tensor, nn

from ..errors import ConfigurationError
from ..export.sam2.graphs import PIXEL_MEAN, PIXEL_STD, Sam2Decoder

STRIDE = 16
"""Input pixels for each cell of the image embedding, along one axis. Masks have a quarter of the input's side."""

_PATCH = 4  # input pixels for each cell of the trunk's first stage, along one axis
_TRAINED = ("image_encoder", "sam_prompt_encoder", "sam_mask_decoder")
_SHARPNESS, _STRENGTH = 4.0, 2.0  # factors on PyTorch's initial attention weights
_BACKGROUND = 2.0  # the logit of every pixel before training is about -2


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
        """Return (B * count, ...) features, in which those of each image are repeated for its `count` prompts."""

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
    """Yield the names and parameters that images use. The memory modules have a trainer of their own."""
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in _TRAINED or name == "no_mem_embed":
            yield name, parameter


def prepare(model: nn.Module) -> None:
    """Set initial weights, in place, with which a new model learns faster than with the default ones.

    With the default weights, a click hardly influences the masks: the codes of the label and of the missing mask, drawn
    with deviation 1, hide the code of the position, and attention is almost uniform. Therefore:

    - The codes of labels and of the missing mask start small.
    - Queries equal keys, so that a token attends to similar tokens. A click and the image features at its position
      share a position code, so the click attends to these features.
    - Attention starts sharp and strong.
    - Masks start as background (Lin et al., "Focal Loss", 2017, section 4.1). Otherwise the model first learns one
      large constant embedding for the background, which hides everything else.
    - The fixed random frequencies of the position code are rounded to half precision, the precision of the checkpoint.
    """
    decoder: Any = model.sam_mask_decoder
    encoder: Any = model.sam_prompt_encoder
    with torch.no_grad():
        for embedding in (*encoder.point_embeddings, encoder.not_a_point_embed):
            embedding.weight.mul_(0.3)
        encoder.no_mask_embed.weight.mul_(0.05)
        for module in decoder.modules():
            if hasattr(module, "q_proj"):
                module.q_proj.weight.mul_(_SHARPNESS)
                module.k_proj.weight.copy_(module.q_proj.weight)
                module.v_proj.weight.mul_(_STRENGTH)
                module.out_proj.weight.mul_(_STRENGTH)
        decoder.output_upscaling[3].bias[0] = 3.0  # this feature is constant at first
        for network in decoder.output_hypernetworks_mlps:  # and every mask gives it a negative weight
            network.layers[-1].weight.mul_(_STRENGTH)
            network.layers[-1].bias[0] = -_BACKGROUND / 3.0
        matrix = encoder.pe_layer.positional_encoding_gaussian_matrix
        matrix.copy_(matrix.half().float())


@dataclass(frozen=True)
class Window:
    """The square part of a frame that a training step computes.

    The model is served with inputs of 1024 px, at which a training step costs sixteen times as much as at 256 px. A
    window of 256 px in a frame of 1024 px has the cost of the small input and the scale of the large one: the position
    codes of the trunk and of the prompts are those of the window's place in the frame.

    Args:
        side: side of the window in pixels, a multiple of 64.
        frame: side of the frame in pixels, a multiple of 64.
        left: column of the window's left edge in the frame, a multiple of 16.
        top: row of the window's top edge in the frame, a multiple of 16.

    Raises:
        ConfigurationError: a side or a position is not such a multiple, or the window lies partly outside the frame.
    """

    side: int
    frame: int
    left: int = 0
    top: int = 0

    def __post_init__(self) -> None:
        if self.side < 64 or self.side % 64 or self.frame % 64:
            raise ConfigurationError(
                f"cannot train with a window of {self.side} px in a frame of {self.frame} px: use multiples of 64 px"
            )
        for start in (self.left, self.top):
            if start % STRIDE or not 0 <= start <= self.frame - self.side:
                raise ConfigurationError(
                    f"a window of {self.side} px at {start} does not fit into a frame of {self.frame} px: positions "
                    f"must be multiples of {STRIDE} and the whole window must lie inside the frame"
                )

    def cut(self, whole: Tensor, stride: int) -> Tensor:
        """Cut the window out of a map (B, C, frame/stride, frame/stride). Returns (B, C, side/stride, side/stride)."""
        cells = self.side // stride
        top, left = self.top // stride, self.left // stride
        return whole[:, :, top : top + cells, left : left + cells]


def set_window(model: nn.Module, window: Window) -> None:
    """Configure the prompt encoder for coordinates in the frame and for mask inputs of the window's size."""
    encoder: Any = model.sam_prompt_encoder
    cells = window.side // STRIDE
    encoder.image_embedding_size = (cells, cells)
    encoder.input_image_size = (window.frame, window.frame)
    encoder.mask_input_size = (4 * cells, 4 * cells)


@contextmanager
def _window_positions(trunk: Any, window: Window) -> Iterator[None]:
    """Make the trunk add the position codes of the window's place in the frame, as long as the block runs."""
    cells = window.frame // _PATCH

    def codes(_: object) -> Tensor:
        # Interpolating the codes for a large frame takes a tenth of the time of a small step, so the codes are trained
        # only by views that show the whole frame.
        with torch.set_grad_enabled(torch.is_grad_enabled() and window.side == window.frame):
            whole: Tensor = type(trunk)._get_pos_embed(trunk, (cells, cells))  # noqa: SLF001 - the trunk has no public way
        return window.cut(whole.permute(0, 3, 1, 2), _PATCH).permute(0, 2, 3, 1)

    trunk._get_pos_embed = codes  # noqa: SLF001
    try:
        yield
    finally:
        del trunk._get_pos_embed  # noqa: SLF001


def normalise(images: Tensor) -> Tensor:
    """Turn RGB images, uint8 (B, S, S, 3), into float32 (B, 3, S, S), normalised by ImageNet's mean and deviation."""
    scaled = images.permute(0, 3, 1, 2).float() / 255
    mean = torch.tensor(PIXEL_MEAN, device=images.device).view(1, 3, 1, 1)
    return (scaled - mean) / torch.tensor(PIXEL_STD, device=images.device).view(1, 3, 1, 1)


def encode(model: nn.Module, pixels: Tensor, window: Window) -> Features:
    """Run the image encoder.

    The result equals that of SAM2ImagePredictor.set_image, which calls SAM2Base.forward_image and adds no_mem_embed. At
    the two fine levels, a linear projection to 256 channels is followed by another one to 32 or 64 channels. Both are
    combined into one projection, which halves the time.

    Args:
        model: the SAM2Base.
        pixels: float32 (B, 3, S, S), normalised images of the window.
        window: the part of the frame that the images show.

    Raises:
        ConfigurationError: the model has another architecture than the encoder of SAM2.1.
    """
    encoder: Any = model.image_encoder
    decoder: Any = model.sam_mask_decoder
    no_memory: Any = model.no_mem_embed
    neck = encoder.neck
    if list(neck.fpn_top_down_levels) != [2, 3] or encoder.scalp != 1 or len(neck.convs) != 4:
        raise ConfigurationError(
            "training needs a model with a four-stage trunk, scalp 1 and fpn_top_down_levels [2, 3]"
        )
    fine, middle, coarse, coarsest = trunk_features(model, pixels, window)
    top = F.interpolate(neck.convs[0](coarsest), scale_factor=2.0, mode="nearest")
    embedding = neck.convs[1](coarse) + top + no_memory.view(1, -1, 1, 1)
    high_res = (
        _project_twice(fine, neck.convs[3].conv, decoder.conv_s0),
        _project_twice(middle, neck.convs[2].conv, decoder.conv_s1),
    )
    return Features(embedding, high_res)


def trunk_features(model: nn.Module, pixels: Tensor, window: Window) -> list[Tensor]:
    """Return the features of the trunk's four stages, from fine to coarse; the arguments are those of encode."""
    encoder: Any = model.image_encoder
    with _window_positions(encoder.trunk, window):
        features: list[Tensor] = encoder.trunk(pixels)
    return features


def _project_twice(x: Tensor, first: Any, second: Any) -> Tensor:
    """Apply two successive 1x1 convolutions as the single convolution that equals them."""
    outer, inner = second.weight.flatten(1), first.weight.flatten(1)
    return F.conv2d(x, (outer @ inner)[..., None, None], outer @ first.bias + second.bias)


class _WindowDecoder(Sam2Decoder):
    """The exported decoder with the position codes of a window of the frame."""

    def __init__(self, model: nn.Module, window: Window) -> None:
        super().__init__(model)
        self.window = window

    def _positions(self) -> Tensor:
        cells = self.window.frame // STRIDE
        return self.window.cut(self.prompt_encoder.pe_layer((cells, cells))[None], STRIDE)


def decode(
    model: nn.Module, features: Features, points: Tensor, labels: Tensor, mask: Tensor | None, window: Window
) -> Prediction:
    """Run the prompt encoder and the mask decoder for P prompts.

    Args:
        model: the SAM2Base.
        features: the features of P images, one for each prompt.
        points: (P, N, 2), x and y in pixels of the window. A box is two points with the labels 2 and 3.
        labels: (P, N), the label of each point; -2 is padding for prompts that have fewer points than others.
        mask: (P, 1, S/4, S/4), logits of an earlier round, or None.
        window: the part of the frame that the features show.
    """
    origin = torch.tensor([window.left, window.top], dtype=points.dtype, device=points.device)
    decoder: Any = _WindowDecoder(model, window)
    encoder = decoder.prompt_encoder
    dense = encoder.no_mask_embed.weight.reshape(1, -1, 1, 1) if mask is None else encoder.mask_downscaling(mask)
    image = (features.embedding + dense).flatten(2)
    logits, iou, present = decoder.all_masks(image, *features.high_res, points + origin, labels)
    return Prediction(logits, iou, present[:, 0])
