"""The exporter of MobileSAM: SAM1's, with another encoder."""

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

    from .graphs import MobileSamEncoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error


class MobileSamReference(Sam1Reference):
    """Reference that runs mobile_sam.SamPredictor."""

    family_name = "mobilesam"
    package = "mobile_sam"


class MobileSamEverythingReference(Sam1EverythingReference):
    """Reference that runs mobile_sam.SamAutomaticMaskGenerator."""

    package = "mobile_sam"


class MobileSamExporter(Sam1Exporter):
    """Exports MobileSAM from an official state dict.

    The name of the model's configuration is a size: "vit_t".
    """

    name = "mobilesam"
    encoder_graph = MobileSamEncoder
    counting_device = "cpu"  # the official code reads numbers from tensors while it builds the encoder

    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """See Exporter.load."""
        return load_model(checkpoint, model, image_size=image_size, random_seed=random_seed)

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return f"mobilesam_{choose_size(settings.model)}"

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return build_model(model)

    def reference(self, model: Any) -> MobileSamReference:
        """See Exporter.reference."""
        return MobileSamReference(model)

    def everything_reference(self, model: Any) -> MobileSamEverythingReference:
        """See Exporter.everything_reference."""
        return MobileSamEverythingReference(model)


EXPORTER = MobileSamExporter()
