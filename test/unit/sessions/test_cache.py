"""What the session model remembers, without a server: the cache, work that is shared, words of errors."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from triton_sam import ImageError, InferenceError, PromptError
from triton_sam.errors import ConfigurationError, UnknownImageError
from triton_sam.sessions.cache import HeldImage, ImageCache, SingleFlight
from triton_sam.wire.contract import read_error

PATIENCE = 60.0


def held(name, nbytes):
    return HeldImage(name, (1, 1), {}, nbytes)


def test_the_cache_counts_bytes_exactly():
    cache = ImageCache(100)
    assert [cache.put(held(name, 40)) for name in "abc"] == [0, 0, 1]
    assert (cache.nbytes, len(cache), cache.get("a")) == (80, 2, None)
    assert cache.get("b").image_id == "b"
    assert cache.put(held("d", 30)) == 1  # c, since b was used
    assert (cache.nbytes, cache.get("c")) == (70, None)
    assert cache.put(held("b", 100)) == 1  # replaced and grown
    assert (cache.nbytes, len(cache)) == (100, 1)
    with pytest.raises(ConfigurationError, match="101 bytes"):
        cache.put(held("e", 101))
    with pytest.raises(ConfigurationError):
        ImageCache(0)


def test_the_cache_never_exceeds_its_limit_in_threads():
    cache, worst = ImageCache(1000), []
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 400, 400).tolist()

    def put(number):
        cache.put(held(str(number % 50), sizes[number]))
        worst.append(cache.nbytes)
        cache.get(str(number % 7))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(400)))
    assert max(worst) <= 1000
    kept = [image for image in map(cache.get, map(str, range(50))) if image is not None]
    assert len(kept) == len(cache)
    assert cache.nbytes == sum(image.nbytes for image in kept)


def test_a_cache_of_one_byte_holds_one():
    cache = ImageCache(1)
    assert (cache.limit, cache.nbytes, len(cache)) == (1, 0, 0)
    assert cache.put(held("a", 1)) == 0
    assert cache.get("a").nbytes == 1
    assert cache.put(held("a", 1)) == 0  # the same again: nothing has to go
    assert (cache.nbytes, len(cache)) == (1, 1)
    with pytest.raises(ConfigurationError, match=r"^the embeddings of one image take 2 bytes, but cache_bytes is 1$"):
        cache.put(held("b", 2))
    assert cache.get("a") is not None


def test_several_go_for_a_large_one():
    cache = ImageCache(10)
    for name in "abcde":
        cache.put(held(name, 2))
    cache.get("a")
    assert cache.put(held("f", 5)) == 3
    assert [name for name in "abcdef" if cache.get(name)] == ["a", "e", "f"]
    assert cache.nbytes == 9
    assert cache.put(held("a", 1)) == 0  # replaced by less
    assert cache.nbytes == 8


@pytest.fixture
def waiting(monkeypatch):
    """Released by each caller who begins to wait for what another one does."""
    waiting = threading.Semaphore(0)

    class Watched(Future):
        def result(self, timeout=None):
            waiting.release()
            return super().result(timeout)

    monkeypatch.setattr("triton_sam.sessions.cache.Future", Watched)
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


def test_errors_keep_their_meaning_on_the_wire():
    for error, kind in (("BAD_PROMPT: x", PromptError), ("sam2 failed: UNKNOWN_IMAGE_ID: gone", UnknownImageError)):
        assert type(read_error(InferenceError(error))) is kind


def test_what_was_used_last_is_evicted_last():
    cache = ImageCache(100)
    for name in "abc":
        cache.put(held(name, 30))
    cache.get("a")
    assert (cache.evict_oldest(90), cache.evict_oldest(89)) == (0, 30)
    assert (cache.limit, cache.nbytes, cache.get("b")) == (100, 60, None)
    cache.lower_limit(30)
    assert cache.limit == 60
    assert cache.put(held("d", 30)) == 1  # c
    assert cache.get("a").image_id == "a"
    assert [cache.evict_oldest() for _ in range(3)] == [30, 30, 0]
    for least in (30, 70):
        cache.lower_limit(least)
        assert (cache.limit, cache.nbytes, len(cache)) == (30, 0, 0)  # room for one is left, and it never rises
    assert cache.put(held("e", 30)) == 0
