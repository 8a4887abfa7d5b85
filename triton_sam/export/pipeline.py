"""The export steps shared by all families.

The pipeline checks the settings, makes the exporter build and trace the models, applies the precision, checks the files
with ONNX Runtime, writes each config.pbtxt, and installs all files at once or none.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._common import strict_json
from .._common.extras import missing
from .._common.files import hash_file
from .._common.progress import Progress
from .._common.text import first_line
from ..errors import ConfigurationError, ExportError
from ..everything.parameters import METADATA_KEY, thresholds_of
from ..families import get_family
from ..families.base import Family
from ..families.tables import ENCODER, ModelSpec
from ..repository.config import CONFIG_NAME, config_for
from ..repository.folder import read_model
from ..repository.install import install, newer_version_warning, staging, text_move, write_flushed
from ..repository.onnx_header import GUARD, GUARD_KEY, read_metadata
from ..sessions.configs import Missing, missing_programs
from ..sessions.encoder_front.install import rewrite_aliases
from .exporter import Exporter
from .settings import CHECKPOINT_HASH, PRECISIONS, Settings

try:
    import onnx

    from . import guards, onnx_tools, rewrites
    from . import precision as precisions
except ImportError as error:
    raise missing("exporting needs", "local", error) from error

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Exported:
    """The result of an export. All files have the same `triton_sam.*` metadata."""

    files: dict[str, Path]
    version: int
    metadata: dict[str, str]


def export_models(exporter: Exporter, settings: Settings) -> Exported:
    """Export all models of a family, check that ONNX Runtime runs them, and install them in a model repository.

    All models appear at once, or none does: a failure leaves the old files unchanged.
    """
    settings = exporter.prepare(settings.complete(exporter.family))
    family = exporter.family.at(settings.side)
    specs = family.models_for(video=settings.video, concepts=settings.concepts)
    repository = settings.output_dir
    progress = Progress(settings.variant, settings.progress)
    metadata = _metadata(exporter, settings)
    needs_no_torch = exporter.is_proved and settings.checkpoint is not None  # random weights need the official model
    with progress.step("filling templates, without PyTorch" if needs_no_torch else "building the model"):
        model = build(exporter, settings)
    metadata.update(_checkpoint_metadata(settings))
    if thresholds := settings.thresholds or thresholds_of(metadata):
        metadata[METADATA_KEY] = strict_json.dumps(dict(thresholds))
    version = settings.version if settings.version is not None else _choose_version(family, settings, metadata)
    folders = {role: repository / family.model_name(role, settings.variant) for role in specs}
    try:
        with contextlib.ExitStack() as stack:
            moves: list[tuple[Path, Path]] = []
            workspaces = {role: stack.enter_context(staging(folder)) for role, folder in folders.items()}
            for role, spec in specs.items():
                folder, workspace = folders[role], workspaces[role]
                with progress.step(f"exporting the {_words(role)}"):
                    graph, later = _graph(exporter, model, spec, settings)
                    onnx_tools.set_metadata(graph, metadata)
                    files = onnx_tools.save(graph, workspace / spec.filename, later)
                    text = config_for(graph, folder.name, spec.filename)
                    del graph, later
                moves += [(file, folder / str(version) / file.name) for file in files]
                moves += text_move(CONFIG_NAME, text, workspace, folder)
                for name, content in exporter.companions(role, settings).items():
                    moves += text_move(name, content, workspace, folder / str(version))
            # A check needs several times the memory of a file, so the official model is freed before the first one.
            del model
            gc.collect()  # traced modules refer to each other
            tried = {} if exporter.is_proved and not _is_converted(settings) else specs
            for role, spec in tried.items():
                with progress.step(f"checking the {_words(role)}"):
                    onnx_tools.check(workspaces[role] / spec.filename)
                    onnx_tools.try_out(workspaces[role] / spec.filename)
            missing = (
                Missing()
                if settings.required_inputs
                else missing_programs(repository, family, settings.variant, video=settings.video)
            )
            moves += _program_moves(missing.files, repository, stack)
            install(moves, repository)
    except OSError as error:
        raise ExportError(f"cannot write {repository}: {error.strerror or error}; nothing was changed") from error
    models = {role: folders[role] / str(version) / spec.filename for role, spec in specs.items()}
    for path in models.values():
        progress.line(f"{path} ({_size(path):.1f} MB)")
    warnings = [
        *missing.warnings,
        *rewrite_aliases(repository, {place.parent.name for _, place in moves if place.name == CONFIG_NAME}),
        newer_version_warning(folders.values(), version),
        _session_warning(family, settings.variant, video=settings.video),
        "" if settings.video else _other_weights_warning(family, settings.variant, repository, metadata),
    ]
    for warning in filter(None, warnings):
        progress.line(warning)
    return Exported(models, version, metadata)


def build(exporter: Exporter, settings: Settings) -> Any:
    """Return the official model with all requested parts, on the device for tracing."""
    model = exporter.load(
        settings.checkpoint, settings.model, image_size=settings.side, random_seed=settings.random_seed
    )
    if settings.video:
        exporter.add_video(model, settings)
    if settings.concepts:
        exporter.add_concepts(model, settings)
    exporter.check(model, settings)
    return model if settings.device == "cpu" else _to_device(model, settings.device)


def _graph(
    exporter: Exporter, model: Any, spec: ModelSpec, settings: Settings
) -> tuple[onnx.ModelProto, onnx_tools.Later]:
    """Trace one model; return its finished graph, and the weights that are computed while it is written."""
    traced = exporter.trace(model, spec, settings.options)
    later = exporter.later(model, spec)
    if _is_converted(settings):
        onnx_tools.fill(traced, later)
        later = {}
    graph = finish_graph(
        traced, spec, settings.precision, settings.half_storage, required_inputs=settings.required_inputs
    )
    return graph, later


def _is_converted(settings: Settings) -> bool:
    """Return whether an export does not store the weights in the official precision."""
    return settings.precision != PRECISIONS[0] or settings.half_storage


def finish_graph(
    graph: onnx.ModelProto, spec: ModelSpec, precision: str, half_storage: bool, *, required_inputs: bool = False
) -> onnx.ModelProto:
    """Make a traced graph follow the wire contract, and convert it to the precision."""
    onnx_tools.strip(graph)
    rewrites.reorder_gelu(graph)
    onnx_tools.label_dimensions(graph, spec)
    if precision == "fp16":
        graph = precisions.to_half(graph)
    elif precision == "int8" and spec.role == ENCODER:
        graph = precisions.quantise(graph)
    elif half_storage:
        onnx_tools.store_half(graph)
    if not required_inputs:
        onnx_tools.add_defaults(graph, spec)
    guards.add_guard(graph, spec)
    return graph


def _size(graph: Path) -> float:
    """Return the size of an ONNX file and its external data, in MB."""
    return sum(file.stat().st_size for file in graph.parent.glob(f"{graph.name}*")) / 1e6


def _to_device(model: torch.nn.Module, device: str) -> torch.nn.Module:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(f"torch cannot use the device {device!r}: {first_line(error)}") from error


def _words(role: str) -> str:
    return role.replace("_", " ")


def _metadata(exporter: Exporter, settings: Settings) -> dict[str, str]:
    """Return the metadata of the ONNX files, for `triton-sam models`."""
    return {
        "triton_sam.family": exporter.family.name,
        GUARD_KEY: GUARD,
        "triton_sam.version": __version__,
        "triton_sam.config": exporter.config(settings),
        "triton_sam.image_size": str(settings.image_size),
        "triton_sam.precision": settings.precision,
        "triton_sam.storage": "fp16" if settings.half_storage else settings.precision,
        "triton_sam.checkpoint": f"random seed {settings.random_seed}",
        **exporter.metadata(settings),
    }


def _checkpoint_metadata(settings: Settings) -> dict[str, str]:
    """Return the metadata about the checkpoint; empty for random weights."""
    if settings.checkpoint is None:
        return {}
    digest = {CHECKPOINT_HASH: hash_file(settings.checkpoint)} if settings.checkpoint.is_file() else {}
    return {"triton_sam.checkpoint": settings.checkpoint.stem, **digest}


def _choose_version(family: Family, settings: Settings, metadata: Mapping[str, str]) -> int:
    """Return the version to write: 2 if version 1 is the demo model, else 1.

    Git tracks the demo model, so an export of other weights must not overwrite it. Triton serves the newest version.
    An export of the same checkpoint overwrites it. Other weights do so only if the caller requests version 1.
    """
    folder = family.model_name(ENCODER, settings.variant)
    try:
        present = read_metadata(settings.output_dir / folder / "1" / family.encoder.filename)
    except (OSError, ValueError):  # there is no file, or it is invalid and not worth keeping
        return 1
    built_in = bool(family.built_in) and present.get("triton_sam.checkpoint") == family.built_in
    return 2 if built_in and present.get(CHECKPOINT_HASH, "") != metadata.get(CHECKPOINT_HASH) else 1


_CHECKPOINT_KEYS = ("triton_sam.checkpoint", CHECKPOINT_HASH, "triton_sam.image_size")


def _program_moves(files: Mapping[Path, str], repository: Path, stack: ExitStack) -> list[tuple[Path, Path]]:
    """Write the files of missing_programs() to temporary folders; return (finished file, place) pairs for install()."""
    models = {place.relative_to(repository).parts[0] for place in files}
    workspaces = {model: stack.enter_context(staging(repository / model)) for model in sorted(models)}
    moves = []
    for place, text in files.items():
        finished = workspaces[place.relative_to(repository).parts[0]] / place.name
        write_flushed(finished, text)
        moves.append((finished, place))
    return moves


def _session_warning(family: Family, variant: str, *, video: bool) -> str:
    """Return a one-line warning if a variant's image size does not support clicks on images; else ""."""
    official = get_family(family.name).image_size
    if family.image_size == official:
        return ""
    use = f"{variant} follows objects in videos only" if video else "add --video to follow objects in videos"
    return f"clicks on images need an encoder of {official} pixels: {use}"


def _other_weights_warning(family: Family, variant: str, repository: Path, metadata: Mapping[str, str]) -> str:
    """Return a one-line warning if a variant's models for videos have other weights; else ""."""
    roles = family.tracking.models if family.tracking else {}
    folders = [repository / family.model_name(role, variant) for role in roles]
    found = {folder.name: read_model(folder).metadata for folder in folders if folder.is_dir()}
    others = [
        name
        for name, each in found.items()
        if each and any(each.get(key) != metadata.get(key) for key in _CHECKPOINT_KEYS)
    ]
    if not others:
        return ""
    return f"{', '.join(others)} belong to other weights: export with --video too, before videos are tracked again"
