"""The export of EdgeTAM from a template, from checkpoints of Meta or transformers, whose weights differ in names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Stored, halves, joined
from ..templates import Layout, Template
from .names import VIDEO_HALF, adapt_names

T = TypeVar("T")


class EdgeTamFilled(FilledExporter):
    """Fills a template of EdgeTAM."""

    @staticmethod
    def wanted(template: Template, settings: Settings) -> Layout:
        """Without video, the checkpoint may lack the weights that only videos need."""
        return template.layout if settings.video else _without_video(template.layout)

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        state = dict(tensors)
        adapt_names(state, joined, halves)
        return state if settings.video else _without_video(state)


def _without_video(named: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in named.items() if not name.startswith(VIDEO_HALF)}
