"""The numbers of the built-in pair, small families, videos and words, with the containers' ONNX Runtimes."""

import importlib.util
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support import value_runner
from support.family_exports import edgetam_micro, mobilesam_micro, sam3_concepts, samhq_micro
from support.uv_environment import VERSION_PARAMETERS, python
from support.video_graphs import edgetam_micro_graphs, write_video_models

from triton_sam._common.bundle import bundled
from triton_sam.families.sam2 import TRACKING
from triton_sam.families.sam3 import SAM3

pytestmark = [pytest.mark.export, pytest.mark.slow]

SIZES = {"images": 1, "objects": 2, "memories": 3, "pointers": 4, "points": 2, "prompts": 2, "boxes": 2, "instances": 3}
TOLERANCE = 1e-4
"""Largest difference from the installed version, relative to the largest absolute value of the tensor (at least 1)."""


def inputs(path: Path) -> dict[str, np.ndarray]:
    """Draw inputs for a graph: pixels and points in their ranges, everything else as normal noise."""
    rng = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    drawn = {}
    for tensor in session.get_inputs():
        shape = [SIZES.get(size, size) for size in tensor.shape]
        if tensor.name == "image":
            values = rng.random(shape)
        elif tensor.name == "mask_prompt":  # the prompt of no object is a mask, whose answer would be the mask itself
            values = np.zeros(shape)
        elif tensor.name.endswith("labels") or tensor.name in ("multimask", "is_prompted"):
            values = np.ones(shape)
        elif tensor.name == "attention_mask":
            values = np.arange(shape[1]) < np.array([[5], [9]])
        elif tensor.name == "input_ids":
            values = rng.integers(0, 49408, shape)
        elif tensor.name == "input_boxes":
            values = rng.uniform(0.2, 0.6, shape)
        elif tensor.name == "point_coords":
            values = rng.uniform(20, 480, shape)
        elif tensor.name == "memory_ages":
            values = rng.integers(1, TRACKING.memories + 1, shape)
        else:
            values = rng.normal(size=shape)
        drawn[tensor.name] = values.astype(np.int64 if "int64" in tensor.type else np.float32)
    return drawn


@pytest.fixture(scope="module")
def folder(video_models, tmp_path_factory):
    """Graphs and inputs, and the outputs of the installed version."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "graphs").mkdir()
    (folder / "inputs").mkdir()

    def keep(name: str, path: Path) -> None:
        (folder / "graphs" / f"{name}.onnx").symlink_to(path.resolve())
        np.savez(folder / "inputs" / f"{name}.npz", **inputs(path))

    for kind, repository in (("built-in", bundled("model_repository")), ("video", video_models.repository)):
        for path in sorted(repository.glob("sam2_*/1/model.onnx")):
            keep(f"{kind}_{path.parents[1].name}", path)
    for role in SAM3.concepts:
        keep(f"words_{role}", sam3_concepts().files[role])
    for family, package, export in (
        ("mobilesam", "mobile_sam", mobilesam_micro),
        ("samhq", "segment_anything_hq", samhq_micro),
        ("edgetam", "timm", edgetam_micro),
    ):
        for role, path in export().files.items() if importlib.util.find_spec(package) else ():
            keep(f"{family}_{role}", path)
    if importlib.util.find_spec("timm"):
        repository = tmp_path_factory.mktemp("edgetam_video")
        for path in sorted(write_video_models(repository, edgetam_micro_graphs()).repository.glob("*/1/model.onnx")):
            keep(f"video_{path.parents[1].name}", path)
    value_runner.main(folder)
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSION_PARAMETERS)
def test_the_numbers_are_those_of_the_installed_version(folder, version):
    subprocess.run([*python(version), value_runner.__file__, str(folder)], check=True, timeout=900)
    graphs = sorted(path.stem for path in (folder / "graphs").iterdir())
    assert {"built-in_sam2_encoder", "built-in_sam2_decoder", "video_sam2_memory_attention", "words_detector"} < set(
        graphs
    )
    worst = {}
    for name in graphs:
        with (
            np.load(folder / onnxruntime.__version__ / f"{name}.npz") as expected,
            np.load(folder / version / f"{name}.npz") as found,
        ):
            assert set(found) == set(expected)
            assert all(np.isfinite(found[output]).all() for output in found)
            worst[name] = max(
                np.abs(found[output] - expected[output]).max() / max(1, np.abs(expected[output]).max())
                for output in found
            )
    print(f"\nONNX Runtime {version}:", {name: f"{error:.1e}" for name, error in worst.items()})
    assert max(worst.values()) <= TOLERANCE
