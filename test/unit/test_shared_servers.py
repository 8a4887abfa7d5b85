"""The tests' own shared servers under pytest-xdist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import contextlib
import pytest
from support.shared_servers import end_unused, shared
from support.two_workers import group_by_use


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    group_by_use(items)


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
"""

USERS = """
import pytest


@pytest.mark.parametrize("number", range({}))
def test_use(server, number):
    assert server.running


def test_free():
    print("without it")
"""


GROUPS = pytest.param(["-n", "1", "--dist=loadgroup"], marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], GROUPS], ids=["one-process", "groups"])
def test_every_test_finds_a_running_server(tmp_path, options):
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for name, number in (("first", 1), ("second", 3)):
        (tmp_path / f"test_{name}.py").write_text(USERS.format(number))
    support = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-o", f"pythonpath={support}", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "6 passed" in done.stdout
    if not options:  # pytest-xdist shows no output of tests
        assert done.stdout.count("ended") == 1  # after the last user, not after each
        assert done.stdout.index("ended") < done.stdout.index("without it")
