"""SAM2.1 checkpoint -> `<name>_encoder` and `<name>_decoder` in a Triton model repository."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.sam2 import Sam2
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..settings import Settings
from . import model as sam2_model
from .reference import Sam2Reference

try:
    import onnx
    import torch

    from .. import onnx_tools
    from . import attention
    from .graphs import Sam2Decoder, Sam2Encoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error

STRIDE = 32
"""An image side must be a multiple of it: the coarsest feature map has one pixel for 32."""


class Sam2Exporter(Exporter):
    """Exports SAM2.1 from a state dict.

    The model's configuration is a name inside the sam2 package, one of our own, or a path. The option
    ``standard_operators`` leaves out ONNX Runtime's own attention, which encodes faster, for TensorRT and others.
    """

    name = "sam2"
    stride = STRIDE
    counting_device = "cpu"  # SAM2's backbone reads numbers off tensors while it is built

    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """See Exporter.load."""
        return load_model(checkpoint, model, image_size=image_size, random_seed=random_seed)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:
        """See Exporter.trace."""
        return trace(model, spec, bool(options.get("standard_operators")))

    def config(self, settings: Settings) -> str:
        """See Exporter.config."""
        return sam2_model.find_config(_config(settings.checkpoint, settings.model)).stem

    def build(self, model: str) -> torch.nn.Module:
        """See Exporter.build."""
        return sam2_model.build_model(model)

    def reference(self, model: Any) -> Sam2Reference:
        """See Exporter.reference."""
        return Sam2Reference(model)


def load_model(
    checkpoint: str | Path | None,
    model_cfg: str | Path | None,
    *,
    image_size: int = 1024,
    random_seed: int | None = None,
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Raises:
        ConfigurationError: neither or both of checkpoint and random_seed, or no usable configuration.
        CheckpointError: a checkpoint that is missing, damaged or of another configuration.
    """
    if (checkpoint is None) == (random_seed is None):
        raise ConfigurationError("give a checkpoint, or ask for random weights")
    config = _config(checkpoint, model_cfg)
    # Layers draw their first weights from torch's global generator: seeded here, and put back for the caller.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed or 0)
        model = sam2_model.build_model(config, image_size)
    if checkpoint is not None:
        sam2_model.load_checkpoint(model, checkpoint)
    else:
        sam2_model.randomise(model, random_seed or 0)
    if not getattr(model, "use_high_res_features_in_sam", False):
        raise ConfigurationError(f"{config} describes a SAM2 model without high-resolution features: not served here")
    return model.requires_grad_(False)


def trace(model: Any, spec: ModelSpec, standard_operators: bool = False) -> onnx.ModelProto:
    """Trace one half of the pair.

    Raises:
        ExportError: torch cannot export it.
    """
    return _trace_encoder(model, standard_operators) if spec.role == ENCODER else _trace_decoder(model)


def _trace_encoder(model: Any, standard_operators: bool) -> onnx.ModelProto:
    images = torch.export.Dim("images", min=1)
    example = torch.rand(2, 3, model.image_size, model.image_size, device=model.device)
    with contextlib.nullcontext() if standard_operators else attention.one_node_each(model):
        return onnx_tools.trace(Sam2Encoder(model), Sam2.encoder, [example], {"image": {0: images}})


def _trace_decoder(model: Any) -> onnx.ModelProto:
    """Trace with an image batch and a mask batch of 1, which is broadcast, and free both afterwards."""
    prompts, points = torch.export.Dim("prompts", min=1), torch.export.Dim("points", min=0)
    side, device = model.image_size, model.device
    embeddings = [
        torch.rand(1, tensor.shape[1], side // stride, side // stride, device=device)  # type: ignore[arg-type]
        for tensor, stride in zip(Sam2.encoder.outputs, (16, 4, 8), strict=True)
    ]
    example = [
        *embeddings,
        torch.rand(2, 3, 2, device=device) * side,
        torch.ones(2, 3, device=device),
        torch.zeros(1, 1, side // 4, side // 4, device=device),
        torch.zeros(1, device=device),
    ]
    free = {0: prompts, 1: points}
    graph = onnx_tools.trace(Sam2Decoder(model), Sam2.decoder, example, {"point_coords": free, "point_labels": free})
    onnx_tools.free_batch(graph)
    return graph


def _config(checkpoint: str | Path | None, model_cfg: str | Path | None) -> str | Path:
    if model_cfg is not None:
        return model_cfg
    if checkpoint is None:
        raise ConfigurationError("random weights need --size or --model-cfg")
    return sam2_model.guess_config(Path(checkpoint))


EXPORTER = Sam2Exporter()
