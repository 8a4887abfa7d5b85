"""The exporter of MobileSAM: SAM1's, with another encoder, from the `mobile_sam` package."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..._common.extras import missing
from ..sam1.recipe import Sam1Exporter, assemble

try:
    import torch

    with warnings.catch_warnings():  # the package imports timm's modules by their old names
        warnings.simplefilter("ignore")
        import mobile_sam
        from mobile_sam.modeling.tiny_vit_sam import Conv2d_BN

    from .graphs import MobileSamEncoder
except ImportError as error:
    raise missing("exporting and verifying MobileSAM needs", "export", error, "export,local") from error


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
