"""The suite itself: which skips fail a run."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WORKERS = [[], ["-n", "1", "--dist=loadgroup"]]


def run_pytest(folder, files, options, more=()):
    """Run the tests of files, which use this suite's support, in a process of their own."""
    files = {"pytest.ini": "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n  export: exports\n", **files}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={TESTS}"]
    command += [*options, *more, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


SKIPS = """
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
@pytest.mark.parametrize("options", WORKERS, ids=["one-process", "groups"])
@pytest.mark.parametrize(("reason", "status"), [("this machine has a GPU", 0), ("no chromium", 1)])
def test_a_skip_that_is_not_allowed_fails_the_run(tmp_path, options, reason, status):
    files = {
        "conftest.py": (TESTS / "conftest.py").read_text(),
        "test_it.py": SKIPS.format(reason=reason),
        "test_file.py": f"import pytest\n\npytest.skip('{reason}', allow_module_level=True)\n",
    }
    for more, expected in (((), 0), (("--only-allowed-skips",), status)):
        done = run_pytest(tmp_path, files, options, more)
        assert done.returncode == expected, done.stdout + done.stderr
    for place in ("test_in_the_test", "test_file.py"):
        assert (f"{place}: Skipped: no chromium" in done.stdout) == bool(status)
    told = done.stdout.partition("does not allow it")[2].partition("short test summary")[0]
    assert "openvino is installed" not in told
