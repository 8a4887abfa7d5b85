"""Lets two processes run the tests (``pytest -n 2``): which tests stay together, and which run alone."""

from __future__ import annotations

import collections
import contextlib
import shutil
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ONE_PROCESS = tuple(
    f"test/slow/{name}.py" for name in ("test_attacks", "test_concepts", "test_concepts_page", "test_containers_run")
)
"""Files that run in the same process, so one after the other. The servers of most need much memory; the tests of
test_attacks.py run alone, and would wait for minutes until the others have their exports and containers."""

SHARED = ("service_triton", "server", "families_server", "video_models")
"""Fixtures that take long or much memory, the longest first. All tests that use the same one run in one process."""

GROUP = pytest.StashKey[str]()


def group_by_use(items: list[pytest.Item]) -> None:
    """Group the tests by what they use, and put the groups that take longest first.

    Tests that use an expensive fixture are one group. A test that shares fixtures or caches with its file stays with
    it. Any other test is a group of its own: it goes to an idle process, so both are busy to the end. A single process
    takes the tests in the same order.
    """
    groups = [_group(item) for item in items]
    sizes = collections.Counter(groups)
    slow_files = {group for item, group in zip(items, groups, strict=True) if "browser" in _fixtures(item)}
    places = {}
    for number, (item, group) in enumerate(zip(items, groups, strict=True)):
        item.stash[GROUP] = group or f"free {number}"
        if hasattr(item.config, "workerinput"):
            item.add_marker(pytest.mark.xdist_group(item.stash[GROUP]))
        # A test that runs alone waits for that of the other process, so it comes last.
        places[item] = (*_place(group, sizes, slow_files), item.get_closest_marker("alone") is not None)
    items.sort(key=places.__getitem__)


def _group(item: pytest.Item) -> str | None:
    """Return the name of the group of a test, or None if it is free."""
    file = item.nodeid.partition("::")[0]
    if file in ONE_PROCESS:
        return "one process"
    expensive = next((name for name in SHARED if name in _fixtures(item)), None)
    if expensive is not None:
        return expensive
    # Tests of exports keep their models in caches of the process (support/family_exports.py).
    if item.get_closest_marker("export") is not None or _shares_with_its_file(item):
        return file
    return None


def same_group(item: pytest.Item, other: pytest.Item | None) -> bool:
    """Return whether two tests are of one group."""
    return other is not None and item.stash[GROUP] == other.stash[GROUP]


def _fixtures(item: pytest.Item) -> Sequence[str]:
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return names


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture that lasts longer than the test, but not for the whole run."""
    if not isinstance(item, pytest.Function):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(definition.scope in ("module", "package", "class") for each in definitions for definition in each)


def _place(group: str | None, sizes: Mapping[str | None, int], slow_files: Container[str | None]) -> tuple[int, int]:
    """Return the sorting key of a test: expensive fixtures, then files by time and number of tests, then free tests."""
    if group == "one process":
        return 0, 0
    if group in SHARED:
        return 1, SHARED.index(group)
    if group is None:
        return 4, 0
    return (2 if group in slow_files else 3), -sizes[group]


def check_groups(ids: Sequence[str]) -> None:
    """Refuse to run in two processes when pytest-xdist has not put the tests into groups.

    Each process would make the expensive fixtures, and both together need more memory than a machine of 16 GB has.
    """
    if ids and "@" not in ids[0]:
        pytest.exit(
            f"pytest-xdist forms no groups of tests with pytest {pytest.__version__}:"
            " install the versions of constraints.txt, or run pytest without -n",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


@contextlib.contextmanager
def turn(item: pytest.Item) -> Iterator[None]:
    """Run a test beside others; or alone, if it is marked ``alone`` because others would disturb it.

    Every process holds a lock of its own during a test, and a test that runs alone holds the locks of all. A process
    that wants locks goes through a gate first, so that no other test starts while a test waits to run alone.
    """
    # Not the variables of the environment: a test may start pytest, which inherits them.
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        yield
        return
    everybody = [f"gw{number}" for number in range(worker["workercount"])]
    folder = _folder(worker)
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        with FileLock(folder / "gate.lock"):
            for name in everybody if item.get_closest_marker("alone") else [worker["workerid"]]:
                held.enter_context(FileLock(folder / f"{name}.lock"))
        yield


def remove_locks(config: pytest.Config) -> None:
    """Remove the files of the locks when a process ends. A process that still runs makes them again."""
    if worker := getattr(config, "workerinput", None):
        shutil.rmtree(_folder(worker), ignore_errors=True)


def _folder(worker: Mapping[str, Any]) -> Path:
    return Path(tempfile.gettempdir(), f"triton-sam-tests-{worker['testrunuid']}")
