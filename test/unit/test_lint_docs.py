"""tools/maintain/lint_docs.py finds no fault in the documents, and finds planted faults in a copy of them."""

from __future__ import annotations

import re

import pytest

from triton_sam._common.bundle import checkout

ROOT = checkout()
if ROOT is None or not (ROOT / "tools").is_dir():
    pytest.skip("documents are in the checkout only", allow_module_level=True)

from tools.maintain import lint_docs  # noqa: E402

INDEX, CLAIMS, DEPLOY = "docs/index.md", "docs/evidence/claims.md", "docs/how-to/deploy.md"

PLANTED: list[tuple[str, str, str, list[str]]] = [
    (INDEX, "", "[more](nowhere.md)", ["there is no nowhere.md"]),
    ("SECURITY.md", "", "[more](README.md#nowhere)", ["README.md has no heading #nowhere"]),
    ("CLAUDE.md", "`client/clicks.py`", "`nowhere.py`", ["no file has the name nowhere.py"]),
    ("docs/how-to/scale.md", "", "| a row | of no table |", ["this row of a table has no header"]),
    (INDEX, "", "`triton-sam serve --nowhere`", ["`triton-sam serve` has no option --nowhere"]),
    (INDEX, "", "run triton-sam nowhere", ["there is no command 'nowhere'"]),
    (INDEX, "", "`pixi run nowhere`", ["there is no task nowhere"]),
    (
        "pyproject.toml",
        'cmd = "pytest test/served/test_basic.py"',
        'cmd = "pytest test/nowhere.py"',
        ["task test-sam2 cannot start pytest test/nowhere.py"],
    ),
    (INDEX, "", "triton_sam.masks.nowhere", ["there is no triton_sam.masks.nowhere"]),
    (INDEX, "", "`set_nothing(image)`", ["no code contains set_nothing"]),
    (CLAIMS, "| `tools/lab/benchmark_sam2_video.py` |", "| trust us |", ["a claim without a test or a command: "]),
    ("Dockerfile", "ARG TRITON_TAG=2", "ARG TRITON_TAG=1", [f"{DEPLOY}: it lacks "]),
]
"""A file, words of it, what takes their place (or goes to the end of the file), and how its faults begin."""


def test_the_documents_have_no_faults():
    found = lint_docs.faults(ROOT)
    assert found == [], "\n".join(found)


def test_planted_faults_are_found(tmp_path):
    """In a copy of the checkout."""
    original = lint_docs.Checkout(ROOT)
    texts = {**original.code, **{str(document.path): document.text for document in original.documents}}
    del texts["test/unit/test_lint_docs.py"]  # it contains the names that no code contains
    for name in original.paths:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            (tmp_path / name).write_text(texts.get(name, ""), encoding="utf-8")
    for name, old, new, _ in PLANTED:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert old in text, f"{name} no longer contains {old!r}"
        planted = text.replace(old, new, 1) if old else f"{text}\n{new}\n"
        (tmp_path / name).write_text(planted, encoding="utf-8")
    found = [re.sub(r"^(\S+):\d+: ", r"\1: ", fault) for fault in lint_docs.faults(tmp_path)]
    expected = [
        fault if fault.startswith(DEPLOY) else f"{name}: {fault}" for name, _, _, faults in PLANTED for fault in faults
    ]
    assert [beginning for beginning in expected if not any(fault.startswith(beginning) for fault in found)] == []
    assert [fault for fault in found if not fault.startswith(tuple(expected))] == []
