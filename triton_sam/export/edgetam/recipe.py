"""The exporter of EdgeTAM: it builds the model and traces its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.edgetam import EDGETAM
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..reference import VideoReference
from ..settings import Settings
from .model import build_image_model, choose_size, has_video, image_model, load_model
from .reference import EdgeTamReference

try:
    import onnx
    import torch

    from .. import tracing
    from ..point_graphs import trace_decoder
    from ..sam2.video_graphs import trace_video
    from .graphs import EdgeTamDecoder, EdgeTamEncoder
    from .sam2_modules import sam2_of
    from .video_graphs import GRAPHS
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error

VIDEO_STRIDE = 256
"""With --video, the image size must be a multiple of this number of pixels, since a memory has 16 x 16 equal parts."""


class EdgeTamExporter(Exporter):
    """Exports EdgeTAM from Meta's checkpoint or from a folder in transformers' layout.

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
        if spec.role not in EDGETAM.models:
            return trace_video(sam2_of(model), spec, graphs=GRAPHS)
        side = model.prompt_encoder.input_image_size
        if spec.role == ENCODER:
            example = torch.rand(2, 3, side, side)
            images = {"image": {0: torch.export.Dim("images", min=1)}}
            return tracing.trace(EdgeTamEncoder(model), EDGETAM.encoder, [example], images)
        shapes = ((256, 16), (32, 4), (64, 8))
        embeddings = [torch.rand(1, channels, side // stride, side // stride) for channels, stride in shapes]
        return trace_decoder(EdgeTamDecoder(sam2_of(model)), EDGETAM.decoder, embeddings, side)

    def check(self, model: Any, settings: Settings) -> None:
        """See Exporter.check."""
        if settings.video and not has_video(model):
            raise ConfigurationError("the checkpoint has no weights for videos: leave --video out")

    def prepare(self, settings: Settings) -> Settings:
        """See Exporter.prepare."""
        settings = super().prepare(settings)
        if settings.video and settings.side % VIDEO_STRIDE:
            raise ConfigurationError(f"image size {settings.side}: for videos, it must be a multiple of {VIDEO_STRIDE}")
        return settings

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return f"edgetam_{choose_size(settings.model)}"

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return build_image_model(model)

    def reference(self, model: Any) -> EdgeTamReference:
        """See Exporter.reference."""
        return EdgeTamReference(image_model(model))

    def video_reference(self, model: Any, frames: Sequence[npt.NDArray[np.uint8]]) -> VideoReference:
        """See Exporter.video_reference."""
        from .video_reference import EdgeTamVideoReference

        return EdgeTamVideoReference(model, frames)


EXPORTER = EdgeTamExporter()
