"""The budgets that all requests share: bytes, pixels, places and pages. No other limits are shared."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from .metrics import Metrics
from .problems import Problem
from .settings import ServiceSettings


class TokenBucket:
    """An amount that calls consume, refilled at a constant rate. It starts full."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._then = clock()

    def take(self, amount: float = 1.0) -> float:
        """Consume an amount and return 0; if too little is left, consume nothing and return the seconds to wait."""
        wait = self.missing(amount)
        if wait == 0:
            self._left -= amount
        return wait

    def missing(self, amount: float) -> float:
        """Return the seconds until an amount is available; 0: now; infinite: never."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._then) * self._rate)
        self._then = now
        if amount <= self._left:
            return 0.0
        return (amount - self._left) / self._rate if amount <= self._burst else math.inf


Item = TypeVar("Item")
Result = TypeVar("Result")

MEGA = 1_000_000
RETRY_SECONDS = "1"
FREE_BYTES = 1 << 16
"""Bytes of each body and response that are not counted, so that clicks need no room in a budget that uploads fill."""
MAX_FETCHES = 4
"""Maximum concurrent fetches of images; each takes as much memory as a request with a file may have."""
RECEIVING_PER_PLACE = 4
"""Requests whose bodies are being received, for each request that may be processed."""
SMALL_PIXELS = 4 * MEGA
"""Masks and previews up to this size are small: they never wait for large ones."""
SMALL_SHARE = 4
"""One in this many pixels, a quarter of them, is reserved for small ones."""
SMALL_WORKERS, LARGE_WORKERS, FILE_WORKERS = 2, 1, 2
LOGITS_AS_TEXT = 4
"""A logit in JSON takes the memory of this many pixels: base64, and its copy when the response is joined."""
PAGES_MESSAGES = 300.0
"""Messages per second that all pages together may send; waiting pages take turns."""
PAGES_BURST, PAGE_BURST = 0.1, 0.5
"""Seconds of messages that may arrive at once, from all pages and from one."""


class Lease:
    """A part of a budget, held until give()."""

    def __init__(self, budget: Budget, amount: int) -> None:
        self._budget = budget
        self.amount = amount

    def check(self, amount: int) -> None:
        self._budget.check(amount)

    def grow(self, amount: int) -> None:
        self.check(amount)
        self._budget.book(amount)
        self.amount += amount

    def hold(self, amount: int) -> None:
        """Hold this total amount without a check, because the caller was admitted already."""
        self._budget.book(amount - self.amount)
        self.amount = amount

    def pass_on(self) -> Lease:
        """Move everything to a new lease and return it. A `with` block around the old lease then returns nothing."""
        taken = Lease(self._budget, self.amount)
        self.amount = 0
        return taken

    def give(self) -> None:
        """Return everything to the budget. Only the first call has an effect."""
        self.hold(0)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.give()


class Budget:
    """An amount that the whole service shares. Requests for more than the rest are rejected at once.

    Args:
        takes_one: whether any amount is granted while nothing else is in use, even above the limit.
    """

    def __init__(self, name: str, limit: int, refusal: str, metrics: Metrics, *, takes_one: bool = False) -> None:
        self.limit = limit
        self._takes_one = takes_one
        self.used = 0
        self._name = name
        self._refusal = refusal
        self._metrics = metrics
        metrics.budget_limit.labels(name).set(limit)
        self._gauge = metrics.budget_used.labels(name)

    def take(self, amount: int = 1) -> Lease:
        lease = Lease(self, 0)
        lease.grow(amount)
        return lease

    def check(self, amount: int = 1) -> None:
        if self.used + amount > self.limit and (self.used or not self._takes_one):
            self._metrics.refused.labels(self._name).inc()
            raise busy(self._refusal)

    def book(self, amount: int) -> None:
        """Count an amount as used, or as returned if it is negative."""
        self.used += amount
        self._gauge.set(self.used)


class WaitingBudget(Budget):
    """An amount that the whole service shares. Requests for more than the rest wait, and are served in order.

    A request for more than the limit gets the whole amount.
    """

    def __init__(self, name: str, limit: int, refusal: str, metrics: Metrics) -> None:
        super().__init__(name, limit, refusal, metrics)
        self._queue: deque[tuple[int, asyncio.Future[Lease], bool]] = deque()
        self.is_closed = False

    async def wait(self, amount: int, *, has_begun: bool = False) -> Lease:
        """Return a lease.

        Args:
            has_begun: whether the caller had a lease before, so that it gets another one of a closed budget.
        """
        if self.is_closed and not has_begun:
            raise stopping()
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._queue.append((min(amount, self.limit), waiter, has_begun))
        self._serve()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().give()  # granted at the same moment
            self._serve()
            raise

    def close(self) -> None:
        """Reject all waiting and future requests of callers that have not begun."""
        self.is_closed = True
        for _, waiter, has_begun in self._queue:
            if not has_begun and not waiter.done():
                waiter.set_exception(stopping())
        self._serve()

    def book(self, amount: int) -> None:
        super().book(amount)
        if amount < 0:
            self._serve()

    def _serve(self) -> None:
        while self._queue:
            amount, waiter, _ = self._queue[0]
            if not waiter.done():
                if self.used + amount > self.limit:
                    return
                waiter.set_result(self.take(amount))
            self._queue.popleft()


class Stopped(Exception):  # noqa: N818 - control flow, never reported
    """The result of this work is no longer needed."""


class Workers:
    """Threads that compute masks and previews or write files, and the pixels that they may hold in memory.

    Small work never waits for large work, and neither waits for files. A thread cannot be interrupted: if the caller
    leaves, the work stops at the next mask, and its pixels are returned when the thread ends.
    """

    def __init__(self, pixels: int, metrics: Metrics) -> None:
        small = pixels // SMALL_SHARE
        self._largest_small = min(SMALL_PIXELS, small)
        self._stops: set[threading.Event] = set()
        self._small, self._large, self._files = (
            (
                WaitingBudget(f"{name}_work_pixels", max(1, limit), what, metrics),
                concurrent.futures.ThreadPoolExecutor(count, f"triton-sam-{name}"),
            )
            for name, limit, count, what in (
                ("small", small, SMALL_WORKERS, "masks and previews"),
                ("large", pixels - small, LARGE_WORKERS, "masks and previews"),
                ("file", small, FILE_WORKERS, "files"),
            )
        )

    async def run(
        self,
        pixels: int,
        fetch: Callable[[], Awaitable[Iterable[Item]]],
        work: Callable[[Iterator[Item]], Result],
        *,
        is_file: bool = False,
        has_begun: bool = False,
    ) -> Result:
        """Fetch items, and process them one by one in a thread.

        Args:
            pixels: maximum number of pixels in memory at a time.
            fetch: returns the items; it is called when the pixels are free.
            is_file: whether the work writes all images or frames to a file, which may take minutes.
            has_begun: whether this continues work that has begun, which refuse() does not reject.
        """
        small_or_large = self._small if pixels <= self._largest_small else self._large
        budget, executor = self._files if is_file else small_or_large
        lease = await budget.wait(pixels, has_begun=has_begun)
        stop = threading.Event()
        try:
            items = await fetch()
            future = executor.submit(lambda: work(_until(stop, items)))
        except BaseException as error:
            lease.give()
            if isinstance(error, RuntimeError) and budget.is_closed:  # close() has shut the executor down
                raise stopping() from None
            raise
        loop = asyncio.get_running_loop()
        self._stops.add(stop)

        def done() -> None:
            self._stops.discard(stop)
            lease.give()

        future.add_done_callback(lambda _: _call(loop, done))
        try:
            return await asyncio.wrap_future(future)
        finally:
            stop.set()

    async def call(self, pixels: int, work: Callable[..., Result], *arguments: Any) -> Result:
        return await self.reduce(pixels, lambda _: work(*arguments), ())

    async def map(self, pixels: int, convert: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return a function's results for items, each computed in its turn with other callers' work."""

        def work(item: Iterator[Item]) -> list[Result]:
            return [convert(each) for each in item]

        results: list[Result] = []
        for each in items:
            results += await self.reduce(pixels, work, [each], has_begun=bool(results))
        return results

    async def reduce(
        self,
        pixels: int,
        work: Callable[[Iterator[Item]], Result],
        items: Iterable[Item],
        *,
        is_file: bool = False,
        has_begun: bool = False,
    ) -> Result:
        """Return the result of a function of all items, processed one by one in a thread; see run()."""

        async def fetch() -> Iterable[Item]:
            return items

        return await self.run(pixels, fetch, work, is_file=is_file, has_begun=has_begun)

    def refuse(self) -> None:
        """Reject all work that has not begun."""
        for budget, _ in (self._small, self._large, self._files):
            budget.close()

    def close(self) -> None:
        """Stop all work at the next mask, without waiting for it."""
        self.refuse()
        for stop in self._stops:
            stop.set()
        for _, executor in (self._small, self._large, self._files):
            executor.shutdown(wait=False, cancel_futures=True)


class Budgets:
    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        self.bodies = Budget("body_bytes", settings.body_bytes, "uploads at a time", metrics)
        self.answers = Budget("answer_bytes", settings.answer_bytes, "large answers at a time", metrics, takes_one=True)
        self.places = Budget("requests", settings.max_requests, "requests at a time", metrics)
        self.receiving = Budget(
            "unread_requests", settings.max_requests * RECEIVING_PER_PLACE, "requests that still arrive", metrics
        )
        self.pages = Budget("pages", settings.max_pages, "open pages", metrics)
        self.videos = Budget("videos", settings.max_videos, "videos", metrics)
        self.video_bytes = Budget("video_bytes", settings.video_bytes, "bytes of videos", metrics)
        self.video_masks = Budget("video_mask_bytes", settings.video_mask_bytes, "masks of videos", metrics)
        self.tracks = Budget("tracks", settings.max_tracks, "videos that are tracked at a time", metrics)
        self.fetches = Budget("fetches", MAX_FETCHES, "images that are fetched from addresses at a time", metrics)
        self.searches = Budget("searches", settings.max_searches, "images that are searched at a time", metrics)
        self.workers = Workers(int(settings.work_megapixels * MEGA), metrics)
        self.messages = Pace(PAGES_MESSAGES, PAGES_BURST)


class Pace:
    """A rate that delays callers instead of rejecting them.

    Args:
        burst: seconds of the rate that may be used at once after a pause.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._burst = max(1.0, rate * burst)
        self._bucket = TokenBucket(rate, self._burst)
        self._turn = asyncio.Lock()

    async def wait(self, amount: float = 1.0) -> None:
        """Return when the caller may continue. An amount larger than a burst counts as a burst."""
        amount = min(amount, self._burst)
        async with self._turn:  # a lock is fair
            while True:
                seconds = self._bucket.take(amount)
                if seconds == 0:
                    return
                await asyncio.sleep(seconds)


def work_pixels(size: tuple[int, int], kept: int, masks: int, side: int, *, logits: bool = False) -> int:
    """Return the number of pixels in memory while a response is computed."""
    return kept * size[0] * size[1] + masks * side**2 * (1 + LOGITS_AS_TEXT * logits)


def busy(what: str) -> Problem:
    return Problem(
        503, f"the service has too many {what}: try again soon", headers={"Retry-After": RETRY_SECONDS}, code="busy"
    )


def stopping() -> Problem:
    return Problem(503, "the service stops: try again soon", headers={"Retry-After": RETRY_SECONDS}, code="stopping")


def _until(stop: threading.Event, items: Iterable[Item]) -> Iterator[Item]:
    for item in items:  # each is computed when the loop reaches it
        yield item
        if stop.is_set():
            raise Stopped


def _call(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed
        loop.call_soon_threadsafe(done)
