"""The image path of SAM2, as SAM2ImagePredictor runs it, for any training resolution and with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor, nn

from ..errors import ConfigurationError
from ..export.sam2.graphs import PIXEL_MEAN, PIXEL_STD, Sam2Decoder

STRIDE = 16
"""Input pixels per cell of the image embedding; the masks come out at a quarter of the input."""

_PATCH = 4  # input pixels per cell of the trunk's first stage

_TRAINED = ("image_encoder", "sam_prompt_encoder", "sam_mask_decoder")
_SHARPNESS, _STRENGTH = 4.0, 2.0  # of attention before training, against PyTorch's default
_BACKGROUND = 2.0  # minus the logit of every pixel before training


@dataclass(frozen=True)
class Features:
    """What the encoder hands to the decoder, for B images of side S.

    Attributes:
        embedding: (B, 256, S/16, S/16), no_mem_embed added.
        high_res: (B, 32, S/4, S/4) and (B, 64, S/8, S/8).
    """

    embedding: Tensor
    high_res: tuple[Tensor, Tensor]

    def float(self) -> Features:
        """Return the features in single precision."""
        return Features(self.embedding.float(), (self.high_res[0].float(), self.high_res[1].float()))

    def repeat(self, count: int) -> Features:
        """Repeat the features of each image for `count` prompts, image by image."""

        def repeated(x: Tensor) -> Tensor:  # the gradient of an expansion is a sum; that of an index is a slow scatter
            return x[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1)

        return Features(repeated(self.embedding), (repeated(self.high_res[0]), repeated(self.high_res[1])))


@dataclass(frozen=True)
class Prediction:
    """The decoder's answer to P prompts on images of side S; index 0 is the single mask, 1..3 the multimasks.

    Attributes:
        logits: (P, 4, S/4, S/4).
        iou: (P, 4), the score of each mask, in 0..1.
        present: (P,), object score logits.
    """

    logits: Tensor
    iou: Tensor
    present: Tensor


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Name every parameter that the image path uses; the memory modules of video stay untouched."""
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in _TRAINED or name == "no_mem_embed":
            yield name, parameter


def prepare(model: nn.Module) -> None:
    """Give a fresh model starting values from which it learns faster, in place.

    The default initial values nearly hide a click from the masks: its kind and the "no mask" code, drawn with deviation
    1, drown its position, and attention is close to uniform. Here these codes start small, queries equal keys, so that
    tokens attend to what resembles them (a click to the features at its place: both carry the same position code), and
    attention starts sharp and strong. Masks start as background (Lin et al., "Focal Loss", 2017, section 4.1):
    otherwise the first thing learned, one large constant embedding that says so, silences everything else. The fixed
    random frequencies of the position code are rounded to half precision, in which the checkpoint is stored.
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
        decoder.output_upscaling[3].bias[0] = 3.0  # one feature that is constant at first ...
        for network in decoder.output_hypernetworks_mlps:  # ... and that every mask weighs negatively
            network.layers[-1].weight.mul_(_STRENGTH)
            network.layers[-1].bias[0] = -_BACKGROUND / 3.0
        matrix = encoder.pe_layer.positional_encoding_gaussian_matrix
        matrix.copy_(matrix.half().float())


@dataclass(frozen=True)
class Window:
    """The part of a frame that is computed: a square of side `side` at (left, top) of a frame of side `frame`.

    The model is served at 1024 px, where a step costs sixteen times what it costs at 256. A window of 256 px that keeps
    its place in the frame of 1024 (position codes of the trunk and of the prompts are those of that place) shows the
    model the scale and the precision of the real thing at the cost of the small one.

    Raises:
        ConfigurationError: a side that is no multiple of 64, or a window outside its frame or between its tiles.
    """

    side: int
    frame: int
    left: int = 0
    top: int = 0

    def __post_init__(self) -> None:
        if self.side < 64 or self.side % 64 or self.frame % 64:
            raise ConfigurationError(f"cannot train at {self.side} of {self.frame} px: sides must be multiples of 64")
        for start in (self.left, self.top):
            if start % STRIDE or not 0 <= start <= self.frame - self.side:
                raise ConfigurationError(f"a window of {self.side} px does not fit at {start} of {self.frame}")

    def cut(self, whole: Tensor, stride: int) -> Tensor:
        """Cut the window out of a map (B, C, frame/stride, frame/stride)."""
        cells = self.side // stride
        top, left = self.top // stride, self.left // stride
        return whole[:, :, top : top + cells, left : left + cells]


def place(model: nn.Module, window: Window) -> None:
    """Make the prompt encoder read coordinates as those of the frame, and masks as those of the window."""
    encoder: Any = model.sam_prompt_encoder
    cells = window.side // STRIDE
    encoder.image_embedding_size = (cells, cells)
    encoder.input_image_size = (window.frame, window.frame)
    encoder.mask_input_size = (4 * cells, 4 * cells)


@contextmanager
def _positions_of(trunk: Any, window: Window) -> Iterator[None]:
    """Let the trunk add the position codes that the window has in its frame."""
    cells = window.frame // _PATCH

    def codes(_: object) -> Tensor:
        # Stretching the codes to a large frame is a tenth of a small step: they learn with whole frames only.
        with torch.set_grad_enabled(torch.is_grad_enabled() and window.side == window.frame):
            whole: Tensor = type(trunk)._get_pos_embed(trunk, (cells, cells))  # noqa: SLF001 - the trunk has no other way
        return window.cut(whole.permute(0, 3, 1, 2), _PATCH).permute(0, 2, 3, 1)

    trunk._get_pos_embed = codes  # noqa: SLF001
    try:
        yield
    finally:
        del trunk._get_pos_embed  # noqa: SLF001


def normalise(images: Tensor) -> Tensor:
    """Turn uint8 (B, S, S, 3) RGB into float32 (B, 3, S, S) with ImageNet mean and deviation."""
    scaled = images.permute(0, 3, 1, 2).float() / 255
    mean = torch.tensor(PIXEL_MEAN, device=images.device).view(1, 3, 1, 1)
    return (scaled - mean) / torch.tensor(PIXEL_STD, device=images.device).view(1, 3, 1, 1)


def encode(model: nn.Module, pixels: Tensor, window: Window) -> Features:
    """Run the encoder on the normalised (B, 3, S, S) pixels of a window.

    Equals SAM2Base.forward_image and no_mem_embed, as SAM2ImagePredictor.set_image applies them. At the two fine
    levels a linear lateral projection to 256 channels is followed by a linear projection to 32 or 64; they are
    multiplied out first, which halves the time.
    """
    encoder: Any = model.image_encoder
    decoder: Any = model.sam_mask_decoder
    no_memory: Any = model.no_mem_embed
    neck = encoder.neck
    if list(neck.fpn_top_down_levels) != [2, 3] or encoder.scalp != 1 or len(neck.convs) != 4:
        raise ConfigurationError("training needs a four-stage trunk, scalp 1 and fpn_top_down_levels [2, 3]")
    with _positions_of(encoder.trunk, window):
        fine, middle, coarse, coarsest = encoder.trunk(pixels)
    top = F.interpolate(neck.convs[0](coarsest), scale_factor=2.0, mode="nearest")
    embedding = neck.convs[1](coarse) + top + no_memory.view(1, -1, 1, 1)
    high_res = (
        _project_twice(fine, neck.convs[3].conv, decoder.conv_s0),
        _project_twice(middle, neck.convs[2].conv, decoder.conv_s1),
    )
    return Features(embedding, high_res)


def _project_twice(x: Tensor, first: Any, second: Any) -> Tensor:
    """Apply two 1x1 convolutions as the one that equals them."""
    outer, inner = second.weight.flatten(1), first.weight.flatten(1)
    return F.conv2d(x, (outer @ inner)[..., None, None], outer @ first.bias + second.bias)


class _WindowDecoder(Sam2Decoder):
    """The decoder as it is exported, at a window of the frame."""

    def __init__(self, model: nn.Module, window: Window) -> None:
        super().__init__(model)
        self.window = window

    def _positions(self) -> Tensor:
        cells = self.window.frame // STRIDE
        return self.window.cut(self.prompt_encoder.pe_layer((cells, cells))[None], STRIDE)


def decode(
    model: nn.Module, features: Features, points: Tensor, labels: Tensor, mask: Tensor | None, window: Window
) -> Prediction:
    """Run prompt encoder and mask decoder, one prompt for each row of `features`.

    Args:
        model: the SAM2Base.
        features: of the P images that the prompts belong to.
        points: (P, N, 2) x, y in pixels of the window; a box is two points with labels 2 and 3.
        labels: (P, N); -2 where a prompt has fewer points than others.
        mask: (P, 1, S/4, S/4) logits of an earlier round, or None.
        window: what part of the frame the features show.
    """
    place = torch.tensor([window.left, window.top], dtype=points.dtype, device=points.device)
    decoder: Any = _WindowDecoder(model, window)
    encoder = decoder.prompt_encoder
    dense = encoder.no_mask_embed.weight.reshape(1, -1, 1, 1) if mask is None else encoder.mask_downscaling(mask)
    image = (features.embedding + dense).flatten(2)
    logits, iou, present = decoder.all_masks(image, *features.high_res, points + place, labels)
    return Prediction(logits, iou, present[:, 0])
