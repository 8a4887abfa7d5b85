"""The dispatcher on its event loop, with a transport that does not answer."""

import gc
import threading
import warnings

import pytest
from support.fake_transport import NEVER, AsyncFakeTransport

from triton_sam.client.dispatcher import Dispatcher
from triton_sam.client.io_loop import IO_LOOP
from triton_sam.client.lanes import Lanes
from triton_sam.wire.pair import Request


@pytest.fixture
def dispatcher():
    made = Dispatcher(AsyncFakeTransport(lambda request: NEVER), Lanes())
    yield made
    made.close().result(30)


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
