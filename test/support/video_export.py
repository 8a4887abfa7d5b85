"""The video models of the micro size at 512 px with random weights, and the official predictor with the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sam2.sam2_video_predictor import SAM2VideoPredictor
from support.video_graphs import SIDE, Graphs, micro_graphs

from triton_sam._common.files import atomic_write
from triton_sam.export import onnx_tools
from triton_sam.families import get_family
from triton_sam.repository.config import config_for
from triton_sam.sessions.configs import video_config, video_program
from triton_sam.wire.video import video_model

FAMILY = get_family("sam2").at(SIDE)
OPTIONS = {
    "fill_hole_area": 0,
    "non_overlap_masks": False,
    "clear_non_cond_mem_around_input": False,
    "add_all_frames_to_correct_as_cond": False,
}
"""The arguments of SAM2VideoPredictor that SAM2Base lacks. Holes are filled only on GPUs."""


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


def official_predictor(model: Any) -> Any:
    """Convert a model in place to the official predictor with its weights, and return it."""
    for name, value in OPTIONS.items():
        setattr(model, name, value)
    model.__class__ = SAM2VideoPredictor
    # Without autocast, the predictor fails with memories, which are bfloat16, but without pointers, which are not.
    model.memory_attention.register_forward_pre_hook(_as_floats, with_kwargs=True)
    return model


def _as_floats(_: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    return arguments, {**keywords, "memory": keywords["memory"].float()}


def draw_frames(folder: Path, count: int, size: tuple[int, int] = (200, 150)) -> list[Path]:
    """Draw a clip of two discs that move over a textured background. Return the files, JPEG as the official code
    requires.
    """
    width, height = size
    y, x = np.mgrid[:height, :width].astype(np.float32)
    ground = 90 + 40 * np.sin(x / 9) * np.cos(y / 7)
    files = []
    for number in range(count):
        pixels = np.repeat(ground[..., None], 3, 2)
        for channel, (left, top, radius) in enumerate(((50 + 6 * number, 60, 25), (140 - 5 * number, 90, 18))):
            inside = (x - left) ** 2 + (y - top) ** 2 < radius**2
            pixels[inside] = (30, 30, 30)
            pixels[inside, channel] = 220
        files.append(folder / f"{number:05d}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(files[-1], quality=95)
    return files
