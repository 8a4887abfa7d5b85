"""The suite itself: which tests run together, when shared servers end, and which skips fail a run."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.two_workers import ALLOWED

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


CONFTEST = """
import contextlib
import pytest
from support.two_workers import end_unused, shared
from support.two_workers import GROUP, group_by_use


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    group_by_use(items)
    for item in items:
        print(item.name, item.stash[GROUP], sep=": ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    try:
        return (yield)
    finally:
        end_unused(item, nextitem)


class Server:
    def __enter__(self):
        self.running = True
        return self

    def __exit__(self, *_):
        self.running = False
        print("ended")


@pytest.fixture(scope="session")
def server(request):
    yield from shared(request, Server())


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
def test_tests_are_grouped_by_what_they_use(tmp_path):
    """The groups that take longest come first."""
    files = {"conftest.py": CONFTEST, "test_some.py": SOME, "unit/test_some.py": OTHER}
    files |= {"slow/test_concepts.py": SLOW, "unit/test_concepts.py": SLOW}
    done = run_pytest(tmp_path, {f"test/{name}": text for name, text in files.items()}, ["-s", "--collect-only"])
    assert done.returncode == 0, done.stdout + done.stderr
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


USERS = """
import pytest


@pytest.mark.parametrize("number", range({}))
def test_use(server, number):
    assert server.running


def test_free():
    print("without it")
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", WORKERS, ids=["one-process", "groups"])
def test_every_test_finds_a_running_server(tmp_path, options):
    pytest.importorskip("xdist")
    files = {"test_first.py": USERS.format(1), "test_second.py": USERS.format(3)}
    done = run_pytest(tmp_path, {"conftest.py": CONFTEST, **files}, ["-s", *options])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "6 passed" in done.stdout
    if not options:  # pytest-xdist shows no output of tests
        assert done.stdout.count("ended") == 1  # after the last user, not after each
        assert done.stdout.index("ended") < done.stdout.index("without it")


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


def test_every_allowed_skip_says_why():
    assert all(ALLOWED.values())
