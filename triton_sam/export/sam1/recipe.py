"""SAM1 checkpoint -> `<name>_encoder` and `<name>_decoder` in a Triton model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...families.base import ModelSpec
from ...families.sam1 import Sam1
from ..pipeline import Exported, Recipe, Settings, check_settings, export_pair
from .model import choose_size, load_model

try:
    import onnx
    import torch

    from .. import onnx_tools
    from .graphs import Sam1Decoder, Sam1Encoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error

STRIDE = 16
"""An image side must be a multiple of it: the feature map has one pixel for 16."""


def export_sam1(
    checkpoint: str | Path | None,
    model_type: str | None,
    output_dir: str | Path,
    *,
    name: str = "sam1",
    image_size: int = 1024,
    device: str = "cpu",
    precision: str = "fp32",
    random_seed: int | None = None,
    half_storage: bool = False,
    version: int | None = None,
    progress: bool = True,
) -> Exported:
    """Export a checkpoint, check that ONNX Runtime runs it, and put the pair into a model repository.

    Both models appear at once, or neither: a failure leaves the old files as they were.

    Args:
        checkpoint: official SAM1 state dict, or None with ``random_seed``.
        model_type: "vit_b", "vit_l" or "vit_h"; None: by the checkpoint's file name.
        output_dir: the model repository.
        name: variant; the models are `<name>_encoder` and `<name>_decoder`.
        image_size: side of the square that the encoder sees, pixels, a multiple of 16. Clients send 1024.
        device: torch device that traces the graphs.
        precision: "fp32", "fp16" or "int8", see triton_sam.export.pipeline.Settings.
        random_seed: seeded random weights in place of a checkpoint, for tests.
        half_storage: weights rounded to FP16 in the file, arithmetic in FP32: half the size. Only with "fp32".
        version: version folder; None: 1.
        progress: say on stderr what is going on.

    Raises:
        ConfigurationError: an option that cannot work.
        CheckpointError: a checkpoint that is missing, damaged or of another size.
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
        family=Sam1(),
        stride=STRIDE,
        load=lambda: load_model(checkpoint, model_type, image_size=image_size, random_seed=random_seed),
        trace=trace,
        config=f"sam1_{choose_size(checkpoint, model_type)}",
    )
    return export_pair(recipe, settings)


def trace(model: Any, spec: ModelSpec) -> onnx.ModelProto:
    """Trace one half of the pair.

    Raises:
        ExportError: torch cannot export it.
    """
    return _trace_encoder(model) if spec.role == "encoder" else _trace_decoder(model)


def _trace_encoder(model: Any) -> onnx.ModelProto:
    images = torch.export.Dim("images", min=1)
    side = model.image_encoder.img_size
    example = torch.rand(2, 3, side, side, device=model.device)
    return onnx_tools.trace(Sam1Encoder(model), Sam1.encoder, [example], {"image": {0: images}})


def _trace_decoder(model: Any) -> onnx.ModelProto:
    """Trace with an image batch and a mask batch of 1, which is broadcast, and free both afterwards."""
    prompts, points = torch.export.Dim("prompts", min=1), torch.export.Dim("points", min=0)
    side, device = model.image_encoder.img_size, model.device
    example = [
        torch.rand(1, 256, side // STRIDE, side // STRIDE, device=device),
        torch.rand(2, 3, 2, device=device) * side,
        torch.ones(2, 3, device=device),
        torch.zeros(1, 1, side // 4, side // 4, device=device),
        torch.zeros(1, device=device),
    ]
    free = {0: prompts, 1: points}
    graph = onnx_tools.trace(Sam1Decoder(model), Sam1.decoder, example, {"point_coords": free, "point_labels": free})
    onnx_tools.free_batch(graph)
    return graph
