"""The exporter of EdgeTAM: it builds the model and traces its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...families.edgetam import EdgeTam
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..settings import Settings
from .model import build_model, choose_size, load_model
from .reference import EdgeTamReference

try:
    import onnx
    import torch

    from .. import onnx_tools
    from ..point_graphs import trace_decoder
    from .graphs import EdgeTamDecoder, EdgeTamEncoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error


class EdgeTamExporter(Exporter):
    """Exports EdgeTAM's image half from Meta's checkpoint or from a folder in transformers' layout.

    The name of the model's configuration is a size: "repvit_m1".
    """

    name = "edgetam"
    stride = 32  # that of the coarsest feature map of the backbone
    counting_device = "cpu"  # timm reads numbers from tensors while it builds the backbone

    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """See Exporter.load."""
        return load_model(checkpoint, model, image_size=image_size, random_seed=random_seed)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:  # noqa: ARG002
        """See Exporter.trace."""
        side = model.prompt_encoder.input_image_size
        if spec.role == ENCODER:
            example = torch.rand(2, 3, side, side)
            images = {"image": {0: torch.export.Dim("images", min=1)}}
            return onnx_tools.trace(EdgeTamEncoder(model), EdgeTam.encoder, [example], images)
        shapes = ((256, 16), (32, 4), (64, 8))
        embeddings = [torch.rand(1, channels, side // stride, side // stride) for channels, stride in shapes]
        return trace_decoder(EdgeTamDecoder(model), EdgeTam.decoder, embeddings, side)

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return f"edgetam_{choose_size(settings.model)}"

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return build_model(model)

    def reference(self, model: Any) -> EdgeTamReference:
        """See Exporter.reference."""
        return EdgeTamReference(model)


EXPORTER = EdgeTamExporter()
