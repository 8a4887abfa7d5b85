"""The exporter of SAM-HQ: SAM1's, with other graphs, from the `segment_anything_hq` package."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..._common.extras import missing
from ..mobilesam import recipe as mobilesam
from ..sam1 import recipe as sam1

try:
    import torch

    with warnings.catch_warnings():  # the package imports timm's modules by their old names
        warnings.simplefilter("ignore")
        import segment_anything_hq
        from segment_anything_hq.modeling.tiny_vit_sam import Conv2d_BN

    from .graphs import SamHqDecoder, SamHqEncoder
except ImportError as error:
    raise missing("exporting and verifying SAM-HQ needs", "export", error, "export,local") from error

SIZES: Mapping[str, sam1.Vit | mobilesam.Tiny] = {
    "vit_tiny": mobilesam.SIZES["vit_t"],
    "vit_b": sam1.SIZES["vit_b"],
    "vit_l": sam1.SIZES["vit_l"],
    "vit_h": sam1.SIZES["vit_h"],
    "micro": mobilesam.SIZES["micro"],
    "micro_vit": sam1.Vit(64, 3, 2, (1, 2)),
}
"""The image encoder of each size. "micro" and "micro_vit" are not official, but fast sizes for tests."""


class SamHqExporter(sam1.Sam1Exporter):
    """Exports SAM-HQ from an official state dict.

    The name of the model's configuration is a size, for example "vit_tiny".
    """

    name = "samhq"
    package = segment_anything_hq
    encoder_graph = SamHqEncoder
    decoder_graph = SamHqDecoder

    def build(self, model: str, image_size: int) -> torch.nn.Module:
        """Build a segment_anything_hq.modeling.Sam as segment_anything_hq.build_sam does, for any image size."""
        modeling, chosen = segment_anything_hq.modeling, self.dimensions(SIZES, model)
        if isinstance(chosen, mobilesam.Tiny):
            encoder, channels = mobilesam.build_tiny(modeling, chosen, image_size), chosen.widths[2]
        else:
            encoder, channels = sam1.build_vit(modeling, chosen, image_size), chosen.width
        return sam1.assemble(modeling, encoder, partial(modeling.MaskDecoderHQ, vit_dim=channels), image_size)

    def randomise(self, model: Any, seed: int) -> None:
        super().randomise(model, seed)
        mobilesam.randomise_convolutions(model, seed, Conv2d_BN)


EXPORTER = SamHqExporter()
