"""A model repository with a video model of the micro size at 512 px, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIDE = 512
CONFIG = "sam2.1_hiera_micro"


def export_video(repository: Path) -> Path:
    """Export encoder and the four models for videos, and write the video model beside them; return the repository."""
    from triton_sam.export import onnx_tools
    from triton_sam.export.pipeline import finish_graph
    from triton_sam.export.sam2.recipe import load_model, trace
    from triton_sam.export.sam2.video_graphs import trace_video
    from triton_sam.families.sam2 import Sam2
    from triton_sam.repository import CONFIG_NAME, config_for
    from triton_sam.sessions.video.config import MODEL_NAME, MODEL_TEXT, video_config

    model: Any = load_model(None, CONFIG, image_size=SIDE, random_seed=0)
    model.binarize_mask_from_pts_for_mem_enc = True
    family = Sam2().at(SIDE)
    assert family.tracking is not None
    specs = [family.encoder, *family.tracking.models.values()]
    for spec in specs:
        traced = trace(model, spec) if spec is family.encoder else trace_video(model, spec)
        graph = finish_graph(traced, spec, "fp32", half_storage=False)
        folder = repository / family.model_name(spec.role)
        (folder / "1").mkdir(parents=True)
        onnx_tools.save(graph, folder / "1" / spec.filename)
        (folder / CONFIG_NAME).write_text(config_for(graph, folder.name, spec.filename))
    folder = repository / "sam2_video"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / MODEL_NAME).write_text(MODEL_TEXT)
    (folder / CONFIG_NAME).write_text(video_config(family))
    return repository
