"""Work in threads and the pixels that it may hold: turns, ends, and places that come back."""

import asyncio
import threading

import pytest
from support.conditions import PATIENCE, until

from triton_sam.service.budgets import WaitingBudget, Workers
from triton_sam.service.metrics import Metrics
from triton_sam.service.problems import Problem


@pytest.mark.anyio
async def test_large_work_takes_turns_and_small_work_does_not_wait_for_it():
    workers = Workers(40_000_000, Metrics())
    free, running = threading.Event(), []

    async def fetch():
        return [None]

    def compute(name):
        def run(_):
            running.append(name)
            free.wait(PATIENCE)

        return run

    large = [asyncio.create_task(workers.run(25_000_000, fetch, compute(number))) for number in range(3)]
    await until(lambda: running)
    free_too = asyncio.create_task(workers.run(1000, fetch, lambda _: "small"))
    assert await asyncio.wait_for(free_too, PATIENCE) == "small"
    large[1].cancel()  # while it waits
    large[0].cancel()  # while it runs: its pixels come back when its thread is done
    await asyncio.sleep(0.1)
    assert running == [0]
    free.set()
    await asyncio.wait_for(large[2], PATIENCE)
    assert running == [0, 2]
    workers.close()
    with pytest.raises(Problem, match="stops"):
        await workers.run(1, fetch, compute(3))


@pytest.mark.anyio
async def test_the_masks_of_callers_take_turns():
    workers, started, converted = Workers(40_000_000, Metrics()), threading.Event(), []
    free = threading.Event()

    def convert(name):
        converted.append(name)
        started.set()
        free.wait(PATIENCE)

    many = asyncio.create_task(workers.map(6_000_000, convert, ["many 1", "many 2"]))
    await asyncio.to_thread(started.wait, PATIENCE)
    one = asyncio.create_task(workers.map(6_000_000, convert, ["one"]))
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(many, one)
    workers.close()
    assert converted == ["many 1", "one", "many 2"]


@pytest.mark.anyio
async def test_a_service_that_stops_finishes_lists_that_have_begun():
    workers, begun, free = Workers(40_000_000, Metrics()), [], {name: threading.Event() for name in "abc"}

    def convert(name):
        free[name].wait(PATIENCE)
        return name

    def items(names):
        for name in names:
            begun.append(name)
            yield name

    first, second, late = (asyncio.create_task(workers.map(25_000_000, convert, items(n))) for n in ("ab", "c", "d"))
    await asyncio.sleep(0)
    free["a"].set()
    await until(lambda: "b" in begun)  # b waits for c
    workers.refuse()
    free["b"].set()
    free["c"].set()
    assert await asyncio.wait_for(asyncio.gather(first, second), PATIENCE) == [["a", "b"], ["c"]]
    with pytest.raises(Problem, match="stops"):
        await late
    workers.close()


@pytest.mark.anyio
@pytest.mark.parametrize("stage", ["refuse", "close"])
async def test_a_click_in_flight_is_answered_while_the_service_stops(stage):
    workers, fetching, answered = Workers(40_000_000, Metrics()), asyncio.Event(), asyncio.Event()

    async def fetch():
        fetching.set()
        await answered.wait()
        return ["mask"]

    click = asyncio.create_task(workers.run(1000, fetch, list))
    await fetching.wait()
    getattr(workers, stage)()
    answered.set()
    if stage == "refuse":
        assert await click == ["mask"]
    else:
        with pytest.raises(Problem, match="stops"):
            await click
    workers.close()


@pytest.mark.anyio
async def test_work_stops_between_masks():
    workers = Workers(40_000_000, Metrics())
    made, go_on, ended = [], threading.Event(), threading.Event()

    def masks():
        for number in range(100):
            made.append(number)
            yield number

    async def fetch():
        return masks()

    def compute(items):
        try:
            for _ in items:
                go_on.wait(PATIENCE)
        finally:
            ended.set()

    waiting = asyncio.create_task(workers.run(1000, fetch, compute))
    await until(lambda: made)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    go_on.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    workers.close()
    assert made == [0]


@pytest.mark.anyio
async def test_a_budget_serves_in_order_and_gives_back_what_was_cancelled():
    budget = WaitingBudget("a", 10, "things", Metrics())
    first = await budget.wait(8)
    second, third = (asyncio.create_task(budget.wait(amount)) for amount in (99, 1))
    await asyncio.sleep(0)
    assert not second.done()
    assert not third.done()  # it would fit, but it came later
    second.cancel()
    assert (await third).amount == 1
    first.give()
    first.give()
    assert budget.used == 1
    alone = asyncio.create_task(budget.wait(99))
    await asyncio.sleep(0)
    third.result().give()
    assert (await alone).amount == 10


@pytest.mark.anyio
async def test_a_lease_that_comes_as_its_waiter_is_cancelled_is_given_back():
    budget = WaitingBudget("a", 10, "things", Metrics())
    lease = await budget.wait(10)
    waiting = asyncio.ensure_future(budget.wait(5))
    await asyncio.sleep(0)
    lease.give()  # now the lease of the waiter is there, and the waiter has not run yet
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert budget.used == 0


@pytest.mark.anyio
async def test_work_whose_images_cannot_be_fetched_gives_its_pixels_back():
    async def fetch():
        raise ValueError("gone")

    workers = Workers(1_000, Metrics())
    for _ in range(3):  # each would take more than half
        with pytest.raises(ValueError, match="gone"):
            await asyncio.wait_for(workers.run(600, fetch, list), PATIENCE)
    workers.close()
