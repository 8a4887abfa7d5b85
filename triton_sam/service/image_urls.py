"""Fetches images from URLs that callers send: only public URLs, and only if the operator allows it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import urllib3
from pydantic import ConfigDict, Field

from . import public
from .budgets import Budgets
from .problems import Problem
from .public import MAX_REDIRECTS, SECONDS, FetchError, FetchPool, fetch
from .schemas import Strict
from .settings import MEBI, ServiceSettings

HEADERS = {**public.HEADERS, "User-Agent": "triton_sam", "Accept": "image/*,*/*;q=0.5"}
"""They contain nothing from the caller."""


class ImageUrl(Strict):
    """The URL of an image."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"url": "https://example.org/photo.jpg"}]}
    )

    url: Annotated[str, Field(max_length=2048, description="A public http or https URL.")]


class ImageUrls:
    """Fetches images from URLs.

    Args:
        budgets: limit the number of concurrent fetches.
    """

    def __init__(self, settings: ServiceSettings, budgets: Budgets) -> None:
        self._is_allowed = settings.image_urls
        self._limit = settings.max_body
        self._fetches = budgets.fetches

    async def fetch(self, url: str) -> bytes:
        """Return the content at a URL, at most ``max_body`` bytes."""
        if not self._is_allowed:
            raise Problem(
                403,
                "this service does not fetch images from URLs: upload the image, or start it with --image-urls",
                code="image_urls_off",
            )
        with self._fetches.take(), FetchPool() as pool:
            try:
                return await fetch(url, self._limit, lambda each: _get(pool, each))
            except FetchError as error:
                raise self._problem(error) from None

    def _problem(self, error: FetchError) -> Problem:
        host = urlsplit(error.url).hostname
        if error.fault == "private":
            # Callers must not learn the address, or whether something listens there.
            return Problem(422, f"{host} is not a public host: upload the image", code="private_address")
        if error.fault == "large":
            return Problem(413, f"the image is larger than {self._limit / MEBI:g} MiB")
        if error.fault == "slow":
            return Problem(504, f"{host} did not send the image within {SECONDS:g} s", code="timeout")
        text = {
            "redirects": f"the address leads on more than {MAX_REDIRECTS} times",
            "status": f"{host} answers {error.status}",
        }.get(error.fault, f"{host} cannot be reached")
        return Problem(502, f"{text}: open the address in a browser, or upload the image", code="fetch_failed")


def _get(pool: FetchPool, url: str) -> urllib3.BaseHTTPResponse:
    _check(url)
    return pool.request("GET", url, headers=HEADERS, redirect=False, preload_content=False)


def _check(url: str) -> None:
    """Reject a text that cannot be the URL of a public image."""
    try:
        parts = urlsplit(url)
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise Problem(422, "an address begins with http:// or https:// and the name of a host", code="bad_url")
    if parts.username is not None or parts.password is not None:
        raise Problem(422, "an address must not carry a user name or a password", code="bad_url")
