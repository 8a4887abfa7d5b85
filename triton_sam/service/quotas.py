"""The remaining quota of each caller."""

from __future__ import annotations

import contextlib
import hmac
import math
from collections.abc import Iterator, Sequence

from .budgets import TokenBucket
from .metrics import Metrics
from .problems import Problem
from .settings import EVERYBODY, MEBI, Quota, Token

CALLER = "triton_sam.caller"
"""Key in the ASGI scope; the value is the name of the caller's token."""
COUNT_UPLOAD = "triton_sam.upload"
"""Key in the ASGI scope; the value is a function that counts fetched bytes as an upload of the caller."""
MINUTE, HOUR = 60.0, 3600.0


class Caller:
    """The holder of a token, and the rest of its quota."""

    def __init__(self, name: str, quota: Quota, metrics: Metrics) -> None:
        self.name = name
        self._quota = quota
        self._metrics = metrics
        self._requests = _bucket(quota.requests_per_minute, MINUTE)
        self._bytes = _bucket(quota.image_mib_per_hour and quota.image_mib_per_hour * MEBI, HOUR)
        self._running = 0
        self._pages = 0

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while it runs."""
        limit = self._quota.requests_at_a_time
        if limit is not None and self._running >= limit:
            raise self._refusal("requests_at_a_time", f"{limit:g} requests at a time", 1.0)
        wait = self._requests.take() if self._requests else 0.0
        if wait > 0:
            raise self._refusal("requests_per_minute", f"{self._quota.requests_per_minute:g} requests a minute", wait)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def check_upload(self, count: int) -> None:
        """Reject an upload of this many bytes before it is read if it exceeds the quota."""
        wait = self._bytes.missing(count) if self._bytes else 0.0
        text = f"{self._quota.image_mib_per_hour or 0:g} MiB of uploads an hour"
        if math.isinf(wait):
            self._metrics.over_quota.labels(self.name, "image_mib_per_hour").inc()
            raise Problem(
                413,
                f"this upload is larger than the whole quota of {self.name!r}, {text}: send a smaller file, or ask for "
                "a larger quota",
                code="quota",
            )
        if wait > 0:
            raise self._refusal("image_mib_per_hour", text, wait)

    def upload(self, count: int) -> None:
        self.check_upload(count)
        if self._bytes:
            self._bytes.take(count)

    @contextlib.contextmanager
    def page(self) -> Iterator[None]:
        """Count a page while it is open."""
        limit = self._quota.pages
        if limit is not None and self._pages >= limit:
            raise self._refusal("pages", f"{limit:g} open pages", 10.0)
        self._pages += 1
        try:
            yield
        finally:
            self._pages -= 1

    def _refusal(self, quota: str, text: str, wait: float) -> Problem:
        self._metrics.over_quota.labels(self.name, quota).inc()
        seconds = str(math.ceil(wait))
        return Problem(
            429,
            f"the quota of {self.name!r} is {text}: try again in {seconds} s, or ask for a larger quota",
            headers={"Retry-After": seconds},
            code="quota",
        )


class Callers:
    """All callers of a service, found by their tokens.

    Args:
        tokens: the tokens; if empty, no token is required, and all callers count as one.
    """

    def __init__(self, tokens: Sequence[Token], quota: Quota, metrics: Metrics) -> None:
        self._known = [(token.secret, Caller(token.name, token.quota, metrics)) for token in tokens]
        self._everybody = Caller(EVERYBODY, quota, metrics)
        self.anybody = Caller("anybody", Quota(), metrics)
        """The caller of paths that need no token."""

    def find(self, given: str) -> Caller | None:
        """Return the caller with a token, or None if it is unknown. The time reveals nothing about the tokens."""
        if not self._known:
            return self._everybody
        found = None
        for secret, caller in self._known:
            if same_token(given, secret):
                found = caller
        return found


def same_token(given: str, expected: str) -> bool:
    """Compare two tokens in a time that does not reveal how much of them matches."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _bucket(amount: float | None, seconds: float) -> TokenBucket | None:
    # A bucket below 1 would never hold a whole request.
    return None if amount is None else TokenBucket(amount / seconds, max(1.0, amount))
