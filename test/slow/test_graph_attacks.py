"""Attacks on the graph of every family, with each ONNX Runtime that a supported Triton container holds.

Every request either gets the answer that it got before, or an error. None ends the process. `uv` provides the versions.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import pytest
from support import graph_attacks, wire_attacks
from support.older_runtimes import VERSIONS, python

pytestmark = [pytest.mark.export, pytest.mark.slow]
for package in ("torch", "onnxruntime", "segment_anything", "sam2", "transformers"):
    pytest.importorskip(package)

from support.family_exports import sam1_micro, sam3_reduced  # noqa: E402

from triton_sam._common.bundle import bundled  # noqa: E402

GRAPHS = [(family, role) for family in ("sam1", "sam2", "sam3") for role in ("encoder", "decoder")]
GENERATED = {"encoder": 60, "decoder": 120}
"""Number of generated attacks on each graph: 540 for each version."""
SEED = 0
LOWEST = min(VERSIONS)
OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in ("installed", *VERSIONS) if name != LOWEST]


def graph(family: str, role: str) -> Path:
    if family == "sam2":
        return bundled("model_repository") / f"sam2_{role}" / "1" / "model.onnx"
    return (sam1_micro() if family == "sam1" else sam3_reduced()).files[role]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", [LOWEST, *OTHERS])
def test_no_request_ends_the_process(version: str, tmp_path: Path) -> None:
    command = [sys.executable] if version == "installed" else python(version)
    counts: collections.Counter[str] = collections.Counter()
    for family, role in GRAPHS:
        right = graph_attacks.controls(family, role)
        attacks = graph_attacks.classics(family, role)
        attacks += graph_attacks.generated(family, role, GENERATED[role], SEED)
        answers = graph_attacks.run(
            graph(family, role), [*right, *attacks, *right], tmp_path / f"{family}_{role}", command
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
                # Right sizes fail only where the memory ends, or where a label is no number.
                assert "alloc" in answer["text"] or "invalid index" in answer["text"], (family, role, attack, answer)
    print(f"\nONNX Runtime {answers[0]['version']}: {dict(counts)}, none ended the process")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.nightly)])
def test_no_request_ends_the_server(families_server: Any, protocol: str) -> None:
    tritonclient = pytest.importorskip(f"tritonclient.{protocol}")
    url = families_server.http_url if protocol == "http" else families_server.grpc_url
    models = {f"{family}_{role}" for family, role in GRAPHS}
    counts: collections.Counter[str | None] = collections.Counter()
    with tritonclient.InferenceServerClient(url.partition("://")[2]) as client:
        for family, role in GRAPHS:
            # Over gRPC, a size of -2^63 ends the process of any Python model: Triton's Python backend (2.51) makes the
            # array before our code runs. Then Triton starts again; docs/background/reliability.md says so.
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
    print(f"\n{protocol}: {dict(counts)}")
    known = {None, "400", "500", "StatusCode.INVALID_ARGUMENT", "StatusCode.INTERNAL"}
    assert counts.keys() <= known
