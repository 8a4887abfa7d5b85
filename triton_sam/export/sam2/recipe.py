"""The exporter of SAM2.1: it builds the model and traces its graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.sam2 import SAM2
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..reference import VideoReference
from ..settings import Settings
from . import model as sam2_model
from .everything_reference import Sam2EverythingReference
from .reference import Sam2Reference

try:
    import onnx
    import torch

    from .. import tracing
    from ..point_graphs import trace_decoder
    from ..weights import seeded
    from . import attention
    from .graphs import Sam2Decoder, Sam2Encoder
    from .video_graphs import check_video_model, trace_video
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error

STRIDE = 32
"""The image size must be a multiple of this number of pixels, which is the stride of the coarsest feature map."""


class Sam2Exporter(Exporter):
    """Exports SAM2.1 from a state dict.

    The name of the model's configuration is one that find_config() accepts. By default, the encoder uses ONNX Runtime's
    own attention operator, because it is faster. The option ``standard_operators`` replaces it by operators of the ONNX
    standard, for TensorRT and other runtimes.
    """

    name = "sam2"
    stride = STRIDE
    counting_device = "cpu"  # the constructor of SAM2's backbone reads values of tensors, and "meta" tensors have none

    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """See Exporter.load."""
        return load_model(checkpoint, model, image_size=image_size, random_seed=random_seed)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:
        """See Exporter.trace."""
        return trace(model, spec, bool(options.get("standard_operators")))

    def check(self, model: Any, settings: Settings) -> None:
        """See Exporter.check."""
        if settings.video:
            check_video_model(model)

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return sam2_model.find_config(_config(settings.checkpoint, settings.model)).stem

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return sam2_model.build_model(model)

    def reference(self, model: Any) -> Sam2Reference:
        """See Exporter.reference."""
        return Sam2Reference(model)

    def video_reference(self, model: Any, frames: Sequence[npt.NDArray[np.uint8]]) -> VideoReference:
        """See Exporter.video_reference."""
        from .video_reference import Sam2VideoReference

        return Sam2VideoReference(model, frames)

    def everything_reference(self, model: Any) -> Sam2EverythingReference:
        """See Exporter.everything_reference."""
        return Sam2EverythingReference(model)


def load_model(
    checkpoint: str | Path | None,
    model_cfg: str | Path | None,
    *,
    image_size: int = 1024,
    random_seed: int | None = None,
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Args:
        checkpoint: file with the official state dict; None for random weights.
        model_cfg: see find_config(); None: chosen by the file name of the checkpoint.
        image_size: side of the square image that the encoder takes, in pixels; a multiple of 32.
        random_seed: seed of random weights; None with a checkpoint.

    Raises:
        ConfigurationError: checkpoint and random_seed are both given or both None, or the configuration is not usable.
        CheckpointError: the checkpoint is missing or damaged, or belongs to another configuration.
    """
    if (checkpoint is None) == (random_seed is None):
        raise ConfigurationError("give either a checkpoint or the seed of random weights")
    config = _config(checkpoint, model_cfg)
    model = seeded(lambda: sam2_model.build_model(config, image_size), random_seed)
    if checkpoint is not None:
        sam2_model.load_checkpoint(model, checkpoint)
    else:
        sam2_model.randomise(model, random_seed or 0)
    if not getattr(model, "use_high_res_features_in_sam", False):
        raise ConfigurationError(
            f"{config} describes a SAM2 model without high-resolution features, which is not supported"
        )
    return model.requires_grad_(False)


def trace(model: Any, spec: ModelSpec, standard_operators: bool = False) -> onnx.ModelProto:
    """Trace the encoder, the decoder, or one of the models for videos.

    Args:
        model: from load_model().
        spec: a row of SAM2.models, or of SAM2.tracking for the model's image size.
        standard_operators: use only operators of the ONNX standard.

    Raises:
        ExportError: torch cannot export the model.
        ConfigurationError: the model follows objects in another way than the official ones.
    """
    if spec.role in SAM2.models:
        return _trace_encoder(model, standard_operators) if spec.role == ENCODER else _trace_decoder(model)
    return trace_video(model, spec, standard_operators)


def _trace_encoder(model: Any, standard_operators: bool) -> onnx.ModelProto:
    images = torch.export.Dim("images", min=1)
    example = torch.rand(2, 3, model.image_size, model.image_size, device=model.device)
    with contextlib.nullcontext() if standard_operators else attention.fused_attention(model):
        return tracing.trace(Sam2Encoder(model), SAM2.encoder, [example], {"image": {0: images}})


def _trace_decoder(model: Any) -> onnx.ModelProto:
    side = model.image_size
    embeddings = [
        torch.rand(1, tensor.shape[1], side // stride, side // stride, device=model.device)  # type: ignore[arg-type]
        for tensor, stride in zip(SAM2.encoder.outputs, (16, 4, 8), strict=True)
    ]
    return trace_decoder(Sam2Decoder(model), SAM2.decoder, embeddings, side)


def _config(checkpoint: str | Path | None, model_cfg: str | Path | None) -> str | Path:
    if model_cfg is not None:
        return model_cfg
    if checkpoint is None:
        raise ConfigurationError("random weights need --size or --model-cfg")
    return sam2_model.guess_config(Path(checkpoint))


EXPORTER = Sam2Exporter()
