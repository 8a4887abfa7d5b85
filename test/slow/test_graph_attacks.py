"""Attacks on every graph of every family, with each ONNX Runtime that a supported Triton container holds.

Every request either gets the answer that it got before, or an error. None ends the process. `uv` provides the versions.
"""

import collections
import sys
from pathlib import Path

import pytest
from support import graph_attacks, wire_attacks
from support.uv_environment import VERSIONS, python

pytestmark = [pytest.mark.export, pytest.mark.slow]
pytest.importorskip("torch")

from support.family_exports import SERVED, SMALL, sam1_micro, sam3_concepts, sam3_reduced  # noqa: E402

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
