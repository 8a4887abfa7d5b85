"""The export of SAM3's tracker from a template. Words need PyTorch, as the trace computes much of the detector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Stored
from ..templates import Layout, Template
from .checkpoints import by_official_names, checkpoint_folder, config_name, metadata_of

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
