"""The video models of the micro size at 512 px with random weights, and the official predictor with the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.video_graphs import SIDE, Graphs, micro_graphs

from triton_sam._common.files import atomic_write
from triton_sam.export import onnx_tools
from triton_sam.families import get_family
from triton_sam.repository.config import config_for
from triton_sam.sessions.configs import video_config, video_program
from triton_sam.wire.video import video_model

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
    folder = repository / video_model(family)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(video_program())
    (folder / "config.pbtxt").write_text(video_config(family))
    return VideoModels(repository, model)
