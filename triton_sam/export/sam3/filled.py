"""The export of SAM3's tracker from a template. Words need PyTorch, because the trace computes much of the detector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Stored
from ..templates import Template
from .checkpoints import by_official_names, checkpoint_folder, config_name, metadata_of


class Sam3Filled(FilledExporter):
    """Fills a template of SAM3's tracker."""

    @staticmethod
    def place(checkpoint: Path) -> Path:
        return checkpoint_folder(checkpoint)

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        """Return the tracker's tensors of a checkpoint, which also has tensors for videos and words."""
        return by_official_names(tensors, template.layout)

    def config(self, settings: Settings) -> str:
        return config_name(settings)

    def metadata(self, settings: Settings) -> Mapping[str, str]:
        return metadata_of(settings)
