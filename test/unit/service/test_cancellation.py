"""Work for a client ends with the client: when it hangs up, cancels its `session_id`, or has waited for too long."""

import asyncio

import pytest

from triton_sam.service.cancellation import CancellableRequests
from triton_sam.service.metrics import Metrics
from triton_sam.service.problems import CLIENT_CLOSED_REQUEST, Problem

pytestmark = pytest.mark.anyio


class Client:
    """The request of a client that stays until it hangs up, or whose body has a fault."""

    def __init__(self, fault=None):
        self._fault = fault
        self._parts = 3
        self.hangs_up = asyncio.Event()

    async def receive(self):
        if self._fault is not None:
            raise self._fault
        if self._parts:  # of a body that no route reads
            self._parts -= 1
            return {"type": "http.request"}
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}


class Work:
    """Work that ends when a test says so."""

    def __init__(self):
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def __call__(self):
        self.began.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # the call to Triton is cancelled, too
            self.cancelled = True
            raise
        return "masks"


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def requests(metrics):
    return CancellableRequests(60, metrics)


def cancelled(metrics):
    return metrics.registry.get_sample_value("triton_sam_service_cancelled_total") or 0


@pytest.fixture(autouse=True)
async def _no_task_is_left():
    before = len(asyncio.all_tasks())
    yield
    assert len(asyncio.all_tasks()) == before


async def begun(requests, client, work, *args, **options):
    """Start a request, and return its task once the work has begun."""
    task = asyncio.create_task(requests.run(client, work(), *args, **options))
    await work.began.wait()
    return task


async def test_results_and_errors_of_the_work_reach_the_client(requests, metrics):
    async def fail():
        raise ValueError("no such mask")

    work = Work()
    task = await begun(requests, Client(), work, "me")
    work.goes_on.set()
    assert await task == "masks"
    with pytest.raises(ValueError, match="no such mask"):
        await requests.run(Client(), fail())
    assert requests.cancel("me") == 0
    assert cancelled(metrics) == 0


async def test_work_ends_before_the_answer_when_the_client_hangs_up(requests, metrics):
    client, work = Client(), Work()
    task = await begun(requests, client, work)
    client.hangs_up.set()
    with pytest.raises(Problem) as caught:
        await task
    assert (caught.value.status_code, caught.value.code) == (CLIENT_CLOSED_REQUEST, "cancelled")
    assert work.cancelled
    assert cancelled(metrics) == 1


async def test_a_session_id_cancels_its_requests_and_no_others(requests, metrics):
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
    assert cancelled(metrics) == 2


@pytest.mark.parametrize(("whole", "own"), [(0.02, None), (60, 0.02)])
async def test_work_that_takes_too_long_is_cancelled(metrics, whole, own):
    work = Work()
    task = await begun(CancellableRequests(whole, metrics), Client(), work, timeout=own)
    with pytest.raises(Problem, match=r"no result within 0\.02 s: try again") as caught:
        await task
    assert (caught.value.status_code, caught.value.code) == (504, "timeout")
    assert work.cancelled
    assert cancelled(metrics) == 0


async def test_a_fault_of_a_body_that_nobody_reads_is_the_answer(requests, metrics):
    work = Work()
    with pytest.raises(Problem) as caught:
        await requests.run(Client(Problem(413, "too large", code="too_large")), work())
    assert caught.value.status_code == 413
    assert work.cancelled or not work.began.is_set()
    assert cancelled(metrics) == 0


async def test_a_caller_that_is_cancelled_takes_its_work_along(requests):
    work = Work()
    task = await begun(requests, Client(), work, "me")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled
    assert requests.cancel("me") == 0


async def ask_and_die(requests, number):
    """Run some work, which ends with a result, or fails, or is cancelled by anybody."""
    client = Client()
    if number % 4 == 0:
        client.hangs_up.set()

    async def work():
        for _ in range(number % 7):
            await asyncio.sleep(0)
        if number % 3 == 0:
            raise ValueError
        if number % 5 == 0:
            await asyncio.Event().wait()

    call = requests.run(client, work(), f"id {number % 50}", timeout=0.1)
    task = asyncio.create_task(call)
    for _ in range(1 + number % 11):
        await asyncio.sleep(0)
    if number % 13 == 0:
        task.cancel()
    if number % 17 == 0:
        requests.cancel(f"id {number % 50}")
    await asyncio.gather(task, return_exceptions=True)


async def test_a_session_id_is_forgotten_with_its_requests(requests):
    await asyncio.gather(*(ask_and_die(requests, number) for number in range(500)))
    assert [requests.cancel(f"id {number}") for number in range(50)] == [0] * 50
    assert not requests._tasks
