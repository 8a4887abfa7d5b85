"""The export of EdgeTAM from a template: checkpoints of Meta and of transformers have different names of weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Stored, halves, joined, of_array
from ..templates import Template
from .names import VIDEO_HALF, adapt_names


class EdgeTamFilled(FilledExporter):
    """Fills a template of EdgeTAM."""

    @staticmethod
    def official(tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:
        """See FilledExporter.official. If no video is wanted, a checkpoint may lack the weights that only videos need.

        Raises:
            ValueError: tensors that belong together have different shapes.
        """
        state = dict(tensors)
        adapt_names(state, joined, halves)
        if not settings.video and not any(name.startswith(VIDEO_HALF) for name in state):
            unused = {name: shape for name, shape in template.layout.items() if name.startswith(VIDEO_HALF)}
            state.update({name: of_array(np.zeros(shape, np.float32)) for name, shape in unused.items()})
        return state
