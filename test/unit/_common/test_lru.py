"""The one cache behind the session model's images, the service's images and the embeddings of the 2024 API."""

import random
import threading
import time

import pytest

from triton_sam._common.lru import ByteLru


class Model:
    """The values of a cache in the order of their use, the oldest first."""

    def __init__(self, limit):
        self.limit, self.sizes = limit, {}

    def nbytes(self):
        return sum(self.sizes.values())

    def put(self, name, nbytes):
        """Return the number of evicted values."""
        self.sizes.pop(name, None)
        before = len(self.sizes)
        while self.sizes and self.nbytes() + nbytes > self.limit:
            self.remove_oldest(0)
        evicted = before - len(self.sizes)
        self.sizes[name] = nbytes
        return evicted

    def get(self, name):
        if name in self.sizes:
            self.sizes[name] = self.sizes.pop(name)
        return self.sizes.get(name)

    def peek(self, name):
        return self.sizes.get(name)

    def resize(self, name, nbytes):
        self.sizes[name] = nbytes
        while len(self.sizes) > 1 and self.nbytes() > self.limit:
            self.remove_oldest(0)

    def remove(self, name):
        return self.sizes.pop(name, None) is not None

    def remove_oldest(self, keep):
        return self.sizes.pop(next(iter(self.sizes))) if self.nbytes() > keep else 0

    def lower_limit(self, least):
        self.limit = min(self.limit, max(self.nbytes(), least))


@pytest.mark.parametrize("limit", [1, 40, 100])
def test_any_calls_keep_the_values_that_were_used_last(limit):
    """A value larger than the limit is kept alone, and a value that grows may be the one that is evicted."""
    rng = random.Random(limit)
    for _ in range(60):
        cache, model = ByteLru(limit), Model(limit)
        for _ in range(60):
            name, nbytes, least = rng.choice("abcdefgh"), rng.choice([1, 5, 9, 14, 30, 150]), rng.randrange(10, 120)
            call = rng.choice(
                ["put"] * 6 + ["get"] * 3 + ["peek", "resize", "remove", "oldest"] + ["lower"] * (least > 60)
            )
            if call == "put":
                assert cache.put(name, name, nbytes) == model.put(name, nbytes)
            elif call in ("get", "peek"):
                assert getattr(cache, call)(name) == (name if getattr(model, call)(name) else None)
            elif call == "resize" and name in model.sizes:
                cache.resize(name, nbytes)
                model.resize(name, nbytes)
            elif call == "remove":
                assert cache.remove(name) == model.remove(name)
            elif call == "oldest":
                keep = rng.choice([0, model.nbytes(), least])
                assert cache.remove_oldest(keep) == model.remove_oldest(keep)
            elif call == "lower":
                cache.lower_limit(least)
                model.lower_limit(least)
            assert (cache.limit, cache.nbytes, cache.values()) == (model.limit, model.nbytes(), list(model.sizes))
            assert len(cache) == len(model.sizes)


class SlowKey(str):
    """A key that lets other threads run in the middle of each call of the cache."""

    __slots__ = ()

    def __hash__(self):
        time.sleep(0)
        return super().__hash__()


def test_threads_that_put_and_remove_lose_no_bytes():
    cache = ByteLru(100)

    def work(number):
        for turn in range(300):
            cache.put(SlowKey(turn % 20 + number), turn, 1 + turn % 30)
            cache.remove(SlowKey(turn % 7))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = cache.nbytes
    assert kept == sum(iter(cache.remove_oldest, 0)) <= 100
