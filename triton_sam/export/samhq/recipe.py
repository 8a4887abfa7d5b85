"""The exporter of SAM-HQ: SAM1's, with other graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ..sam1.everything_reference import Sam1EverythingReference
from ..sam1.recipe import Sam1Exporter
from ..sam1.reference import Sam1Reference
from ..settings import Settings
from .model import build_model, choose_size, load_model

try:
    import torch

    from .graphs import SamHqDecoder, SamHqEncoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error


class SamHqReference(Sam1Reference):
    """Reference that runs segment_anything_hq.SamPredictor."""

    family_name = "samhq"
    package = "segment_anything_hq"


class SamHqEverythingReference(Sam1EverythingReference):
    """Reference that runs segment_anything_hq.SamAutomaticMaskGenerator."""

    package = "segment_anything_hq"


class SamHqExporter(Sam1Exporter):
    """Exports SAM-HQ from an official state dict.

    The name of the model's configuration is a size, for example "vit_tiny".
    """

    name = "samhq"
    encoder_graph = SamHqEncoder
    decoder_graph = SamHqDecoder
    counting_device = "cpu"  # TinyViT reads numbers from tensors while it is built

    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """See Exporter.load."""
        return load_model(checkpoint, model, image_size=image_size, random_seed=random_seed)

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return f"samhq_{choose_size(settings.checkpoint, settings.model)}"

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return build_model(model)

    def reference(self, model: Any) -> SamHqReference:
        """See Exporter.reference."""
        return SamHqReference(model)

    def everything_reference(self, model: Any) -> SamHqEverythingReference:
        """See Exporter.everything_reference."""
        return SamHqEverythingReference(model)


EXPORTER = SamHqExporter()
