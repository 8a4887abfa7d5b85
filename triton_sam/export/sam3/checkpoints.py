"""SAM3's checkpoints without torch: a folder in transformers' layout, the names of its tensors, and its template.

Only the tracker has a template. Words need PyTorch, as the trace computes much of the detector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...errors import CheckpointError
from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Stored
from ..templates import Layout, Template

NO_MEMORY_PLACEMENTS = ("published", "meta")

_BACKBONE, _NECK = "vision_encoder.backbone.", "vision_encoder.neck."


def checkpoint_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint, given as this folder or as a file in it."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if not checkpoint.exists():
        raise CheckpointError(f"no checkpoint at {checkpoint}: get one with `scripts/download_sam3.sh`")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no config.json: give the folder that scripts/download_sam3.sh writes")
    return folder


def config_name(settings: Settings) -> str:
    """Return the name of the model's configuration, for the metadata of the exported files."""
    if settings.checkpoint is not None:
        return "sam3_tracker"
    return f"sam3_tracker_{settings.model or 'full'}"


def placement(settings: Settings) -> str:
    """Return the placement of no_memory_embedding, one of NO_MEMORY_PLACEMENTS if the settings are valid."""
    return str(settings.options.get("no_memory") or NO_MEMORY_PLACEMENTS[0])


def metadata_of(settings: Settings) -> dict[str, str]:
    """Return SAM3's own metadata of the exported files."""
    return {"triton_sam.no_memory_embedding": placement(settings)}


def by_official_names(tensors: Mapping[str, Stored], names: Iterable[str]) -> dict[str, Stored]:
    """Return the tensors of Sam3TrackerModel in a checkpoint, by the model's names.

    The checkpoint is from a Sam3TrackerModel, or from a Sam3VideoModel with the tracker, a detector, and one backbone
    for both. Reference: the entry sam3_tracker in transformers' conversion_mapping.
    """
    found = {name: next((place for place in _places(name) if place in tensors), None) for name in names}
    return {name: tensors[place] for name, place in found.items() if place is not None}


def _places(name: str) -> Iterator[str]:
    """Yield the possible names of a tensor in a file."""
    yield name
    yield f"tracker_model.{name}"
    if name.startswith(_BACKBONE):
        yield f"detector_model.{name}"
    if name.startswith(_NECK):
        yield f"tracker_neck.{name.removeprefix(_NECK)}"


_VIDEO_HALF = (
    "memory_",
    "mask_downsample",
    "object_pointer_",
    "no_memory_positional_encoding",
    "no_object_pointer",
    "occlusion_spatial_embedding_parameter",
    "temporal_positional_encoding_",
)
"""The prefixes of the names of tensors that only videos need."""


class Sam3Filled(FilledExporter):
    """Fills a template of SAM3's tracker."""

    @staticmethod
    def place(checkpoint: Path) -> Path:
        return checkpoint_folder(checkpoint)

    @staticmethod
    def wanted(template: Template, settings: Settings) -> Layout:
        """Without video, the checkpoint may lack the weights that only videos need."""
        layout = template.layout
        return layout if settings.video else {name: layout[name] for name in layout if not name.startswith(_VIDEO_HALF)}

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:
        """Return the tracker's tensors of a checkpoint, which also has tensors for videos and words."""
        return by_official_names(tensors, cls.wanted(template, settings))

    def config(self, settings: Settings) -> str:
        return config_name(settings)

    def metadata(self, settings: Settings) -> Mapping[str, str]:
        return metadata_of(settings)
