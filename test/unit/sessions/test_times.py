"""Which times of a request count as waiting, and when they are reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.conditions import wait_until

from triton_sam.sessions.times import Reports, RequestTimes, place_in, waiting

KIND = "click"


class Noted:
    """times.TimeMetrics."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, float, float | None]] = []
        self.waiting = [0]

    def observe(self, kind: str, waited: float, took: float | None) -> None:
        self.ended.append((kind, waited, took))

    def set_waiting(self, kind: str, number: int) -> None:
        assert kind == KIND
        self.waiting.append(number)


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def times(noted: Noted) -> Iterator[RequestTimes]:
    reports = Reports()
    yield RequestTimes(noted, reports, [KIND, "image"])
    reports.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the tests set."""
    instant = [100.0]
    monkeypatch.setattr("triton_sam.sessions.times.time.perf_counter", lambda: instant[0])
    return instant


def ended(noted: Noted) -> tuple[str, float, float | None]:
    wait_until(lambda: noted.ended)
    (found,) = noted.ended
    return found


@pytest.mark.parametrize(("answered", "took"), [(True, 13.0), (False, None)])
def test_waiting_counts_before_the_work_and_in_its_pauses(
    times: RequestTimes, noted: Noted, now: list[float], answered: bool, took: float | None
) -> None:
    clock = times.arrived(KIND)
    now[0] += 5
    with clock:
        now[0] += 1
        with waiting():
            now[0] += 2
        with waiting() as work:
            now[0] += 2
            work()
            now[0] += 3
        if answered:
            clock.answered()
        now[0] += 7
    assert ended(noted) == (KIND, 9.0, took)


def test_work_that_fails_leaves_nobody_waiting(times: RequestTimes, noted: Noted) -> None:
    with pytest.raises(OSError, match="x"), times.arrived(KIND), waiting():
        raise OSError("x")
    refused = times.arrived(KIND)
    wait_until(lambda: noted.waiting[-1] == 1)
    refused.refused()
    wait_until(lambda: noted.waiting[-1] == 0)
    kind, _, took = ended(noted)
    assert (kind, took) == (KIND, None)


def test_requests_wait_for_a_place_and_only_those(times: RequestTimes, noted: Noted) -> None:
    places, gate = threading.BoundedSemaphore(2), threading.Event()

    def serve() -> None:
        with times.arrived(KIND), place_in(places):
            assert gate.wait(60)

    def serve_unmeasured() -> None:  # as the threads that encode frames ahead
        with place_in(places):
            pass

    with ThreadPoolExecutor(6) as threads:
        served = [threads.submit(serve) for _ in range(5)]
        wait_until(lambda: noted.waiting[-1] == 3)
        served.append(threads.submit(serve_unmeasured))
        gate.set()
    for each in served:
        each.result()
    wait_until(lambda: len(noted.ended) == 5 and noted.waiting[-1] == 0)
    assert max(noted.waiting) <= 5
