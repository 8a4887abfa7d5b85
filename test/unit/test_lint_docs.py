"""tools/maintain/lint_docs.py finds no fault in the documents, and finds each kind of fault in a copy of them."""

from __future__ import annotations

import re

import pytest

from triton_sam._common.bundle import checkout

ROOT = checkout()
if ROOT is None or not (ROOT / "tools").is_dir():
    pytest.skip("documents are in the checkout only", allow_module_level=True)

from tools.maintain import lint_docs  # noqa: E402

AT_THE_END = ""
INDEX, PYPROJECT, SECURITY = "docs/index.md", "pyproject.toml", "SECURITY.md"
SOAK = "docs/evidence/soak.md"
CLAIMS = "docs/evidence/claims.md"
COMMANDS = "docs/reference/commands.md"
DEPLOY = "docs/how-to/deploy.md"
HELP = "docs/how-to/troubleshooting.md"

PLANTED: list[tuple[str, str, str, list[str]]] = [
    # links and files
    (INDEX, AT_THE_END, "[more](nowhere.md)", ["there is no nowhere.md"]),
    (INDEX, AT_THE_END, '<img src="nowhere.png">', ["there is no nowhere.png"]),
    (SECURITY, AT_THE_END, "[more](README.md#nowhere)", ["README.md has no heading #nowhere"]),
    (SECURITY, AT_THE_END, "[more](#nowhere)", ["SECURITY.md has no heading #nowhere"]),
    (SECURITY, AT_THE_END, "run scripts/nowhere.sh", ["there is no scripts/nowhere.sh"]),
    ("CLAUDE.md", "`client/clicks.py`", "`nowhere.py`", ["no file has the name nowhere.py"]),
    ("triton_sam/cli.py", AT_THE_END, "# docs/nowhere.md", ["there is no docs/nowhere.md"]),
    (
        "mkdocs.yml",
        "- how-to/cpu.md",
        "- how-to/nowhere.md",
        ["the navigation lacks how-to/cpu.md", "there is no page how-to/nowhere.md"],
    ),
    ("docs/how-to/scale.md", AT_THE_END, "| a row | of no table |", ["this row of a table has no header"]),
    # commands, options and tasks
    (
        "docs/how-to/cpu.md",
        AT_THE_END,
        "```sh\ntriton-sam config \\\n    sam2 --gpus nowhere --bogus\n```",
        ["this does not parse: triton-sam config sam2 --gpus nowhere --bogus"],
    ),
    (INDEX, AT_THE_END, "`triton-sam serve --nowhere`", ["`triton-sam serve` has no option --nowhere"]),
    (
        CLAIMS,
        "`triton-sam benchmark --local --only speculative`",
        "`triton-sam benchmark --local --only speculative there`",
        ["this does not parse: triton-sam benchmark --local --only speculative there"],
    ),
    (INDEX, AT_THE_END, "run triton-sam nowhere", ["there is no command 'nowhere'"]),
    (COMMANDS, "`container`", "`nickname`", ["container is missing"]),
    (COMMANDS, "`setup-sam1-b`", "`setup-nowhere`", ["there is no task setup-nowhere"]),
    (INDEX, AT_THE_END, "`pixi run nowhere`", ["there is no task nowhere"]),
    (
        INDEX,
        AT_THE_END,
        "python scripts/export_sam2_to_onnx.py --checkpoint x.pt --nowhere",
        ["scripts/export_sam2_to_onnx.py has no option --nowhere"],
    ),
    (
        PYPROJECT,
        'service = ["service"]',
        'service = ["nowhere"]',
        ["there is no feature nowhere", "task service is in 0 environments: "],
    ),
    (PYPROJECT, 'extras = ["local", "video"]', 'extras = ["nowhere"]', ["there is no extra nowhere"]),
    (
        PYPROJECT,
        'depends-on = ["setup-sam2"]',
        'depends-on = ["nowhere"]',
        ["task setup depends on nowhere, which does not exist"],
    ),
    (
        PYPROJECT,
        'cmd = "triton-sam setup sam1 vit_b"',
        'cmd = "triton-sam setup nowhere"',
        ["task setup-sam1-b cannot start triton-sam setup nowhere"],
    ),
    (
        PYPROJECT,
        'cmd = "pytest test/served/test_basic.py"',
        'cmd = "pytest test/nowhere.py"',
        ["task test-sam2 cannot start pytest test/nowhere.py"],
    ),
    (
        PYPROJECT,
        "scripts/export_sam3_to_onnx.py --checkpoint",
        "scripts/export_sam3_to_onnx.py --check",
        ["task export-sam3 cannot start python scripts/export_sam3_to_onnx.py --check "],
    ),
    # names in code
    (INDEX, AT_THE_END, "triton_sam.masks.nowhere", ["there is no triton_sam.masks.nowhere"]),
    (INDEX, AT_THE_END, "`client.set_nothing()`", []),
    (INDEX, AT_THE_END, "`set_nothing(image)`", ["no code contains set_nothing"]),
    (INDEX, AT_THE_END, "set TRITON_SAM_NOTHING", ["no code contains TRITON_SAM_NOTHING"]),
    (INDEX, AT_THE_END, "`_nothing_seconds_total`", ["no code contains _nothing_seconds_total"]),
    (SOAK, "`test_properties`", "`test_nothing`", ["there is no test test_nothing"]),
    (
        SOAK,
        "`test_soak::test_bad_requests_do_not_disturb_good_ones`",
        "`test_soak::test_bad_requests...each_other`",
        ["test_soak has no test test_bad_requests...each_other"],
    ),
    (
        CLAIMS,
        "`test/unit/test_documents.py::test_python_runs_as_it_stands`",
        "`test/unit/test_documents.py::test_python_runs`",
        ["test/unit/test_documents.py has no test test_python_runs"],
    ),
    # what several files say
    (CLAIMS, "| `tools/lab/benchmark_sam2_video.py` |", "| trust us |", ["a claim without a test or a command: "]),
    ("README.md", "git clone https://github", "git clone https://gitlab", ["the repository is ", "it lacks git"]),
    (".ci/run", '".[local,export,dev]"', '".[local]"', ["it lacks "]),
    (PYPROJECT, 'cmd = "pytest -n 2"', 'cmd = "pytest -n 3"', ["the task test is "]),
    ("Dockerfile", "ARG TRITON_TAG=2", "ARG TRITON_TAG=1", [f"{DEPLOY}: it lacks ", f"{DEPLOY}: it lacks "]),
    ("deploy/monitoring/rules.yml", "alert: TritonDown", "alert: TritonGone", [f"{DEPLOY}: the alerts are "]),
    (HELP, "`another process listens on port`", "`port 8000 is taken`", ["no error says 'port 8000 is taken'"]),
]
"""A file, words of it, what takes their place (or goes to the end of the file), and how its faults begin."""
EXPECTED = [
    [fault if fault.startswith(DEPLOY) else f"{name}: {fault}" for fault in faults] for name, _, _, faults in PLANTED
]


def test_the_documents_have_no_faults():
    found = lint_docs.faults(ROOT)
    assert found == [], "\n".join(found)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Return the faults of a copy of the checkout with all planted faults, without the numbers of the lines."""
    copy = tmp_path_factory.mktemp("checkout")
    original = lint_docs.Checkout(ROOT)
    texts = {**original.code, **{str(document.path): document.text for document in original.documents}}
    del texts["test/unit/test_lint_docs.py"]  # it contains the names that no code contains
    for name in original.paths:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            (copy / name).write_text(texts.get(name, ""), encoding="utf-8")
    for name, old, new, _ in PLANTED:
        text = (copy / name).read_text(encoding="utf-8")
        assert old in text, f"{name} no longer contains {old!r}"
        planted = text.replace(old, new, 1) if old else f"{text}\n{new}\n"
        (copy / name).write_text(planted, encoding="utf-8")
    return [re.sub(r"^(\S+):\d+: ", r"\1: ", fault) for fault in lint_docs.faults(copy)]


@pytest.mark.parametrize(("planted", "expected"), list(zip(PLANTED, EXPECTED, strict=True)))
def test_a_planted_fault_is_found(faulty, planted, expected):
    for beginning in expected:
        assert [fault for fault in faulty if fault.startswith(beginning)], f"{planted} is not found"


def test_nothing_else_is_found(faulty):
    expected = [beginning for beginnings in EXPECTED for beginning in beginnings]
    assert [fault for fault in faulty if not fault.startswith(tuple(expected))] == []
    assert len(faulty) == len(expected)


def test_the_command_prints_all_faults(faulty, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lint_docs.py"])
    monkeypatch.setattr(lint_docs, "faults", lambda: faulty)
    assert lint_docs.main() == 1
    assert capsys.readouterr().out.splitlines() == faulty
    monkeypatch.setattr(lint_docs, "faults", list)
    assert lint_docs.main() == 0


def test_prose_lists_odd_words_and_long_lines_outside_of_code_and_tables(tmp_path):
    text = f"The server knows it.\n`server knows`\n```\nthe server knows\n```\n{'word ' * 30}\n| {'cell ' * 30}|\n"
    (tmp_path / "README.md").write_text(text)
    odd, long = lint_docs.prose(tmp_path)
    assert odd == "README.md:1: 'server knows': software stores, receives, sends, calls, returns"
    assert long == "README.md:6: 150 characters"
