"""Images that callers name by their address: public addresses alone, and only if the service's operator allows it."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated
from urllib.parse import urljoin, urlsplit

import urllib3
from pydantic import ConfigDict, Field

from ..transport.timed_sockets import CURRENT, Call
from .budgets import Budgets
from .problems import Problem
from .public import FetchPool, PrivateAddressError
from .schemas import Strict
from .settings import MEBI, Settings

MAX_REDIRECTS = 4
SECONDS = 30.0
"""The time for one image, from the look-up of the name to the last byte, with all redirects."""
PIECE = 1 << 16
HEADERS = {
    "User-Agent": "triton_sam",
    "Accept": "image/*,*/*;q=0.5",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
"""Nothing in them comes from the caller."""


class ImageUrl(Strict):
    """The address of an image."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"url": "https://example.org/photo.jpg"}]}
    )

    url: Annotated[str, Field(max_length=2048, description="An http or https address that everybody can reach.")]


class ImageUrls:
    """Fetches images.

    Args:
        settings: the options.
        budgets: they limit how many images are fetched at a time.
    """

    def __init__(self, settings: Settings, budgets: Budgets) -> None:
        self._is_allowed = settings.image_urls
        self._limit = settings.max_body
        self._fetches = budgets.fetches

    async def fetch(self, url: str) -> bytes:
        """Return the content at an address, at most ``max_body`` bytes.

        Raises:
            Problem: 403, the operator has not allowed it; 413, the image is too large; 422, no such address may be
                used; 502, there is no image to be had; 503, the service fetches other images; 504, it takes too long.
        """
        if not self._is_allowed:
            raise Problem(
                403,
                "this service fetches no images from addresses: upload the image, or ask the person who runs the "
                "service to start it with --image-urls",
                code="image_urls_off",
            )
        _check(url)
        end = time.monotonic() + SECONDS
        call = Call(end)
        with self._fetches.take():
            try:
                return await asyncio.to_thread(self._fetch, url, call, end)
            finally:
                call.cancel()  # also when the caller has gone away

    def _fetch(self, url: str, call: Call, end: float) -> bytes:
        CURRENT.call = call
        with FetchPool() as pool:
            for _ in range(MAX_REDIRECTS + 1):
                content, place = self._get(pool, url, end)
                if not place:
                    return content
                url = urljoin(url, place)
                _check(url)
        raise _failed(f"the address leads on more than {MAX_REDIRECTS} times")

    def _get(self, pool: FetchPool, url: str, end: float) -> tuple[bytes, str]:
        """Return the content at an address, and the address that it leads to, "" if it leads nowhere."""
        host = urlsplit(url).hostname
        try:
            answer = pool.request("GET", url, headers=HEADERS, redirect=False, preload_content=False)
            try:
                place = answer.get_redirect_location()
                if place:
                    return b"", place
                if answer.status != 200:
                    raise _failed(f"{host} answers {answer.status}")
                return self._read(answer), ""
            finally:
                answer.close()
        except PrivateAddressError:
            # Which address it is, or whether something listens there, is nothing that a caller may learn.
            raise Problem(422, f"{host} is not a public host: upload the image", code="private_address") from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            if time.monotonic() >= end:
                raise Problem(504, f"{host} did not send the image within {SECONDS:g} s", code="timeout") from None
            raise _failed(f"{host} cannot be reached") from None

    def _read(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        pieces, count = [], 0
        for piece in answer.stream(PIECE, decode_content=False):
            count += len(piece)
            if count > self._limit:
                raise Problem(413, f"the image is larger than {self._limit / MEBI:g} MiB")
            pieces.append(piece)
        return b"".join(pieces)


def _check(url: str) -> None:
    """Refuse what is no address of a public image, as far as its text tells."""
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


def _failed(text: str) -> Problem:
    return Problem(502, f"{text}: open the address in a browser, or upload the image", code="fetch_failed")
