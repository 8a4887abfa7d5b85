"""The dispatcher on its event loop, with a transport that does not answer."""

import asyncio
import gc
import threading
import warnings

import pytest

from triton_sam.client.dispatcher import Dispatcher, Work
from triton_sam.client.io_loop import IO_LOOP
from triton_sam.client.lanes import Lanes, State
from triton_sam.wire.pair import Request


class Silent:
    """A transport that does not answer."""

    def __init__(self):
        self.requests = 0

    async def infer(self, model, inputs, outputs):
        self.requests += 1
        await asyncio.Event().wait()

    async def in_time(self, call, end=None):
        return await call

    async def close(self):
        pass


@pytest.fixture
def transport():
    return Silent()


@pytest.fixture
def dispatcher(transport):
    made = Dispatcher(transport, Lanes())
    yield made
    made.close().result(30)


def prediction():
    """A flow of one request."""
    yield Request("sam2", {}, ())


def test_a_prediction_that_is_cancelled_before_it_was_handed_to_the_loop_is_not_sent(dispatcher, transport):
    """Another thread may cancel between the decision to send a request and its way to the loop."""
    (job,) = dispatcher.submit([Work(prediction())], "lane")

    def start_and_cancel(lanes):
        step = lanes.start()
        assert job.state is State.RUNNING
        job.work.future.cancel()  # the loop learns of this before it learns of the start
        return step

    dispatcher.change(start_and_cancel)
    assert dispatcher.sent == 1
    settled = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), IO_LOOP.acquire())
    settled.result(30)
    IO_LOOP.release()
    assert transport.requests == 0


@pytest.mark.parametrize("turns", range(8))
def test_a_request_that_is_cancelled_at_any_moment_leaves_no_coroutine(dispatcher, turns):
    """Cancel a request some turns of the event loop after it was made: before its task starts, and while it waits."""
    loop, ended = IO_LOOP.acquire(), threading.Event()

    def make():
        wait(dispatcher.infer(Request("sam2", {}, ())), turns)

    def wait(future, left):
        if left:
            loop.call_soon(wait, future, left - 1)
        else:
            future.cancel()
            loop.call_later(0.01, ended.set)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.call_soon_threadsafe(make)
        assert ended.wait(30)
        gc.collect()
    IO_LOOP.release()
    assert [str(warning.message) for warning in caught] == []
