"""Which times of a request count as waiting, and when they are reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.conditions import wait_until

from triton_sam.sessions.tasks import Reports, Task, Waiting, place_in, waiting

KIND = "click"


@pytest.fixture
def numbers() -> list[int]:
    """The numbers of waiting requests that were reported."""
    return [0]


@pytest.fixture
def arrived(numbers: list[int]) -> Iterator[Callable[[], Task]]:
    """Makes a request that arrives."""
    reports = Reports()
    counts = Waiting([KIND, "image"], reports, lambda kind, number: numbers.append(number))
    yield lambda: Task(KIND, counts)
    reports.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the tests set."""
    instant = [100.0]
    monkeypatch.setattr("triton_sam.sessions.tasks.time.perf_counter", lambda: instant[0])
    return instant


def test_waiting_counts_before_the_work_and_in_its_pauses(arrived: Callable[[], Task], now: list[float]) -> None:
    task = arrived()
    now[0] += 5
    with task:
        now[0] += 1
        with waiting():
            now[0] += 2
        with waiting() as end:
            now[0] += 2
            end()
            now[0] += 3
        assert task.took is None
        task.answered()
        now[0] += 7
    assert (task.waited, task.took) == (9.0, 13.0)


def test_work_that_fails_leaves_nobody_waiting(arrived: Callable[[], Task], numbers: list[int]) -> None:
    with pytest.raises(OSError, match="x"), arrived(), waiting():
        raise OSError("x")
    refused = arrived()
    wait_until(lambda: numbers[-1] == 1)
    refused.release()
    wait_until(lambda: numbers[-1] == 0)


def test_requests_wait_for_a_place_and_only_those(arrived: Callable[[], Task], numbers: list[int]) -> None:
    places, gate = threading.BoundedSemaphore(2), threading.Event()

    def serve() -> None:
        with arrived(), place_in(places):
            assert gate.wait(60)

    def serve_unmeasured() -> None:
        with place_in(places):
            pass

    with ThreadPoolExecutor(6) as threads:
        served = [threads.submit(serve) for _ in range(5)]
        wait_until(lambda: numbers[-1] == 3)
        served.append(threads.submit(serve_unmeasured))
        gate.set()
    for each in served:
        each.result()
    wait_until(lambda: numbers[-1] == 0)
    assert max(numbers) <= 5
