"""The exporter of SAM1: it builds the model and traces its two graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..._common.extras import missing
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..settings import Settings
from .everything_reference import Sam1EverythingReference
from .model import build_model, choose_size, load_model
from .reference import Sam1Reference

try:
    import onnx
    import torch

    from .. import tracing
    from ..point_graphs import trace_decoder
    from .graphs import Sam1Decoder, Sam1Encoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error

STRIDE = 16
"""The image size must be a multiple of this number of pixels, which is the stride of the feature map."""


class Sam1Exporter(Exporter):
    """Exports SAM1 from an official state dict.

    The name of the model's configuration is a size, for example "vit_b".
    """

    name = "sam1"
    stride = STRIDE
    encoder_graph: ClassVar[type[torch.nn.Module]] = Sam1Encoder
    """The module that is traced as the encoder; it takes the official model."""
    decoder_graph: ClassVar[type[torch.nn.Module]] = Sam1Decoder
    """The module that is traced as the decoder; it takes the official model."""

    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """See Exporter.load."""
        return load_model(checkpoint, model, image_size=image_size, random_seed=random_seed)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:  # noqa: ARG002
        """See Exporter.trace."""
        if spec.role == ENCODER:
            return _trace_encoder(self.encoder_graph, model, spec)
        return _trace_decoder(self.decoder_graph, model, spec)

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return f"sam1_{choose_size(settings.checkpoint, settings.model)}"

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return build_model(model)

    def reference(self, model: Any) -> Sam1Reference:
        """See Exporter.reference."""
        return Sam1Reference(model)

    def everything_reference(self, model: Any) -> Sam1EverythingReference:
        """See Exporter.everything_reference."""
        return Sam1EverythingReference(model)


def _trace_encoder(graph: type[torch.nn.Module], model: Any, spec: ModelSpec) -> onnx.ModelProto:
    images = torch.export.Dim("images", min=1)
    side = model.image_encoder.img_size
    example = torch.rand(2, 3, side, side, device=model.device)
    return tracing.trace(graph(model), spec, [example], {"image": {0: images}})


def _trace_decoder(graph: type[torch.nn.Module], model: Any, spec: ModelSpec) -> onnx.ModelProto:
    maps = [tensor.shape[1:] for tensor in spec.inputs if tensor.shape[0] == "images"]
    embeddings = [torch.rand(1, *map(int, shape), device=model.device) for shape in maps]
    return trace_decoder(graph(model), spec, embeddings, model.image_encoder.img_size)


EXPORTER = Sam1Exporter()
