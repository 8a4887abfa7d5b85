"""Exports an official checkpoint by filling a template with its weights, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._common.extras import missing
from ..errors import CheckpointError
from ..families import Family
from ..families.tables import ModelSize, ModelSpec
from .derive import evaluate
from .exporter import Exporter
from .settings import Settings
from .stored import Stored
from .templates import Template, graph_of, templates

try:
    import onnx
except ImportError as error:
    raise missing("exporting needs", "local", error) from error


def usable_templates(family: Family, settings: Settings) -> list[Template]:
    """Return the templates that serve the settings, whatever the checkpoint; none if only a trace does.

    Args:
        family: the family.
        settings: from Settings.complete(); the checkpoint may be missing still.
    """
    if settings.trace or settings.device != "cpu" or any(settings.options.values()):
        return []
    wanted = {size.name for size in family.sizes if settings.model in (None, size.model)}
    return [each for each in templates(family) if each.size in wanted and settings.side == each.side]


class FilledExporter(Exporter):
    """Fills a template.

    Args:
        family: the family.
        template: the template.
        tensors: the tensors of the checkpoint that fits it, open as long as the export lasts.
    """

    is_proved = True

    def __init__(self, family: Family, template: Template, tensors: Mapping[str, Stored]) -> None:
        self._family = family
        self._template = template
        self._tensors = tensors

    @property
    def family(self) -> Family:
        """See Exporter.family."""
        return self._family

    @property
    def size(self) -> ModelSize:
        """The size whose template it is."""
        return next(size for size in self._family.sizes if size.name == self._template.size)

    def load(self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None) -> Any:  # noqa: ARG002
        """See Exporter.load. Here, a model is its tensors."""
        return self._tensors

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:  # noqa: ARG002
        """Return the graph of a role with the weights of the checkpoint; see Exporter.trace.

        Raises:
            CheckpointError: a weight is not finite, or the memory is too small.
        """
        graph, trees = graph_of(self._family, self._template, spec)
        for item in graph.graph.initializer:
            if item.name not in trees:
                continue
            array = evaluate(trees[item.name], lambda name: model[name].read())
            if not np.isfinite(array).all():
                raise CheckpointError(f"the weights are damaged: {item.name} contains NaN or infinity")
            item.raw_data = np.ascontiguousarray(array).tobytes()
        return graph

    def config(self, settings: Settings) -> str:  # noqa: ARG002
        """See Exporter.config."""
        return self.size.config
