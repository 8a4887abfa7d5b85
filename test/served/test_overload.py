"""The times of clicks in the metrics are those of the clients, while twenty clients click at a time."""

import statistics
import threading
import time

import numpy as np
import pytest
from support.conditions import eventually, wait_until
from support.custom_metrics import Growth, Scrape
from support.session_requests import CLIENTS, click_together, upload_and_click
from support.toy_server import CALLS, CONFIGURED

from triton_sam.wire import contract

CLICKS = 4
REQUEST, WAITING, GAUGE = "triton_sam_request_seconds", "triton_sam_waiting_seconds", "triton_sam_waiting_requests"


@pytest.fixture(params=[CALLS, CONFIGURED])
def model(request):
    return request.param


@pytest.fixture
def image_id(server, model):
    """The id of an image that the model has."""
    grown = Growth(server.metrics_url, model, "image")
    found = upload_and_click(server.grpc_url, model)
    wait_until(lambda: grown(f"{REQUEST}_count") >= 1)  # the reports of earlier requests come before
    return found


def waiting(server, model: str) -> float:
    return Scrape(server.metrics_url).total(GAUGE, model=model)


@pytest.mark.alone
def test_means_and_quantiles_are_those_of_the_clients(server, model, image_id):
    """Means differ by half or 0.5 s at most, and quantiles by the distance of two buckets."""
    eventually(lambda: measure(server, model, image_id), errors=AssertionError)  # a pause falsifies a measurement


def measure(server, model: str, image_id: bytes) -> None:
    seen: list[float] = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            seen.append(waiting(server, model))

    watcher = threading.Thread(target=watch)
    grown, began = Growth(server.metrics_url, model, "click"), time.perf_counter()
    watcher.start()
    took = click_together(server.grpc_url, model, image_id, CLICKS, 3)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    wait_until(lambda: grown(f"{REQUEST}_count") == grown(f"{WAITING}_count") == CLIENTS * CLICKS)
    wait_until(lambda: waiting(server, model) == 0)
    # The clients' clocks also measure how long twenty threads of this process wait for their turn.
    assert grown(f"{REQUEST}_sum") / len(took) == pytest.approx(statistics.mean(took), rel=0.5, abs=0.5)
    for share in (0.5, 0.95):
        assert grown.quantile(REQUEST, share) == pytest.approx(float(np.quantile(took, share)), rel=0.67, abs=0.5)
    assert max(seen) >= 8
    # Each thread works on one request at a time, so the requests spent the rest of their time waiting.
    working = contract.DEFAULT_THREADS * seconds
    assert grown(f"{REQUEST}_sum") - working < grown(f"{WAITING}_sum") < grown(f"{REQUEST}_sum")
