"""Work for a client ends with the client: when it hangs up, cancels its `session_id`, or has waited for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("fastapi")
from triton_sam.service.cancellation import CancellableRequests
from triton_sam.service.metrics import Metrics
from triton_sam.service.problems import CLIENT_CLOSED_REQUEST, Problem


class Client:
    """The request of a client that stays until it hangs up, or whose body has a fault."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self._parts = 3
        self.hangs_up = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        if self._fault is not None:
            raise self._fault
        if self._parts:  # of a body that no route reads
            self._parts -= 1
            return {"type": "http.request"}
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}


class Work:
    """Work that ends when a test says so."""

    def __init__(self) -> None:
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> str:
        self.began.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # the call to Triton is cancelled, too
            self.cancelled = True
            raise
        return "masks"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def requests(metrics: Metrics) -> CancellableRequests:
    return CancellableRequests(60, metrics)


def cancelled(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("triton_sam_service_cancelled_total") or 0


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story; no task may be left behind."""

    async def alone() -> None:
        await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(alone())


async def begun(requests: CancellableRequests, client: Client, work: Work, *args: Any, **options: Any) -> Any:
    """Start a request, and return its task once the work has begun."""
    task = asyncio.create_task(requests.run(client, work(), *args, **options))  # type: ignore[arg-type]
    await work.began.wait()
    return task


def test_results_and_errors_of_the_work_reach_the_client(requests: CancellableRequests, metrics: Metrics) -> None:
    async def fail() -> None:
        raise ValueError("no such mask")

    async def story() -> None:
        work = Work()
        task = await begun(requests, Client(), work, "me")
        work.goes_on.set()
        assert await task == "masks"
        with pytest.raises(ValueError, match="no such mask"):
            await requests.run(Client(), fail())  # type: ignore[arg-type]
        assert requests.cancel("me") == 0

    run(story)
    assert cancelled(metrics) == 0


def test_work_ends_before_the_answer_when_the_client_hangs_up(requests: CancellableRequests, metrics: Metrics) -> None:
    async def story() -> None:
        client, work = Client(), Work()
        task = await begun(requests, client, work)
        client.hangs_up.set()
        with pytest.raises(Problem) as caught:
            await task
        assert (caught.value.status_code, caught.value.code) == (CLIENT_CLOSED_REQUEST, "cancelled")
        assert work.cancelled

    run(story)
    assert cancelled(metrics) == 1


def test_a_session_id_cancels_its_requests_and_no_others(requests: CancellableRequests, metrics: Metrics) -> None:
    async def story() -> None:
        works = [Work() for _ in range(4)]
        names = ("me", "me", "you", None)
        tasks = [await begun(requests, Client(), work, name) for work, name in zip(works, names, strict=True)]
        live = asyncio.create_task(Work()())
        requests.name(live, "me")
        requests.name(live, None)
        assert requests.cancel("me") == 3
        for task in tasks[:2]:
            with pytest.raises(Problem) as caught:
                await task
            assert caught.value.status_code == CLIENT_CLOSED_REQUEST
        with pytest.raises(asyncio.CancelledError):
            await live
        await asyncio.sleep(0)
        assert requests.cancel("me") == 0
        for work in works[2:]:
            work.goes_on.set()
        assert [await task for task in tasks[2:]] == ["masks", "masks"]
        assert [work.cancelled for work in works] == [True, True, False, False]

    run(story)
    assert cancelled(metrics) == 2


@pytest.mark.parametrize(("whole", "own"), [(0.02, None), (60, 0.02)])
def test_work_that_takes_too_long_is_cancelled(metrics: Metrics, whole: float, own: float | None) -> None:
    async def story() -> None:
        work = Work()
        task = await begun(CancellableRequests(whole, metrics), Client(), work, timeout=own)
        with pytest.raises(Problem, match=r"no result within 0\.02 s: try again") as caught:
            await task
        assert (caught.value.status_code, caught.value.code) == (504, "timeout")
        assert work.cancelled

    run(story)
    assert cancelled(metrics) == 0


def test_a_request_may_have_more_time_than_others(metrics: Metrics) -> None:
    async def story() -> None:
        task = await begun(CancellableRequests(0.01, metrics), Client(), work := Work(), timeout=60)
        await asyncio.sleep(0.05)
        work.goes_on.set()
        assert await task == "masks"

    run(story)


def test_a_fault_of_a_body_that_nobody_reads_is_the_answer(requests: CancellableRequests, metrics: Metrics) -> None:
    async def story() -> None:
        work = Work()
        with pytest.raises(Problem) as caught:
            await requests.run(Client(Problem(413, "too large", code="too_large")), work())  # type: ignore[arg-type]
        assert caught.value.status_code == 413
        assert work.cancelled or not work.began.is_set()

    run(story)
    assert cancelled(metrics) == 0


def test_a_caller_that_is_cancelled_takes_its_work_along(requests: CancellableRequests) -> None:
    async def story() -> None:
        work = Work()
        task = await begun(requests, Client(), work, "me")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.cancelled
        assert requests.cancel("me") == 0

    run(story)


async def ask_and_die(requests: CancellableRequests, number: int) -> None:
    """Run some work, which ends with a result, or fails, or is cancelled by anybody."""
    client = Client()
    if number % 4 == 0:
        client.hangs_up.set()

    async def work() -> None:
        for _ in range(number % 7):
            await asyncio.sleep(0)
        if number % 3 == 0:
            raise ValueError
        if number % 5 == 0:
            await asyncio.Event().wait()

    call = requests.run(client, work(), f"id {number % 50}", timeout=0.1)  # type: ignore[arg-type]
    task = asyncio.create_task(call)
    for _ in range(1 + number % 11):
        await asyncio.sleep(0)
    if number % 13 == 0:
        task.cancel()
    if number % 17 == 0:
        requests.cancel(f"id {number % 50}")
    await asyncio.gather(task, return_exceptions=True)


def test_a_session_id_is_forgotten_with_its_requests(requests: CancellableRequests) -> None:
    async def story() -> None:
        await asyncio.gather(*(ask_and_die(requests, number) for number in range(500)))
        assert [requests.cancel(f"id {number}") for number in range(50)] == [0] * 50
        assert not requests._tasks

    run(story)
