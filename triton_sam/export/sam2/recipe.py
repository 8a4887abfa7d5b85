"""SAM2.1 checkpoint -> `<name>_encoder` and `<name>_decoder` in a Triton model repository."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.base import ModelSpec
from ...families.sam2 import Sam2
from ..pipeline import Exported, Recipe, Settings, check_settings, export_pair
from . import model as sam2_model

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


def export_sam2(
    checkpoint: str | Path | None,
    model_cfg: str | Path | None,
    output_dir: str | Path,
    *,
    name: str = "sam2",
    image_size: int = 1024,
    device: str = "cpu",
    precision: str = "fp32",
    random_seed: int | None = None,
    half_storage: bool = False,
    standard_operators: bool = False,
    version: int | None = None,
    progress: bool = True,
) -> Exported:
    """Export a checkpoint, check that ONNX Runtime runs it, and put the pair into a model repository.

    Both models appear at once, or neither: a failure leaves the old files as they were.

    Args:
        checkpoint: SAM2.1 state dict, or None with ``random_seed``.
        model_cfg: configuration by name inside the sam2 package, one of our own, or a path; None: by the checkpoint's
            file name.
        output_dir: the model repository.
        name: variant; the models are `<name>_encoder` and `<name>_decoder`.
        image_size: side of the square that the encoder sees, pixels, a multiple of 32. Clients send 1024.
        device: torch device that traces the graphs.
        precision: "fp32", "fp16" or "int8", see triton_sam.export.pipeline.Settings.
        random_seed: seeded random weights in place of a checkpoint, for tests.
        half_storage: weights rounded to FP16 in the file, arithmetic in FP32: half the size. Only with "fp32".
        standard_operators: operators of the ONNX standard alone, for TensorRT and other runtimes than ONNX Runtime,
            whose own attention encodes faster.
        version: version folder; None: see triton_sam.export.pipeline.Settings.
        progress: say on stderr what is going on.

    Raises:
        ConfigurationError: an option that cannot work.
        CheckpointError: a checkpoint that is missing, damaged or of another configuration.
        ExportError: torch or ONNX Runtime refused, or the files cannot be written.
    """
    settings = Settings(
        Path(output_dir),
        name,
        image_size,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        random_seed=random_seed,
        device=device,
        precision=precision,
        half_storage=half_storage,
        version=version,
        progress=progress,
    )
    check_settings(settings, STRIDE)
    recipe = Recipe(
        family=Sam2(),
        stride=STRIDE,
        load=lambda: load_model(checkpoint, model_cfg, image_size=image_size, random_seed=random_seed),
        trace=partial(trace, standard_operators=standard_operators),
        config=sam2_model.find_config(_config(checkpoint, model_cfg)).stem,
    )
    return export_pair(recipe, settings)


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
    return _trace_encoder(model, standard_operators) if spec.role == "encoder" else _trace_decoder(model)


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
        raise ConfigurationError("random weights need --model-cfg")
    return sam2_model.guess_config(Path(checkpoint))
