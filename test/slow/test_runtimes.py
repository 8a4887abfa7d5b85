"""Graphs of every family with each ONNX Runtime that a supported Triton container holds: attacks, and equal numbers."""

import collections
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.export, pytest.mark.slow]
pytest.importorskip("torch")

import onnxruntime  # noqa: E402
from support import graph_attacks, value_runner, wire_attacks  # noqa: E402
from support.family_exports import (  # noqa: E402
    SERVED,
    SMALL,
    edgetam_micro,
    mobilesam_micro,
    sam1_micro,
    sam3_concepts,
    sam3_reduced,
    samhq_micro,
)
from support.uv_environment import VERSION_PARAMETERS, VERSIONS, python  # noqa: E402
from support.video_graphs import edgetam_micro_graphs, write_video_models  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402
from triton_sam.families.sam2 import TRACKING  # noqa: E402
from triton_sam.families.sam3 import SAM3  # noqa: E402

PAIR = ("encoder", "decoder")
PAIRS = [(family, role) for family in ("sam1", "sam2", "sam3") for role in PAIR]
FURTHER = [
    *((family, role) for family in SMALL if family in SERVED for role in PAIR),
    *((family, role) for family in ("sam2", "edgetam") if family in SERVED for role in TRACKING.models),
    *(("sam3", role) for role in SAM3.concepts),
]
"""The graphs of the small families, for videos and for words: attacked at night, because they take minutes more."""
GENERATED = {"decoder": 120}
"""Number of generated attacks on each graph with a role, where it is not OTHERS_GENERATED: 540 and 660 a version."""
OTHERS_GENERATED = 60
SEED = 0
FAILURES = ("alloc", "invalid index", "out of data bounds")
LOWEST = min(VERSIONS)
OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in ("installed", *VERSIONS) if name != LOWEST]
GRAPHS = [pytest.param(PAIRS, id="pairs"), pytest.param(FURTHER, id="further", marks=pytest.mark.nightly)]


def graph(family: str, role: str, request: pytest.FixtureRequest) -> Path:
    """Return the file of a graph: the demo model's for images, else that of a small model with random weights."""
    tracks = role in TRACKING.models
    if family == "sam2":
        repository = request.getfixturevalue("video_models").repository if tracks else bundled("model_repository")
        return repository / f"sam2_{role}" / "1" / "model.onnx"
    if tracks:
        return request.getfixturevalue("edgetam_videos") / f"edgetam_{role}" / "1" / "model.onnx"
    if role in SAM3.concepts:
        return sam3_concepts().files[role]
    return {"sam1": sam1_micro, "sam3": sam3_reduced, **SMALL}[family]().files[role]


@pytest.fixture(scope="module")
def edgetam_videos(tmp_path_factory):
    """A repository with EdgeTAM's models for videos."""
    from support.video_graphs import edgetam_micro_graphs, write_video_models

    return write_video_models(tmp_path_factory.mktemp("edgetam") / "models", edgetam_micro_graphs()).repository


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", [LOWEST, *OTHERS])
@pytest.mark.parametrize("graphs", GRAPHS)
def test_no_request_ends_the_process(graphs, version, tmp_path, request):
    command = [sys.executable] if version == "installed" else python(version)
    counts: collections.Counter[str] = collections.Counter()
    for family, role in graphs:
        right = graph_attacks.controls(family, role)
        attacks = graph_attacks.classics(family, role)
        attacks += graph_attacks.generated(family, role, GENERATED.get(role, OTHERS_GENERATED), SEED)
        answers = graph_attacks.run(
            graph(family, role, request), [*right, *attacks, *right], tmp_path / f"{family}_{role}", command
        )
        assert version in ("installed", answers[0]["version"])
        before, between, after = answers[: len(right)], answers[len(right) : -len(right)], answers[-len(right) :]
        assert all("digest" in answer for answer in before), before
        assert before == after
        for attack, answer in zip(attacks, between, strict=True):
            assert "died" not in answer, (family, role, attack, answer)
            counts["unmade" if "unmade" in answer else "errors" if "error" in answer else "answers"] += 1
            if "digest" in answer:
                assert graph_attacks.is_right(family, role, attack), (family, role, attack, answer)
            elif "error" in answer and graph_attacks.is_right(family, role, attack):
                # Right sizes fail only where the memory ends, or where a label, an age or a token is no such number.
                assert any(words in answer["text"] for words in FAILURES), (family, role, attack, answer)
    print(f"\nONNX Runtime {answers[0]['version']}: {dict(counts)}, none ended the process")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_request_ends_the_server(families_server, protocol):
    """Send attacks on the pairs to a server; it answers each one, and no model ends."""
    tritonclient = pytest.importorskip(f"tritonclient.{protocol}")
    restarts = families_server.restarts
    url = families_server.http_url if protocol == "http" else families_server.grpc_url
    models = {f"{family}_{role}" for family, role in PAIRS}
    counts: collections.Counter[str | None] = collections.Counter()
    with tritonclient.InferenceServerClient(url.partition("://")[2]) as client:
        for family, role in PAIRS:
            # Over gRPC, a size of -2^63 ends the process of any Python model: Triton's Python backend (2.51) makes the
            # array before our code runs. Then Triton starts again; docs/contribute/pitfalls.md says so.
            attacks = graph_attacks.negative(family, role) if protocol == "http" else []
            attacks += graph_attacks.classics(family, role)
            attacks += graph_attacks.generated(family, role, 30, SEED)
            for attack in attacks:
                # The tensors are sent as zeros, so no label is wrong; 10^6 prompts are for machines with much memory.
                if any(1 << 16 in part["shape"] or 1 << 20 in part["shape"] for part in attack):
                    continue
                counts[wire_attacks.send(tritonclient, client, f"{family}_{role}", attack)] += 1
            assert models <= {model.name for model in families_server.served_models()}
            right = graph_attacks.controls(family, role)[0]
            assert wire_attacks.send(tritonclient, client, f"{family}_{role}", right) is None
    assert families_server.restarts == restarts, "a model died, and the supervisor started Triton again"
    print(f"\n{protocol}: {dict(counts)}")
    known = {None, "400", "500", "StatusCode.INVALID_ARGUMENT", "StatusCode.INTERNAL"}
    assert counts.keys() <= known


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
