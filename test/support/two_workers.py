"""Lets two processes run the tests (``pytest -n 2``): which tests stay together, and which run alone."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

SHARED = ("families_server", "service_triton", "service", "micro_export", "video_models")
"""Fixtures that take long or much memory. All files that use the same one run in the same process."""


ONE_PROCESS = tuple(
    f"test/slow/{name}.py" for name in ("test_attacks", "test_concepts", "test_concepts_page", "test_containers_run")
)
"""Files that run in the same process, so one after the other. The servers of most need much memory; the tests of
test_attacks.py run alone, and would wait for minutes until the others have their exports and containers."""


def group_by_fixtures(items: Sequence[pytest.Item]) -> None:
    """Keep tests of a file in one process, and files that share an expensive fixture."""
    groups: dict[Path, str] = {}
    for item in items:
        if item.path.as_posix().endswith(ONE_PROCESS):
            groups[item.path] = "one process"
        expensive = next((name for name in SHARED if name in getattr(item, "fixturenames", ())), None)
        if expensive is not None:
            groups.setdefault(item.path, expensive)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups.get(item.path, str(item.path))))


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
