"""What every family's export does around its own graphs: options, staging, checks, config.pbtxt, all or nothing."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from .._common.extras import missing
from .._common.progress import Progress
from ..errors import ConfigurationError, ExportError
from ..families.base import Family, ModelSpec
from ..repository.config import config_for
from ..repository.folder import BUILT_IN_CHECKPOINT
from ..repository.install import install, not_served, staging, write_flushed
from ..repository.names import CONFIG_NAME, check_name
from ..repository.onnx_header import read_metadata
from .options import PRECISIONS

try:
    import onnx
    import torch

    from . import onnx_tools, rewrites
    from . import precision as precisions
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error


_HASH = "triton_sam.checkpoint_sha256"


@dataclass(frozen=True)
class Recipe:
    """What a family brings along.

    Args:
        family: names, shapes and file names of the pair.
        stride: the image side must be a multiple of it.
        load: builds the official model with its weights on the CPU.
        trace: traces one half of the pair; names of inputs and outputs are those of the spec.
        config: name of the model's configuration, for the metadata.
        metadata: further `triton_sam.*` keys.
    """

    family: Family
    stride: int
    load: Callable[[], torch.nn.Module]
    trace: Callable[[Any, ModelSpec], onnx.ModelProto]
    config: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What the caller of an export may choose, whatever the family.

    Args:
        output_dir: the model repository.
        name: variant; the models are `<name>_encoder` and `<name>_decoder`.
        image_size: side of the square that the encoder sees, pixels.
        checkpoint: file or folder with the weights, for the metadata; None for random ones.
        random_seed: seed of random weights, for the metadata.
        device: torch device that traces the graphs.
        precision: "fp32"; "fp16": FP16 weights and arithmetic for GPUs, FP32 inputs and outputs; "int8": dynamic
            quantisation of the encoder's matrix products, for CPUs, the decoder stays FP32.
        half_storage: weights rounded to FP16 in the file, arithmetic in FP32: half the size. Only with "fp32".
        version: version folder; None: 1, or 2 where version 1 is the built-in micro model and this is another one.
        progress: say on stderr what is going on.
    """

    output_dir: Path
    name: str
    image_size: int
    checkpoint: Path | None = None
    random_seed: int | None = None
    device: str = "cpu"
    precision: str = "fp32"
    half_storage: bool = False
    version: int | None = None
    progress: bool = True


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Args:
        files: model files by role, as they lie in the repository now.
        version: version folder that holds them.
        metadata: the `triton_sam.*` keys that both ONNX files carry.
    """

    files: dict[str, Path]
    version: int
    metadata: dict[str, str]


def check_settings(settings: Settings, stride: int) -> None:
    """Refuse what cannot work, before anything is built.

    Raises:
        ConfigurationError: an option that cannot work.
    """
    check_name(settings.name)
    if settings.image_size < stride or settings.image_size % stride:
        raise ConfigurationError(f"image size {settings.image_size}: it must be a positive multiple of {stride}")
    if settings.precision not in PRECISIONS:
        raise ConfigurationError(f"precision {settings.precision!r}: one of {', '.join(PRECISIONS)}")
    if settings.half_storage and settings.precision != "fp32":
        raise ConfigurationError("half storage is for precision fp32: the others store small weights anyway")
    if settings.version is not None and settings.version < 1:
        raise ConfigurationError(f"version {settings.version}: Triton counts versions from 1")
    if (settings.checkpoint is None) == (settings.random_seed is None):
        raise ConfigurationError("give a checkpoint, or ask for random weights")


def export_pair(recipe: Recipe, settings: Settings) -> Exported:
    """Export a pair, check that ONNX Runtime runs it, and put it into a model repository.

    Both models appear at once, or neither: a failure leaves the old files as they were.

    Raises:
        ConfigurationError: an option that cannot work.
        CheckpointError: a checkpoint that is missing, damaged or of another model.
        ExportError: torch or ONNX Runtime refused, or the files cannot be written.
    """
    check_settings(settings, recipe.stride)
    tell = Progress(settings.name, settings.progress)
    with tell.step("building the model"):
        model = _to_device(recipe.load(), settings.device)
    metadata = _metadata(recipe, settings)
    repository = settings.output_dir
    chosen = settings.version if settings.version is not None else _choose_version(recipe, settings, metadata)
    specs = (recipe.family.encoder, recipe.family.decoder)
    folders = {spec.role: repository / recipe.family.model_name(spec.role, settings.name) for spec in specs}
    try:
        with contextlib.ExitStack() as stack:
            moves: list[tuple[Path, Path]] = []
            for spec in specs:
                folder = folders[spec.role]
                workspace = stack.enter_context(staging(folder))
                with tell.step(f"exporting the {spec.role}"):
                    graph = finish_graph(recipe.trace(model, spec), spec, settings.precision, settings.half_storage)
                    onnx_tools.set_metadata(graph, metadata)
                    files = onnx_tools.save(graph, workspace / spec.filename)
                with tell.step(f"checking the {spec.role}"):
                    onnx_tools.try_out(workspace / spec.filename)
                    text = config_for(graph, folder.name, spec.filename)
                moves += [(file, folder / str(chosen) / file.name) for file in files]
                moves += _config_move(text, workspace, folder)
                del graph
            install(moves, repository)
    except OSError as error:
        raise ExportError(f"cannot write {repository}: {error.strerror or error}; nothing was changed") from error
    models: dict[str, Path] = {spec.role: folders[spec.role] / str(chosen) / spec.filename for spec in specs}
    for path in models.values():
        tell.line(f"{path} ({_size(path):.1f} MB)")
    if warning := not_served(folders.values(), chosen):
        tell.line(warning)
    return Exported(models, chosen, metadata)


def finish_graph(graph: onnx.ModelProto, spec: ModelSpec, precision: str, half_storage: bool) -> onnx.ModelProto:
    """Bring a traced graph to the wire contract and to its precision.

    Raises:
        ExportError: the graph does not keep the contract, or cannot be quantised.
    """
    onnx_tools.strip(graph)
    rewrites.ease_gelu(graph)
    onnx_tools.label_dimensions(graph, spec)
    if precision == "fp16":
        graph = precisions.to_half(graph)
    elif precision == "int8" and spec.role == "encoder":
        graph = precisions.quantise(graph)
    elif half_storage:
        onnx_tools.store_half(graph)
    onnx_tools.add_defaults(graph, spec)
    return graph


def _size(graph: Path) -> float:
    """Return the size of a graph with the weights beside it, MB."""
    return sum(file.stat().st_size for file in graph.parent.glob(f"{graph.name}*")) / 1e6


def _to_device(model: torch.nn.Module, device: str) -> torch.nn.Module:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"torch cannot use the device {device!r}: {reason}") from error


def _metadata(recipe: Recipe, settings: Settings) -> dict[str, str]:
    """Say in the ONNX file what it was made from; `triton-sam models` shows it."""
    metadata = {
        "triton_sam.family": recipe.family.name,
        "triton_sam.version": __version__,
        "triton_sam.config": recipe.config,
        "triton_sam.image_size": str(settings.image_size),
        "triton_sam.precision": settings.precision,
        "triton_sam.storage": "fp16" if settings.half_storage else settings.precision,
        "triton_sam.checkpoint": f"random seed {settings.random_seed}",
        **recipe.metadata,
    }
    if settings.checkpoint is not None:
        metadata["triton_sam.checkpoint"] = settings.checkpoint.stem
        if settings.checkpoint.is_file():
            metadata[_HASH] = _sha256(settings.checkpoint)
    return metadata


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _choose_version(recipe: Recipe, settings: Settings, metadata: Mapping[str, str]) -> int:
    """1, but 2 where version 1 is the built-in micro model, which is committed and stays: Triton serves the newest.

    The same checkpoint once more replaces it, other weights do so on demand alone, whatever their size.
    """
    folder = recipe.family.model_name("encoder", settings.name)
    try:
        present = read_metadata(settings.output_dir / folder / "1" / recipe.family.encoder.filename)
    except (OSError, ValueError):  # nothing there, or nothing worth keeping
        return 1
    built_in = present.get("triton_sam.checkpoint") == BUILT_IN_CHECKPOINT
    return 2 if built_in and present.get(_HASH, "") != metadata.get(_HASH) else 1


def _config_move(text: str, workspace: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Write config.pbtxt for installing, unless the folder has the same text already."""
    place = folder / CONFIG_NAME
    if place.is_file() and place.read_text("utf-8", errors="replace") == text:
        return []
    write_flushed(workspace / CONFIG_NAME, text)
    return [(workspace / CONFIG_NAME, place)]
