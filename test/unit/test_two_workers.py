"""With `pytest -n 2`, tests are grouped by what they use, and the groups that take longest come first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from support.two_workers import GROUP, group_by_use


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    group_by_use(items)
    for item in items:
        print(item.name, item.stash[GROUP], sep=": ")


@pytest.fixture(scope="session")
def server():
    pass


@pytest.fixture(scope="session")
def cheap():
    pass


@pytest.fixture
def through(server):
    pass
"""
SOME = """
import pytest


@pytest.fixture(scope="module")
def kept():
    pass


@pytest.mark.parametrize("number", range(2))
def test_free(cheap, number):
    pass


def test_kept(kept):
    pass


def test_expensive(kept, through):
    pass
"""
OTHER = """
import pytest


@pytest.mark.parametrize("number", range(2))
@pytest.mark.export
def test_export(number):
    pass


def test_other_expensive(server):
    pass
"""
SLOW = "def test_attack():\n    pass\n"


@pytest.mark.slow
def test_tests_are_grouped_by_what_they_use(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    files = {"conftest.py": CONFTEST, "test_some.py": SOME, "unit/test_some.py": OTHER}
    files |= {"slow/test_attacks.py": SLOW, "unit/test_attacks.py": SLOW}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\nmarkers =\n  export: exports\n")
    support = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-qs", "--collect-only", "-o", f"pythonpath={support}", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("test_") and ": " in line]
    assert said == [
        "test_attack: one process",
        "test_expensive: server",
        "test_other_expensive: server",
        "test_export[0]: test/unit/test_some.py",
        "test_export[1]: test/unit/test_some.py",
        "test_kept: test/test_some.py",
        "test_free[0]: free 1",
        "test_free[1]: free 2",
        "test_attack: free 5",
    ]
