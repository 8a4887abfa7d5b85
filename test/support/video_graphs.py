"""The graphs of video models with random weights. Graphs of the micro sizes are created once for all tests."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from support.family_exports import run_graph, session_of
from support.official_video import Arrays, centre_scores, video_model
from support.two_workers import cached_in_group
from transformers import Sam3TrackerVideoModel

from triton_sam._common.files import atomic_write
from triton_sam.client.video.sync import SAM2VideoClient
from triton_sam.export import onnx_tools
from triton_sam.export.edgetam.recipe import EXPORTER as EDGETAM_EXPORTER
from triton_sam.export.filled import FilledExporter
from triton_sam.export.pipeline import finish_graph
from triton_sam.export.sam2.recipe import EXPORTER as SAM2_EXPORTER
from triton_sam.export.sam2.video_reference import TransformersVideoReference
from triton_sam.export.sam3.model import video_configuration
from triton_sam.export.sam3.recipe import EXPORTER as SAM3_EXPORTER
from triton_sam.export.sam3.recipe import randomise_memory
from triton_sam.export.stored import of_array
from triton_sam.export.templates import templates
from triton_sam.export.weights import seeded
from triton_sam.families import get_family
from triton_sam.families.base import Family
from triton_sam.families.edgetam import EDGETAM
from triton_sam.families.sam2 import SAM2
from triton_sam.families.sam3 import SAM3
from triton_sam.families.tables import ENCODER
from triton_sam.repository.config import config_for
from triton_sam.scenes.clip import generate_clip
from triton_sam.sessions.configs import video_config, video_program
from triton_sam.transport.onnx import OnnxTransport
from triton_sam.verify import video as verify
from triton_sam.wire import video

MICRO, SIDE = "sam2.1_hiera_micro", 512


class Graphs:
    """An official model and its graphs, which are traced on first use."""

    def __init__(self, model: Any, family: Family) -> None:
        self.model, self.family, self.side = model, family, family.image_size
        assert self.family.tracking is not None
        self.specs = {ENCODER: self.family.encoder, **self.family.tracking.models}
        self.sessions: dict[tuple[str, bool], Any] = {}
        self.graphs: dict[tuple[str, bool], Any] = {}

    def traced(self, role: str, standard: bool) -> Any:
        return SAM2_EXPORTER.trace(self.model, self.specs[role], {"standard_operators": standard})

    def graph(self, role: str, standard: bool = False) -> Any:
        if (role, standard) not in self.graphs:
            graph = finish_graph(self.traced(role, standard), self.specs[role], "fp32", half_storage=False)
            graph.ir_version = min(graph.ir_version, onnx_tools.MAX_IR_VERSION)
            self.graphs[role, standard] = graph
        return self.graphs[role, standard]

    def run(self, role: str, inputs: Arrays, standard: bool = False) -> Arrays:
        if (role, standard) not in self.sessions:
            self.sessions[role, standard] = session_of(self.graph(role, standard))
        return run_graph(self.sessions[role, standard], inputs, self.specs[role].output_names)


def sam2_graphs(config: str, side: int) -> Graphs:
    """Return the graphs of a configuration of SAM2."""
    model = video_model(config, side)
    centre_scores(model)
    return Graphs(model, SAM2.at(side))


@cached_in_group
def micro_graphs() -> Graphs:
    """Return the graphs of the micro size at 512 pixels."""
    return FilledGraphs(sam2_graphs(MICRO, SIDE).model, SAM2.at(SIDE))


class FilledGraphs(Graphs):
    """The graphs of SAM2's micro size, filled from templates, because a trace takes a minute."""

    def traced(self, role: str, standard: bool) -> Any:
        if standard:
            return super().traced(role, standard)
        template = next(
            each for each in templates(get_family("sam2")) if (each.size, each.side) == ("micro", self.side)
        )
        tensors = {name: of_array(tensor.detach().numpy()) for name, tensor in self.model.state_dict().items()}
        exporter = FilledExporter(self.family, template, tensors)
        graph = exporter.trace(tensors, self.specs[role], {})
        onnx_tools.fill(graph, exporter.later(tensors, self.specs[role]))
        return graph


class EdgeTamGraphs(Graphs):
    """The graphs of EdgeTAM."""

    def traced(self, role: str, standard: bool) -> Any:
        return EDGETAM_EXPORTER.trace(self.model, self.specs[role], {})

    def reference(self, frames: Any) -> Any:
        """Return the official predictor with a video."""
        return EDGETAM_EXPORTER.video_reference(self.model, frames)


class Sam3Graphs(Graphs):
    """The graphs of SAM3."""

    def __init__(self, model: Any, family: Family) -> None:
        super().__init__(model, family)
        shared = {name: getattr(model, name) for name in ("vision_encoder", "mask_decoder", "device", "config")}
        self.tracker = SimpleNamespace(**shared, video=model)

    def traced(self, role: str, standard: bool) -> Any:
        return SAM3_EXPORTER.trace(self.tracker, self.specs[role], {})

    def reference(self, frames: Any) -> Any:
        """Return the official predictor with a video."""
        return SAM3_EXPORTER.video_reference(self.tracker, frames)


def sam3_video_model() -> Any:
    """Return the official video model of SAM3's reduced size, for images of 336 pixels, with random weights."""
    config = video_configuration("reduced")
    config.image_size = 336
    model = seeded(lambda: Sam3TrackerVideoModel(config), 0)
    randomise_memory(model, 0)
    return model.eval().requires_grad_(False)


@cached_in_group
def sam3_reduced_graphs() -> Sam3Graphs:
    """Return the graphs of SAM3's reduced size at 336 pixels."""
    return Sam3Graphs(sam3_video_model(), SAM3.at(336))


@cached_in_group
def edgetam_micro_graphs() -> EdgeTamGraphs:
    """Return the graphs of EdgeTAM's micro size at 256 pixels."""
    model = EDGETAM_EXPORTER.load(None, "micro", image_size=256, random_seed=0)
    return EdgeTamGraphs(model, EDGETAM.at(256))


FAMILY = get_family("sam2").at(SIDE)


@dataclass(frozen=True)
class VideoModels:
    """A repository with the video models, and the official torch model with their weights."""

    repository: Path
    model: Any


def write_video_models(repository: Path, graphs: Graphs | None = None) -> VideoModels:
    """Write encoder, the four tracking models and the video model into a repository; those of SAM2 by default."""
    graphs = graphs or micro_graphs()
    family = graphs.family
    assert family.tracking is not None
    model = copy.deepcopy(graphs.model)  # a test converts it to an official predictor
    for spec in (family.encoder, *family.tracking.models.values()):
        graph = graphs.graph(spec.role)
        name = family.model_name(spec.role)
        (repository / name / "1").mkdir(parents=True)
        onnx_tools.save(graph, repository / name / "1" / "model.onnx")
        atomic_write(repository / name / "config.pbtxt", config_for(graph, name).encode())
    folder = repository / video.video_model(family)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(video_program())
    (folder / "config.pbtxt").write_text(video_config(family))
    return VideoModels(repository, model)


def check_signature(graphs: Graphs, role: str) -> None:
    """Check the tensors of a graph, and its guard, which must refuse a request for no objects or images."""
    from support.graph_attacks import assert_guarded

    graph, spec = graphs.graph(role), graphs.specs[role]
    for values, tensors in ((graph.graph.input, spec.inputs), (graph.graph.output, spec.graph_outputs)):
        assert [value.name for value in values] == [tensor.name for tensor in tensors]
        for value, tensor in zip(values, tensors, strict=True):
            found = [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim]
            sides = zip(tensor.shape, found, strict=True)
            assert all(side in (0, other) for side, other in sides), tensor.name  # 0 depends on the size of the model
    assert graph.ir_version <= 10
    assert [entry.version for entry in graph.opset_import if entry.domain == ""] == [18]
    assert_guarded(graph)
    onnx.checker.check_model(graph)
    inputs = {}
    for tensor in spec.inputs:
        # Without objects, one image is a valid size; the encoder has images only.
        shape = [int(role != ENCODER and side != "objects") if isinstance(side, str) else side for side in tensor.shape]
        inputs[tensor.name] = np.zeros(shape, np.int64 if tensor.dtype == "INT64" else np.float32)
    with pytest.raises(Exception, match="Reshape"):
        graphs.run(role, inputs)


# --- comparisons with the official model ------------------------------------------------------------------------------

TRANSFORMERS_ALONE = ("one object", "three objects", "object added midway", "both directions")
"""The cases in which transformers computes as Meta's predictor."""


def clip(frames: int) -> list[np.ndarray]:
    """Return the images of a drawn video."""
    return list(generate_clip(10_000_001, frames).images)


@contextlib.contextmanager
def video_client(graphs: Graphs, folder: Path) -> Iterator[SAM2VideoClient]:
    """Yield a client of graphs that run in this process. Their files are written into the folder."""
    repository = write_video_models(folder, graphs).repository
    names = [graphs.family.model_name(role) for role in graphs.specs]
    files = OnnxTransport({name: repository / name / "1" / "model.onnx" for name in names})
    transport = verify.VideoTransport(graphs.family, files)
    with SAM2VideoClient(model_type=graphs.family.name, transport=transport) as client:
        yield client


def check_every_case(
    graphs: Graphs, video: Any, session: Any, frames: list[np.ndarray], as_meta: bool, more: dict[str, Any]
) -> list[verify.VideoRow]:
    """Compare an open video with transformers' model in all cases and further ones; return the rows, which all pass.

    Without the rules of Meta's predictor, only the cases of TRANSFORMERS_ALONE are compared.
    """
    (height, width), count = frames[0].shape[:2], len(frames)
    size = width, height
    cases = verify.cases(size, count)
    chosen = {title: steps for title, steps in cases.items() if as_meta or title in TRANSFORMERS_ALONE} | more
    reference = TransformersVideoReference(graphs.family, graphs.model, session, frames, as_meta=as_meta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "cases", lambda *_: chosen)
        rows = list(verify.verify_video(reference, {"onnxruntime": verify.ClientRunner(video)}, size, count))
    assert [row.case for row in rows] == list(chosen)
    failed = [row for row in rows if not row.passes(verify.threshold(count))]
    assert failed == [], failed
    assert min(row.visible for row in rows) > 0.5, rows
    return rows
