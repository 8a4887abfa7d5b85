"""The dispatcher with calls that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from triton_sam.client.dispatcher import Dispatcher, Work
from triton_sam.client.lanes import Lanes, State
from triton_sam.transport.threads import Threads, pause


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.close()


def test_a_prediction_that_is_cancelled_before_it_was_sent_is_not_sent(threads: Threads) -> None:
    """Another thread may cancel between the decision to send a request and its start."""
    called = threading.Event()
    dispatcher = Dispatcher(threads, Lanes())
    (job,) = dispatcher.submit([Work(called.set)], "lane")

    def start_and_cancel(lanes):
        step = lanes.start()
        assert job.state is State.RUNNING
        job.work.future.cancel()
        return step

    dispatcher.change(start_and_cancel)
    assert dispatcher.sent == 1
    threads.submit(lambda: None).result(30)
    assert not called.is_set()


def test_closing_cancels_the_predictions_that_run_and_those_that_wait(threads: Threads) -> None:
    dispatcher = Dispatcher(threads, Lanes(total=1))
    jobs = [dispatcher.submit([Work(lambda: pause(60))], lane)[0] for lane in ("first", "second")]
    dispatcher.start()
    dispatcher.close()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.work.future.result(30)
