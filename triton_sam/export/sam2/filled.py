"""The export of SAM2 from a template: SAM2.0 has the graphs of SAM2.1, and lacks three tensors of its videos."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Derived, Stored
from ..templates import Template

_ABSENT = ("no_obj_embed_spatial", "obj_ptr_tpos_proj.weight", "obj_ptr_tpos_proj.bias")
"""SAM2.1 adds these to memories and pointers, so zeros compute what SAM2.0 does."""


class Sam2Filled(FilledExporter):
    """Fills a template of SAM2.1."""

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        """SAM2.0 gets zeros for the tensors that it lacks."""
        if any(name in tensors for name in _ABSENT):
            return tensors
        return {**tensors, **{name: _zeros(template.layout[name]) for name in _ABSENT}}

    def config(self, settings: Settings) -> str:
        config = super().config(settings)
        return config.replace("sam2.1", "sam2") if isinstance(self._tensors[_ABSENT[0]], Derived) else config


def _zeros(shape: tuple[int, ...]) -> Stored:
    return Derived(shape, lambda: np.zeros(shape, np.float32))
