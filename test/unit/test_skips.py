"""A run with --only-allowed-skips fails on a skip that is not on the list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.allowed_skips import ALLOWED

TESTS = """
import pytest


def test_passes():
    pass


@pytest.mark.skipif(True, reason="openvino is installed")
def test_allowed():
    pass


def test_in_the_test():
    pytest.skip("{reason}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [[], ["-n", "1", "--dist=loadgroup"]],
    ids=["one-process", "workers"],
)
@pytest.mark.parametrize(("reason", "status"), [("this machine has a GPU", 0), ("no chromium", 1)])
def test_a_skip_that_is_not_allowed_fails_the_run(tmp_path: Path, options: list[str], reason: str, status: int) -> None:
    tests = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_bytes((tests / "conftest.py").read_bytes())
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\n")
    (tmp_path / "test_it.py").write_text(TESTS.format(reason=reason))
    (tmp_path / "test_file.py").write_text(f"import pytest\n\npytest.skip('{reason}', allow_module_level=True)\n")
    command = [sys.executable, "-m", "pytest", "-q", "-o", f"pythonpath={tests}", *options, str(tmp_path)]
    for more, expected in (([], 0), (["--only-allowed-skips"], status)):
        done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == expected, done.stdout + done.stderr
    for place in ("test_in_the_test", "test_file.py"):
        assert (f"{place}: Skipped: no chromium" in done.stdout) == bool(status)
    assert (
        "openvino is installed" not in done.stdout.partition("does not allow it")[2].partition("short test summary")[0]
    )


def test_every_allowed_skip_says_why() -> None:
    assert all(ALLOWED.values())
