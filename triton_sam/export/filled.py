"""Export an official checkpoint by filling a template with its weights, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.extras import missing
from ..errors import CheckpointError
from ..families import Family
from ..families.tables import ModelSize, ModelSpec
from .exporter import Exporter
from .settings import Settings
from .stored import Stored
from .templates import Layout, Template, Tree, evaluate, graph_of, templates

try:
    import onnx

    from .onnx_tools import Later, fill
except ImportError as error:
    raise missing("exporting needs", "local", error) from error


def usable_templates(family: Family, settings: Settings) -> list[Template]:
    """Return the templates for the settings, without checking the checkpoint; none if a trace is required."""
    if settings.trace or settings.device != "cpu" or any(settings.options.values()):
        return []
    wanted = {size.name for size in family.sizes if settings.model in (None, size.model)}
    roles = family.models_for(video=settings.video, concepts=settings.concepts).keys()
    found = [each for each in templates(family) if each.size in wanted and each.side == settings.side]
    return [each for each in found if roles <= each.roles]


_SMALL = 256
"""Weights with at most this number of elements are filled immediately, larger ones while a file is written."""


class FilledExporter(Exporter):
    """Fills a template.

    Args:
        tensors: the tensors of the matching checkpoint, open during the export.
    """

    is_proved = True

    def __init__(self, family: Family, template: Template, tensors: Mapping[str, Stored]) -> None:
        self._family = family
        self._template = template
        self._tensors = tensors

    @staticmethod
    def place(checkpoint: Path) -> Path:
        """Return the file or folder to read for the caller's checkpoint."""
        return checkpoint

    def prepare(self, settings: Settings) -> Settings:
        if settings.checkpoint is not None:
            settings = replace(settings, checkpoint=self.place(settings.checkpoint))
        return super().prepare(settings)

    @staticmethod
    def wanted(template: Template, settings: Settings) -> Layout:  # noqa: ARG004
        """Return the exact tensors that a checkpoint must have after official(): their shapes by name."""
        return template.layout

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        """Return the tensors of a checkpoint by their names in the official model and in Template.layout."""
        return tensors

    @property
    def family(self) -> Family:
        return self._family

    @property
    def size(self) -> ModelSize:
        return next(size for size in self._family.sizes if size.name == self._template.size)

    def load(self, *_: Any, **__: Any) -> Any:
        return self._tensors

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:  # noqa: ARG002
        """Return a graph with its small weights, which the steps after a trace need; see Exporter.trace."""
        graph, trees = graph_of(self._family, self._template, spec)
        small = {item.name for item in graph.graph.initializer if _is_small(item)}
        fill(graph, {name: partial(_weight, name, tree, model) for name, tree in trees.items() if name in small})
        return graph

    def later(self, model: Any, spec: ModelSpec) -> Later:
        graph, trees = graph_of(self._family, self._template, spec)
        large = {item.name for item in graph.graph.initializer if not _is_small(item)}
        return {name: partial(_weight, name, tree, model) for name, tree in trees.items() if name in large}

    def config(self, settings: Settings) -> str:  # noqa: ARG002
        return self.size.config


def _is_small(item: onnx.TensorProto) -> bool:
    shape: list[int] = list(item.dims)
    return math.prod(shape) <= _SMALL


def _weight(name: str, tree: Tree, tensors: Mapping[str, Stored]) -> npt.NDArray[Any]:
    array = np.ascontiguousarray(evaluate(tree, lambda name: tensors[name].read()))
    if not np.isfinite(array).all():
        raise CheckpointError(f"the weights are damaged: {name} contains NaN or infinity")
    return array
