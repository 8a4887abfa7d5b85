"""The run as a whole: tests in two processes (``pytest -n 2``), the end of shared servers, memory, and skips."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import re
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from filelock import FileLock

ONE_PROCESS = ("test/slow/test_concepts.py", "test/slow/test_containers_run.py", "test/slow/test_runtimes.py")
"""Files that run in the same process, one at a time, because their servers or programs need much memory."""

SHARED = ("service_triton", "server", "families_server", "video_models")
"""Fixtures that take long or much memory, longest first. All tests with the same fixture run in one process."""

GROUP = pytest.StashKey[str]()


def group_by_use(items: list[pytest.Item]) -> None:
    """Group the tests by their fixtures, longest groups first.

    Tests that use an expensive fixture are one group. A test that shares fixtures or caches with its file stays with
    the file. Any other test is a separate group, which an idle process runs, so both are busy until the end. A single
    process runs the tests in the same order.
    """
    groups = [_group(item) for item in items]
    sizes = collections.Counter(groups)
    slow_files = {group for item, group in zip(items, groups, strict=True) if "browser" in _fixtures(item)}
    places = {}
    for number, (item, group) in enumerate(zip(items, groups, strict=True)):
        item.stash[GROUP] = group or f"free {number}"
        if hasattr(item.config, "workerinput"):
            item.add_marker(pytest.mark.xdist_group(item.stash[GROUP]))
        # A test that runs alone waits for the other process's test, so it is last.
        places[item] = (*_place(group, sizes, slow_files), item.get_closest_marker("alone") is not None)
    items.sort(key=places.__getitem__)


def _group(item: pytest.Item) -> str | None:
    """Return the name of a test's group; None if the test is free."""
    file = item.nodeid.partition("::")[0]
    if file in ONE_PROCESS:
        return "one process"
    # A test that uses several belongs to the smallest group.
    expensive = next((name for name in reversed(SHARED) if name in _fixtures(item)), None)
    if expensive is not None:
        return expensive
    # Tests of exports cache their models in the process (support/family_exports.py).
    if item.get_closest_marker("export") is not None or _shares_with_its_file(item):
        return file
    return None


def same_group(item: pytest.Item, other: pytest.Item | None) -> bool:
    """Return whether two tests are in the same group."""
    return other is not None and item.stash[GROUP] == other.stash[GROUP]


def _fixtures(item: pytest.Item) -> Sequence[str]:
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return names


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture with a scope between function and session."""
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
    """Refuse to run in two processes if pytest-xdist has not grouped the tests.

    Each process would create the expensive fixtures, which together need more than 16 GB of memory.
    """
    if ids and "@" not in ids[0]:
        pytest.exit(
            f"pytest-xdist forms no groups of tests with pytest {pytest.__version__}:"
            " install the versions of constraints.txt, or run pytest without -n",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


@contextlib.contextmanager
def turn(item: pytest.Item) -> Iterator[None]:
    """Run a test concurrently, or alone if it is marked ``alone`` because other tests would disturb it.

    Every process holds its own lock during a test, and a test that runs alone holds all locks. Processes pass a gate
    before they acquire locks, so that no other test starts while a test waits to run alone.
    """
    # Not the environment variables: a test may start pytest, which inherits them.
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        yield
        return
    everybody = [f"gw{number}" for number in range(worker["workercount"])]
    # The run's own temporary folder, which outlives both processes and which pytest removes itself.
    folder = Path(item.config.option.basetemp).parent
    with contextlib.ExitStack() as held:
        with FileLock(folder / "gate.lock"):
            for name in everybody if item.get_closest_marker("alone") else [worker["workerid"]]:
                held.enter_context(FileLock(folder / f"{name}.lock"))
        yield


# --- the end of servers that the next tests do not use, because all together would fill the memory -------------------

Server = TypeVar("Server")
Result = TypeVar("Result")

_RUNNING = pytest.StashKey[dict[str, Any]]()


def shared(request: pytest.FixtureRequest, server: contextlib.AbstractContextManager[Server]) -> Iterator[Server]:
    """Yield a server from a fixture. It ends before a group of tests without the fixture."""
    with server as running:
        request.config.stash.setdefault(_RUNNING, {})[str(request.fixturename)] = request
        yield running


_CACHES: list[Callable[[], None]] = []


def cached_in_group(function: Callable[..., Result]) -> Callable[..., Result]:
    """Cache the results of a function, for example models of torch, until another group of tests begins."""
    cached = functools.cache(function)
    _CACHES.append(cached.cache_clear)
    return cached


def return_free_memory() -> None:
    """Return freed memory of this process to the system. In the middle of a run, glibc kept 0.8 GB."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def end_unused(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the servers that the next group of tests does not use, newest first, and clear the caches of this group.

    If a later test needs a server again, pytest calls the fixture again, because it counts as finished.
    """
    if same_group(item, nextitem):
        return
    needed = getattr(nextitem, "fixturenames", ())
    running = item.config.stash.get(_RUNNING, {})
    for name in [name for name in reversed(running) if name not in needed]:
        request = running.pop(name)
        request._fixturedef.finish(request)
    for clear in _CACHES:
        clear()
    return_free_memory()


# --- the memory of a run with all processes that its tests start -----------------------------------------------------

GIB = 1 << 30


class PeakMemory:
    """Samples the system's used memory every second, minus the memory used before the run."""

    def __init__(self) -> None:
        self._before = _used()
        self._peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(1):
            self._peak = max(self._peak, _used() - self._before)

    def write(self, file: Path) -> str:
        """Stop, write the peak to a file, and return the written line."""
        self._end.set()
        self._thread.join()
        line = f"peak memory of the run: {self._peak / GIB:.1f} GB"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line + "\n", encoding="utf-8")
        return line


def _used() -> int:
    import psutil  # conftest imports this module wherever tests run; psutil needs POSIX on Linux

    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


# --- `pytest --only-allowed-skips` fails if a test is skipped for another reason: CI installs what it can ------------

ALLOWED = {
    # Tests in an environment of their own.
    r"could not import 'napari'": "its pytest plugins warn in all tests; nightly.yml has an environment for it",
    # The other case is tested.
    r"openvino is installed": "tests the error without it",
    r"s3fs is installed": "tests the error without it",
    # Programs, codecs and rights that this machine lacks or has.
    r"this nginx is older than 1\.27\.3": "distributions have an older one; the containers' tests use a newer one",
    r"this user may not mount file systems": "containers and hosted machines forbid it",
    r"without AVX2": "the processor",
    r"this PyAV has no ": "the codecs of FFmpeg's build",
    r"this machine has a GPU": "tests the messages without one",
}
"""Patterns of reasons, each with the reason why CI cannot or need not run the test."""


def forbidden_skips(stats: Mapping[str, list[Any]]) -> list[str]:
    """Return a line for each skipped test or file whose reason is not allowed, from the reports by outcome."""
    return sorted(set(_forbidden(stats)))


def _forbidden(stats: Mapping[str, list[Any]]) -> Iterator[str]:
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(pattern, reason) for pattern in ALLOWED):
            test, _, _ = (report.nodeid or str(report.fspath)).partition("@")  # pytest-xdist appends the group
            yield f"{test}: {reason}"
