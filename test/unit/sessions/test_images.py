"""The images that a session model keeps, and work that is done once for all who ask at a time."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from triton_sam import ImageError
from triton_sam.errors import ConfigurationError
from triton_sam.sessions.images import ImageStore, SingleFlight
from triton_sam.sessions.messages import Reply

PATIENCE = 60.0


def test_an_image_larger_than_the_cache_is_refused_and_evicts_nothing():
    store, reply = ImageStore(None, 10, None, None, "weights"), Reply()
    store.put("a", (1, 1), {"a": np.zeros(1, np.float32)}, reply)
    with pytest.raises(ConfigurationError, match="of one image take 11 bytes, but cache_bytes is 10"):
        store.put("b", (1, 1), {"a": np.zeros(11, np.uint8)}, reply)
    assert store.gauges() == {"cache_limit_bytes": 10, "cache_bytes": 4, "cache_images": 1}
    store.put("c", (1, 1), {"a": np.zeros(9, np.uint8)}, reply)
    assert reply.counts["cache_evictions"] == 1
    with pytest.raises(ConfigurationError, match="cannot hold an image"):
        ImageStore(None, 0, None, None, "weights")


@pytest.fixture
def waiting(monkeypatch):
    """Released by each caller who begins to wait for what another one does."""
    waiting = threading.Semaphore(0)

    class Watched(Future):
        def result(self, timeout=None):
            waiting.release()
            return super().result(timeout)

    monkeypatch.setattr("triton_sam.sessions.images.Future", Watched)
    return waiting


def test_work_is_done_once_for_each_key(waiting):
    flights, gate, calls = SingleFlight(), threading.Event(), []

    def work(key):
        calls.append(key)
        gate.wait(PATIENCE)
        return key * 2

    with ThreadPoolExecutor(6) as pool:
        jobs = {key: [pool.submit(flights.run, key, lambda key=key: work(key)) for _ in range(3)] for key in "ab"}
        assert all(waiting.acquire(timeout=PATIENCE) for _ in range(4))
        gate.set()
        assert {key: [job.result() for job in of_key] for key, of_key in jobs.items()} == {
            "a": ["aa"] * 3,
            "b": ["bb"] * 3,
        }
    assert sorted(calls) == ["a", "b"]


def test_a_flight_is_shared_also_when_it_fails(waiting):
    flights, gate, calls = SingleFlight(), threading.Event(), []

    def work():
        calls.append(1)
        gate.wait(PATIENCE)
        if len(calls) == 1:
            raise ImageError("no")
        return 7

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(flights.run, "a", work) for _ in range(4)]
        assert all(waiting.acquire(timeout=PATIENCE) for _ in range(3))
        gate.set()
        for job in jobs:
            with pytest.raises(ImageError):
                job.result()
    assert flights.run("a", work) == 7
    assert len(calls) == 2
