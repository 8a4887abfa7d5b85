"""What the session model remembers, without a server: the cache, work that is shared, words of errors."""

import random
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


class Model:
    """The images of a cache in the order of their use, the oldest first."""

    def __init__(self, limit):
        self.limit, self.images = limit, {}

    def size(self):
        return sum(self.images.values())

    def put(self, name, nbytes):
        """Return the number of evicted images."""
        self.images.pop(name, None)
        before = len(self.images)
        while self.size() + nbytes > self.limit:
            self.evict_oldest(0)
        evicted = before - len(self.images)
        self.images[name] = nbytes
        return evicted

    def get(self, name):
        if name in self.images:
            self.images[name] = self.images.pop(name)
        return self.images.get(name)

    def evict_oldest(self, keep):
        return self.images.pop(next(iter(self.images))) if self.size() > keep else 0

    def lower_limit(self, least):
        self.limit = min(self.limit, max(self.size(), least))


@pytest.mark.parametrize("limit", [1, 40, 100])
def test_any_calls_of_a_cache_keep_the_images_that_were_used_last(limit):
    rng = random.Random(limit)
    for _ in range(40):
        cache, model = ImageCache(limit), Model(limit)
        for _ in range(60):
            name, nbytes, least = rng.choice("abcdefgh"), rng.choice([1, 5, 9, 14, 30]), rng.randrange(10, 120)
            call = rng.choice(["put"] * 6 + ["get"] * 4 + ["evict"] + ["lower"] * (least > 60))
            if call == "put" and nbytes > model.limit:
                words = f"^the embeddings of one image take {nbytes} bytes, but cache_bytes is {model.limit}$"
                with pytest.raises(ConfigurationError, match=words):
                    cache.put(held(name, nbytes))
            elif call == "put":
                assert cache.put(held(name, nbytes)) == model.put(name, nbytes)
            elif call == "get":
                found = cache.get(name)
                assert (found.nbytes if found else None) == model.get(name)
            elif call == "evict":
                keep = rng.choice([0, model.size(), least])
                assert cache.evict_oldest(keep) == model.evict_oldest(keep)
            else:
                cache.lower_limit(least)
                model.lower_limit(least)
            assert (cache.limit, cache.nbytes, len(cache)) == (model.limit, model.size(), len(model.images))


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
