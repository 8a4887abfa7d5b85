"""docs/reference/claims.md names tests, scripts and commands that exist, and numbers that other documents state."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from triton_sam._common.bundle import checkout
from triton_sam.cli import build_parser

ROOT = checkout()
if ROOT is None:
    pytest.skip("documents are in the checkout only", allow_module_level=True)

PAGE = ROOT / "docs" / "reference" / "claims.md"
TEXT = PAGE.read_text(encoding="utf-8")
TEST = re.compile(r"(?:[\w-]+/)*test_\w+.*")
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e-\d+)?(?!\w)")
LINK = re.compile(r"\[[^\]]*\]\(([^)]+)\)")


def rows(columns: int) -> list[list[str]]:
    """The rows of all tables with so many columns, without the two lines at their head."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:1] == "|"]
    return [row for row in found if len(row) == columns and row[0] != "claim" and set(row[0]) != {"-"} and row[0]]


CLAIMS = rows(3)
CODE = re.findall(r"`([^`]+)`", "\n".join(line for line in TEXT.splitlines() if line[:1] == "|"))
TESTS = sorted({code for code in CODE if TEST.fullmatch(code)})
COMMANDS = sorted({code for code in CODE if code.startswith("triton-sam ")})


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_page_has_what_these_tests_look_at():
    assert len(CLAIMS) > 50
    assert len(TESTS) > 70
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("name", TESTS)
def test_named_tests_exist(name):
    file, _, function = name.partition("::")
    assert (ROOT / file).is_file()
    assert not function or function in functions(ROOT / file)


def test_named_scripts_exist():
    named = [code for code in CODE if code.startswith("scripts/")]
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name.split()[0]).is_file()] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_named_commands_parse(line):
    words = shlex.split(line)[1:]
    if len(words) == 1:  # the name of a command
        words.append("--help")
        with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(None):
            build_parser().parse_args(words)
        assert ended.value.code == 0
        return
    assert build_parser().parse_args(words).command == words[0]


@pytest.mark.parametrize(("claim", "proof", "measured"), CLAIMS, ids=[row[0] for row in CLAIMS])
def test_each_claim_has_a_proof_and_numbers_of_another_document(claim, proof, measured):
    assert "`" in proof or proof.startswith("the same command"), "a claim without a test or a command"
    linked = [(PAGE.parent / target).read_text(encoding="utf-8") for target in LINK.findall(measured)]
    known = {number for text in linked for number in NUMBER.findall(text)}
    numbers = NUMBER.findall(LINK.sub("", measured))
    assert linked or measured.startswith("no number"), "neither a document nor the words that there is no number"
    assert [number for number in numbers if number not in known] == []
