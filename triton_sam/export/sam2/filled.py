"""The export of SAM2 from a template: SAM2.0 has SAM2.1's graphs, but lacks three of its video tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Derived, Stored
from ..templates import Template

_ABSENT = ("no_obj_embed_spatial", "obj_ptr_tpos_proj.weight", "obj_ptr_tpos_proj.bias")
"""SAM2.1 adds these to memories and pointers, so zeros give SAM2.0's results."""


class Sam2Filled(FilledExporter):
    """Fills a template of SAM2.1."""

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        """Return the tensors, with zeros for those that SAM2.0 lacks."""
        if any(name in tensors for name in _ABSENT):
            return tensors
        return {**tensors, **{name: _zeros(template.layout[name]) for name in _ABSENT}}

    def config(self, settings: Settings) -> str:
        config = super().config(settings)
        return config.replace("sam2.1", "sam2") if isinstance(self._tensors[_ABSENT[0]], Derived) else config


def _zeros(shape: tuple[int, ...]) -> Stored:
    return Derived(shape, lambda: np.zeros(shape, np.float32))
