"""What every family's export does around its own graphs: options, staging, checks, config.pbtxt, all or nothing."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from .._common.extras import missing
from .._common.progress import Progress
from ..errors import ConfigurationError, ExportError
from ..families.base import Family
from ..families.tables import ENCODER, ModelSpec
from ..repository.config import config_for
from ..repository.install import install, not_served, staging, write_flushed
from ..repository.names import CONFIG_NAME
from ..repository.onnx_header import read_metadata
from .exporter import Exporter
from .settings import Settings

try:
    import onnx
    import torch

    from . import onnx_tools, rewrites
    from . import precision as precisions
except ImportError as error:
    raise missing("exporting needs", "export", error, "export,local") from error


_HASH = "triton_sam.checkpoint_sha256"


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Args:
        files: model files by role, as they lie in the repository now.
        version: version folder that holds them.
        metadata: the `triton_sam.*` keys that all ONNX files carry.
    """

    files: dict[str, Path]
    version: int
    metadata: dict[str, str]


def export_models(exporter: Exporter, settings: Settings) -> Exported:
    """Export all models of a family, check that ONNX Runtime runs them, and put them into a model repository.

    All models appear at once, or none: a failure leaves the old files as they were.

    Args:
        exporter: the family's.
        settings: the caller's choices.

    Raises:
        ConfigurationError: an option that cannot work.
        CheckpointError: a checkpoint that is missing, damaged or of another model.
        ExportError: torch or ONNX Runtime refused, or the files cannot be written.
    """
    family = exporter.family
    settings = exporter.prepare(settings.complete(family))
    repository = settings.output_dir
    tell = Progress(settings.variant, settings.progress)
    metadata = _metadata(exporter, settings)
    with tell.step("building the model"):
        loaded = exporter.load(
            settings.checkpoint, settings.model, image_size=settings.side, random_seed=settings.random_seed
        )
        model = _to_device(loaded, settings.device)
    metadata.update(_origin(settings))
    chosen = settings.version if settings.version is not None else _choose_version(family, settings, metadata)
    folders = {role: repository / family.model_name(role, settings.variant) for role in family.models}
    try:
        with contextlib.ExitStack() as stack:
            moves: list[tuple[Path, Path]] = []
            for role, spec in family.models.items():
                folder = folders[role]
                workspace = stack.enter_context(staging(folder))
                with tell.step(f"exporting the {_spoken(role)}"):
                    traced = exporter.trace(model, spec, settings.options)
                    graph = finish_graph(traced, spec, settings.precision, settings.half_storage)
                    onnx_tools.set_metadata(graph, metadata)
                    files = onnx_tools.save(graph, workspace / spec.filename)
                with tell.step(f"checking the {_spoken(role)}"):
                    onnx_tools.try_out(workspace / spec.filename)
                    text = config_for(graph, folder.name, spec.filename)
                moves += [(file, folder / str(chosen) / file.name) for file in files]
                moves += _config_move(text, workspace, folder)
                del graph, traced
            install(moves, repository)
    except OSError as error:
        raise ExportError(f"cannot write {repository}: {error.strerror or error}; nothing was changed") from error
    models = {role: folders[role] / str(chosen) / spec.filename for role, spec in family.models.items()}
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
    elif precision == "int8" and spec.role == ENCODER:
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


def _spoken(role: str) -> str:
    return role.replace("_", " ")


def _metadata(exporter: Exporter, settings: Settings) -> dict[str, str]:
    """Return what the ONNX file says about its model; `triton-sam models` shows it."""
    return {
        "triton_sam.family": exporter.family.name,
        "triton_sam.version": __version__,
        "triton_sam.config": exporter.config(settings),
        "triton_sam.image_size": str(settings.image_size),
        "triton_sam.precision": settings.precision,
        "triton_sam.storage": "fp16" if settings.half_storage else settings.precision,
        "triton_sam.checkpoint": f"random seed {settings.random_seed}",
        **exporter.metadata(settings),
    }


def _origin(settings: Settings) -> dict[str, str]:
    """Return the metadata of the checkpoint; nothing for random weights."""
    if settings.checkpoint is None:
        return {}
    digest = {_HASH: _sha256(settings.checkpoint)} if settings.checkpoint.is_file() else {}
    return {"triton_sam.checkpoint": settings.checkpoint.stem, **digest}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _choose_version(family: Family, settings: Settings, metadata: Mapping[str, str]) -> int:
    """1, but 2 where version 1 is the built-in micro model, which is committed and stays: Triton serves the newest.

    The same checkpoint once more replaces it, other weights do so on demand alone, whatever their size.
    """
    folder = family.model_name(ENCODER, settings.variant)
    try:
        present = read_metadata(settings.output_dir / folder / "1" / family.encoder.filename)
    except (OSError, ValueError):  # nothing there, or nothing worth keeping
        return 1
    built_in = bool(family.built_in) and present.get("triton_sam.checkpoint") == family.built_in
    return 2 if built_in and present.get(_HASH, "") != metadata.get(_HASH) else 1


def _config_move(text: str, workspace: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Write config.pbtxt for installing, unless the folder has the same text already."""
    place = folder / CONFIG_NAME
    if place.is_file() and place.read_text("utf-8", errors="replace") == text:
        return []
    write_flushed(workspace / CONFIG_NAME, text)
    return [(workspace / CONFIG_NAME, place)]
