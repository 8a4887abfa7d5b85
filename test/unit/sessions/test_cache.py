"""What the session model remembers, without a server: the cache, work that is shared, words of errors."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import strategies as _profiles  # noqa: F401 - loads the profiles of hypothesis

from triton_sam import ImageError, InferenceError, PromptError
from triton_sam.errors import ConfigurationError, UnknownImageError
from triton_sam.sessions.cache import HeldImage, ImageCache, SingleFlight
from triton_sam.wire.contract import read_error

PATIENCE = 60.0


def held(name, nbytes):
    return HeldImage(name, (1, 1), {}, nbytes)


class CacheMachine(RuleBasedStateMachine):
    """Any calls of a cache against the images in the order of their use, the oldest first."""

    @initialize(limit=st.integers(1, 60))
    def make(self, limit):
        self.cache, self.limit, self.images = ImageCache(limit), limit, {}

    def size(self):
        return sum(self.images.values())

    @rule(name=st.sampled_from("abcde"), nbytes=st.integers(1, 30))
    def put(self, name, nbytes):
        if nbytes > self.limit:
            words = f"^the embeddings of one image take {nbytes} bytes, but cache_bytes is {self.limit}$"
            with pytest.raises(ConfigurationError, match=words):
                self.cache.put(held(name, nbytes))
            return
        self.images.pop(name, None)
        evicted = 0
        while self.size() + nbytes > self.limit:
            del self.images[next(iter(self.images))]
            evicted += 1
        self.images[name] = nbytes
        assert self.cache.put(held(name, nbytes)) == evicted

    @rule(name=st.sampled_from("abcde"))
    def get(self, name):
        found = self.cache.get(name)
        assert (found and (found.image_id, found.nbytes)) == (
            (name, self.images[name]) if name in self.images else None
        )
        if found:
            self.images[name] = self.images.pop(name)

    @rule(keep=st.integers(0, 60))
    def evict_oldest(self, keep):
        oldest = next(iter(self.images), "")
        assert self.cache.evict_oldest(keep) == (self.images.pop(oldest) if self.size() > keep else 0)

    @rule(least=st.integers(1, 80))
    def lower_limit(self, least):
        self.cache.lower_limit(least)
        self.limit = min(self.limit, max(self.size(), least))

    @invariant()
    def sizes_are_exact(self):
        assert (self.cache.limit, self.cache.nbytes, len(self.cache)) == (self.limit, self.size(), len(self.images))


TestCache = CacheMachine.TestCase


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


def test_a_cache_without_room_is_refused():
    with pytest.raises(ConfigurationError, match="cannot hold an image"):
        ImageCache(0)


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
