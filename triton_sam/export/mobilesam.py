"""MobileSAM: SAM1 with another encoder, from the `mobile_sam` package.

The encoder computes the same as TinyViT, and exports to a graph that is faster on CPUs. Reference:
mobile_sam.modeling.tiny_vit_sam. In shapes, B is the number of images, L of positions (h*w), C of channels.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._common.extras import missing
from .sam1 import Sam1Encoder, Sam1Exporter, assemble

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from .point_graphs import channel_norm

    with warnings.catch_warnings():  # the package imports timm's modules by their old names
        warnings.simplefilter("ignore")
        import mobile_sam
        from mobile_sam.modeling.tiny_vit_sam import Conv2d_BN
except ImportError as error:
    raise missing("exporting and verifying MobileSAM needs", "export", error, "export,local") from error


class MobileSamEncoder(Sam1Encoder):
    """Computes the embeddings of images, as mobile_sam.SamPredictor.set_torch_image does."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.stages = nn.ModuleList(Stage(layer) for layer in list(self.encoder.layers)[1:])

    def embed(self, pixels: Tensor) -> Tensor:
        return self.narrow(self.stage_maps(pixels)[-1])

    def narrow(self, x: Tensor) -> Tensor:
        """Compute the embeddings (B,256,S/16,S/16) from the map after the last stage."""
        narrow, norm_1, smooth, norm_2 = self.encoder.neck
        return channel_norm(norm_2, smooth(channel_norm(norm_1, narrow(x))))

    def stage_maps(self, pixels: Tensor) -> list[Tensor]:
        """Return the map (B,C,S/16,S/16) after each stage with attention; C differs."""
        x = self.encoder.layers[0](self.encoder.patch_embed(pixels))
        side = self.encoder.layers[-1].input_resolution
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(_to_grid(x, side))
        return found


class Stage(nn.Module):
    """A stage of TinyViT with attention in windows."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        block = layer.blocks[0]
        self.windows = Windows(block.input_resolution, block.window_size, block.attn.num_heads)
        self.attentions = nn.ModuleList(WindowAttention(block.attn) for block in layer.blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the stage: (B,L,C) to (B,L',C')."""
        for block, attention in zip(self.layer.blocks, self.attentions, strict=True):
            x = x + attention(x, self.windows)
            x = block.local_conv(_to_grid(x, block.input_resolution)).flatten(2).transpose(1, 2)
            x = x + block.mlp(x)
        return x if self.layer.downsample is None else _merge(self.layer.downsample, x)


def _merge(merging: Any, x: Tensor) -> Tensor:
    """Compute PatchMerging.forward without len() for the number of images, which torch would trace as a constant."""
    grid = merging.act(merging.conv1(_to_grid(x, merging.input_resolution)))
    merged: Tensor = merging.conv3(merging.act(merging.conv2(grid))).flatten(2).transpose(1, 2)
    return merged


def _to_grid(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Reorder (B,h*w,C) to (B,C,h,w)."""
    return x.transpose(1, 2).reshape(-1, x.shape[2], *size)


class Windows(nn.Module):
    """The order of the positions of an image in windows, as two lists of row numbers.

    The official code pads the image, transposes it into windows, transposes the heads, and removes the padding. Here,
    one operator gathers the rows in the new order, and another one restores it: ONNX Runtime uses several threads for
    this, but only one for transposition.
    """

    there: Tensor
    back: Tensor

    def __init__(self, size: tuple[int, int], window: int, heads: int) -> None:
        super().__init__()
        height, width = size
        down, across = -(-height // window), -(-width // window)
        # All positions of the padding share one additional row, the last.
        grid = torch.full((down * window, across * window), height * width)
        grid[:height, :width] = torch.arange(height * width).reshape(height, width)
        windows = grid.reshape(down, window, across, window).transpose(1, 2).reshape(-1, 1, window * window)
        rows = (windows * heads + torch.arange(heads).reshape(1, -1, 1)).flatten()
        found = torch.empty((height * width + 1) * heads, dtype=torch.int64)
        found[rows] = torch.arange(len(rows))
        self.register_buffer("there", rows, persistent=False)
        self.register_buffer("back", found[:-heads], persistent=False)
        self.shape = (heads, window * window)

    def split(self, x: Tensor) -> Tensor:
        """Reorder (B,L+1,C), whose last row is the padding's, to (B*windows,heads,positions,C/heads)."""
        heads, positions = self.shape
        side = x.shape[2] // heads
        rows = x.reshape(-1, x.shape[1] * heads, side).index_select(1, self.there)
        return rows.reshape(-1, heads, positions, side)

    def join(self, x: Tensor, images: int) -> Tensor:
        """Reorder (B*windows,heads,positions,d) to (B,L,heads*d), without the padding."""
        heads, _, side = x.shape[1:]
        rows = x.reshape(images, -1, side).index_select(1, self.back)
        return rows.reshape(images, -1, heads * side)


class WindowAttention(nn.Module):
    """TinyViT's attention. The projections run before the padding, to save time.

    The official code also normalises and projects the padding, which gives the same row everywhere: the bias. Here, the
    row of the padding is zero, and so are the biases of keys and values. The keys' bias adds the same number to all
    logits of a query, which the softmax cancels. The values' bias adds the same row to every result, because the
    weights of a softmax sum to 1; so it is part of the bias of the output projection.
    """

    query: Tensor
    query_bias: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    offsets: Tensor

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.eps = attention.norm.eps
        self.proj = attention.proj
        heads = attention.num_heads
        # The scale and the shift of the normalisation are part of the projections.
        weights = attention.qkv.weight * attention.norm.weight
        biases = _shifted(attention.qkv, attention.norm.bias)
        query, key, value = weights.reshape(heads, 3, -1, weights.shape[1]).transpose(0, 1).flatten(1, 2)
        query_bias, _, value_bias = biases.reshape(heads, 3, -1).transpose(0, 1).flatten(1, 2)
        constants = {
            "query": query * attention.scale,
            "query_bias": query_bias * attention.scale,
            "key": key,
            "value": value,
            "bias": _shifted(attention.proj, value_bias),
            "offsets": attention.attention_biases[:, attention.attention_bias_idxs],
        }
        for name, tensor in constants.items():
            self.register_buffer(name, tensor.contiguous(), persistent=False)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:
        """Compute the attention of (B,L,C), with the same shape."""
        rows = functional.layer_norm(x, x.shape[2:], eps=self.eps)
        padding = rows.new_zeros(1, 1, x.shape[2]).expand(x.shape[0], -1, -1)
        rows = torch.cat([rows, padding], dim=1)
        query = windows.split(functional.linear(rows, self.query, self.query_bias))
        key = windows.split(functional.linear(rows, self.key))
        value = windows.split(functional.linear(rows, self.value))
        weights = (query @ key.transpose(2, 3) + self.offsets).softmax(dim=-1)
        return functional.linear(windows.join(weights @ value, x.shape[0]), self.proj.weight, self.bias)


def _shifted(projection: nn.Linear, shift: Tensor) -> Tensor:
    """Return the bias of a projection whose inputs are shifted.

    The sum is computed in FP64, so that it does not depend on a library's order of additions.
    """
    return (projection.bias.double() + projection.weight.double() @ shift.double()).float()


@dataclass(frozen=True)
class Tiny:
    """The dimensions of a TinyViT, by stage; the first stage consists of convolutions.

    Args:
        widths: number of channels. The last must be 320: by this number, the official code identifies the stage that
            keeps the resolution of the previous stage.
    """

    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]


SIZES: Mapping[str, Tiny] = {
    "vit_t": Tiny((64, 128, 160, 320), (2, 2, 6, 2), (2, 4, 5, 10)),
    "micro": Tiny((16, 32, 32, 320), (1, 1, 1, 1), (1, 1, 1, 10)),
}
"""The image encoder of each size. "micro" is not official, but a fast size for tests with random weights."""


class MobileSamExporter(Sam1Exporter):
    """Exports MobileSAM from an official state dict.

    The name of the model's configuration is a size: "vit_t".
    """

    name = "mobilesam"
    package = mobile_sam
    encoder_graph = MobileSamEncoder

    def build(self, model: str, image_size: int) -> torch.nn.Module:
        """Build a mobile_sam.modeling.Sam as build_sam_vit_t does, which supports only one size and one image size."""
        modeling = mobile_sam.modeling
        encoder = build_tiny(modeling, self.dimensions(SIZES, model), image_size)
        return assemble(modeling, encoder, modeling.MaskDecoder, image_size)

    def randomise(self, model: Any, seed: int) -> None:
        super().randomise(model, seed)
        randomise_convolutions(model, seed, Conv2d_BN)


def build_tiny(modeling: Any, tiny: Tiny, image_size: int) -> torch.nn.Module:
    """Build a ``modeling.TinyViT`` with initial weights; ``modeling`` is as for assemble()."""
    encoder: torch.nn.Module = modeling.TinyViT(
        img_size=image_size,
        embed_dims=list(tiny.widths),
        depths=list(tiny.depths),
        num_heads=list(tiny.heads),
        window_sizes=[7, 7, 14, 7],
        drop_path_rate=0.0,
    )
    return encoder


def randomise_convolutions(model: torch.nn.Module, seed: int, kind: type[Any]) -> None:
    """Change random convolutions in place so that a comparison detects omissions in a graph.

    The statistics of batch normalisation get random values. The weights are scaled to a standard deviation of
    sqrt(2 / inputs), so that a signal keeps its size through GELU; with torch's smaller weights, embeddings hardly
    depend on the image.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, kind):
                module.c.weight.mul_((2 / module.c.weight[0].numel()) ** 0.5 / module.c.weight.std())
                module.bn.running_mean.uniform_(-0.1, 0.1, generator=generator)
                module.bn.running_var.uniform_(0.8, 1.25, generator=generator)


EXPORTER = MobileSamExporter()
