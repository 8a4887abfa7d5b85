"""The graphs of SAM2's models for videos with random weights. Those of the micro size are traced once for all tests."""

from __future__ import annotations

import functools
from typing import Any

import onnxruntime
from support.official_video import Arrays, centre_scores, video_model

from triton_sam.export import onnx_tools
from triton_sam.export.pipeline import finish_graph
from triton_sam.export.sam2.recipe import trace
from triton_sam.families.sam2 import Sam2
from triton_sam.families.tables import ENCODER

MICRO, SIDE = "sam2.1_hiera_micro", 512


class Graphs:
    """The official model of a configuration, and its graphs, traced when they are first used."""

    def __init__(self, config: str, side: int) -> None:
        self.model, self.side = video_model(config, side), side
        centre_scores(self.model)
        self.family = Sam2().at(side)
        assert self.family.tracking is not None
        self.specs = {ENCODER: self.family.encoder, **self.family.tracking.models}
        self.sessions: dict[tuple[str, bool], Any] = {}
        self.graphs: dict[tuple[str, bool], Any] = {}

    def graph(self, role: str, standard: bool = False) -> Any:
        if (role, standard) not in self.graphs:
            traced = trace(self.model, self.specs[role], standard)
            graph = finish_graph(traced, self.specs[role], "fp32", half_storage=False)
            graph.ir_version = min(graph.ir_version, onnx_tools.MAX_IR_VERSION)
            self.graphs[role, standard] = graph
        return self.graphs[role, standard]

    def run(self, role: str, inputs: Arrays, standard: bool = False) -> Arrays:
        if (role, standard) not in self.sessions:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            content = self.graph(role, standard).SerializeToString()
            self.sessions[role, standard] = onnxruntime.InferenceSession(content, options)
        names = self.specs[role].output_names
        return dict(zip(names, self.sessions[role, standard].run(list(names), inputs), strict=True))


@functools.cache
def micro_graphs() -> Graphs:
    """Return the graphs of the micro size at 512 pixels."""
    return Graphs(MICRO, SIDE)
