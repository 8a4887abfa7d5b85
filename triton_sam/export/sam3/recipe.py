"""SAM3 checkpoint -> `<name>_encoder` and `<name>_decoder` in a Triton model repository."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ...families.base import ModelSpec
from ...families.sam3 import Sam3
from ..pipeline import Exported, Recipe, Settings, check_settings, export_pair
from .model import checkpoint_folder, load_model

try:
    import onnx
    import torch

    from .. import onnx_tools
    from .graphs import Sam3Decoder, Sam3Encoder
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error

NO_MEMORY_PLACEMENTS = ("published", "meta")


def export_sam3(
    checkpoint: str | Path | None,
    size: str | None,
    output_dir: str | Path,
    *,
    name: str = "sam3",
    image_size: int = Sam3.image_size,
    device: str = "cpu",
    precision: str = "fp32",
    random_seed: int | None = None,
    half_storage: bool = False,
    version: int | None = None,
    progress: bool = True,
    no_memory: str = "published",
) -> Exported:
    """Export a checkpoint, check that ONNX Runtime runs it, and put the pair into a model repository.

    Both models appear at once, or neither: a failure leaves the old files as they were. Names, shapes and ranges are
    those of onnx-community/sam3-tracker-ONNX.

    Args:
        checkpoint: folder of facebook/sam3 in transformers' format, or a file inside it; None with ``random_seed``.
        size: "full" or "reduced", for random weights.
        output_dir: the model repository.
        name: variant; the models are `<name>_encoder` and `<name>_decoder`.
        image_size: 1008, which the position embeddings and the wire contract fix.
        device: torch device that traces the graphs.
        precision: "fp32", "fp16" or "int8", see triton_sam.export.pipeline.Settings.
        random_seed: seeded random weights in place of a checkpoint, for tests.
        half_storage: weights rounded to FP16 in the file, arithmetic in FP32: half the size. Only with "fp32".
        version: version folder; None: 1.
        progress: say on stderr what is going on.
        no_memory: "published": no_memory_embedding is left out, as in transformers and in the published ONNX files;
            "meta": it is added to the coarsest map, as in Meta's own code.

    Raises:
        ConfigurationError: an option that cannot work.
        CheckpointError: a checkpoint that is missing, damaged or of another model.
        ExportError: torch or ONNX Runtime refused, or the files cannot be written.
    """
    settings = Settings(
        Path(output_dir),
        name,
        image_size,
        checkpoint=None if checkpoint is None else checkpoint_folder(Path(checkpoint)),
        random_seed=random_seed,
        device=device,
        precision=precision,
        half_storage=half_storage,
        version=version,
        progress=progress,
    )
    if image_size != Sam3.image_size:
        raise ConfigurationError(f"image size {image_size}: SAM3 knows {Sam3.image_size} only")
    if no_memory not in NO_MEMORY_PLACEMENTS:
        raise ConfigurationError(f"placement {no_memory!r}: one of {', '.join(NO_MEMORY_PLACEMENTS)}")
    check_settings(settings, Sam3.image_size)
    recipe = Recipe(
        family=Sam3(),
        stride=Sam3.image_size,
        load=lambda: load_model(checkpoint, size, random_seed=random_seed),
        trace=partial(trace, add_no_memory=no_memory == "meta"),
        config="sam3_tracker" if checkpoint is not None else f"sam3_tracker_{size or 'full'}",
        metadata={"triton_sam.no_memory_embedding": no_memory},
    )
    return export_pair(recipe, settings)


def trace(model: Any, spec: ModelSpec, add_no_memory: bool = False) -> onnx.ModelProto:
    """Trace one half of the pair; all batch dimensions are free from the start.

    Raises:
        ExportError: torch cannot export it.
    """
    if spec.role == "encoder":
        return _trace_encoder(Sam3Encoder(model, add_no_memory), model.device)
    return _trace_decoder(Sam3Decoder(model), model.device)


def _trace_encoder(encoder: torch.nn.Module, device: torch.device) -> onnx.ModelProto:
    images = torch.export.Dim("images", min=1)
    example = torch.rand(2, 3, Sam3.image_size, Sam3.image_size, device=device)
    return onnx_tools.trace(encoder, Sam3.encoder, [example], {"pixel_values": {0: images}})


def _trace_decoder(decoder: torch.nn.Module, device: torch.device) -> onnx.ModelProto:
    images, prompts = torch.export.Dim("images", min=1), torch.export.Dim("prompts", min=1)
    points, boxes = torch.export.Dim("points", min=0), torch.export.Dim("boxes", min=0)
    # Numbers that differ from each other, so that no two dimensions are taken for one.
    sizes = {"images": 2, "prompts": 3, "points": 4, "boxes": 5}
    example, dynamic = [], {}
    for tensor in Sam3.decoder.inputs:
        shape = [sizes[side] if isinstance(side, str) else side for side in tensor.shape]
        value = torch.rand(shape, device=device)
        example.append(value.to(torch.int64) if tensor.dtype == "INT64" else value)
        free = {"images": images, "prompts": prompts, "points": points, "boxes": boxes}
        dynamic[tensor.name] = {axis: free[side] for axis, side in enumerate(tensor.shape) if isinstance(side, str)}
    return onnx_tools.trace(decoder, Sam3.decoder, example, dynamic)
