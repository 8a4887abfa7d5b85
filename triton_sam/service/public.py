"""Fetches files at URLs from untrusted sources, only from public addresses, and images at URLs that callers send.

Without this, a redirect could make the service reach its own network, or a cloud's metadata service.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

import urllib3
from pydantic import Field
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import HTTPError

from ..transport.kserve import TimedConnection, TimedTlsConnection
from ..transport.timed_sockets import CURRENT, Call, TimedTlsSocket, resolve
from .budgets import MAX_FETCHES, Budgets
from .problems import Problem
from .schemas import Strict, examples
from .settings import MEBI, ServiceSettings

MAX_REDIRECTS = 4
SECONDS = 30.0
"""The timeout for one file, from the name lookup to the last byte, with all redirects."""
PIECE = 1 << 16
_THREADS = concurrent.futures.ThreadPoolExecutor(2 * MAX_FETCHES, "triton-sam-fetch")
"""Slow hosts hold these threads for up to SECONDS. Those of asyncio.to_thread() are few, and all requests use them."""
HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All IPv6 addresses of the public internet. Python also calls site-local ones and unassigned ranges global."""


class PrivateAddressError(HTTPError):
    """A host has an address that is not public."""


class FetchError(Exception):
    """The file cannot be fetched.

    Args:
        status: the status of the response, with the fault ``status``.
    """

    def __init__(
        self,
        fault: Literal["private", "silent", "slow", "status", "large", "redirects"],
        url: str,
        reason: object = "",
        status: int = 0,
    ) -> None:
        super().__init__(str(reason))
        self.fault = fault
        self.url = url
        self.status = status


async def fetch(url: str, limit: int, request: Callable[[str], urllib3.BaseHTTPResponse]) -> bytes:
    """Return the content of a URL after redirects, at most ``limit`` bytes."""
    end = time.monotonic() + SECONDS
    call = Call(end)
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, _fetch, url, limit, request, call, end)
    finally:
        call.cancel()  # even if the caller has disconnected


def _fetch(url: str, limit: int, request: Callable[[str], urllib3.BaseHTTPResponse], call: Call, end: float) -> bytes:
    CURRENT.call = call
    for _ in range(MAX_REDIRECTS + 1):
        try:
            with contextlib.closing(request(url)) as answer:
                place = answer.get_redirect_location()
                if not place:
                    return _content(answer, url, limit)
        except PrivateAddressError as error:
            raise FetchError("private", url, error) from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            raise FetchError("slow" if time.monotonic() >= end else "silent", url) from None
        url = urljoin(url, place)
    raise FetchError("redirects", url)


def _content(answer: urllib3.BaseHTTPResponse, url: str, limit: int) -> bytes:
    if answer.status != 200:
        raise FetchError("status", url, status=answer.status)
    content = bytearray()
    for piece in answer.stream(PIECE, decode_content=False):
        content += piece
        if len(content) > limit:
            raise FetchError("large", url)
    return bytes(content)


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet.

    Args:
        address: an IPv4 or IPv6 address; IPv6 may have a zone (``fe80::1%eth0``). An IPv4 address within an IPv6
            address counts as the IPv4 address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is None and found not in _GLOBAL_UNICAST:
            return False
        found = inner or found
    return found.is_global and not found.is_multicast


class FetchPool(urllib3.PoolManager):
    """A urllib3 pool whose connections end with their thread's Call (transport/timed_sockets.py).

    It does not follow redirects, retry, or keep connections, and does not wait for slow senders after the Call ends.

    Args:
        public: whether it raises a PrivateAddressError instead of connecting to an address that is not public.
    """

    def __init__(self, *, public: bool = True) -> None:
        super().__init__(ssl_context=_tls_context(), retries=False)
        self._kinds = (
            {"http": _Public, "https": _PublicTls} if public else {"http": TimedConnection, "https": TimedTlsConnection}
        )

    def _new_pool(
        self, scheme: str, host: str, port: int, request_context: dict[str, Any] | None = None
    ) -> HTTPConnectionPool:
        pool = super()._new_pool(scheme, host, port, request_context)
        pool.ConnectionCls = self._kinds[scheme]
        return pool


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return a context with the certificates of the system, which take tens of milliseconds to load."""
    context = ssl.create_default_context()
    context.sslsocket_class = TimedTlsSocket
    return context


class _Public(TimedConnection):
    def _new_conn(self) -> socket.socket:
        host, port = self._dns_host.strip("[]"), self.port or self.default_port
        # Checked before connecting, so that callers cannot find open ports of a private network, and afterwards,
        # because the second lookup of a name may return another address.
        _check(self.host, [str(each[4][0]) for each in resolve(host, port, CURRENT.call.left())])
        return _checked(self.host, super()._new_conn())


class _PublicTls(_Public, TimedTlsConnection):
    pass


def _checked(host: str, connection: socket.socket) -> socket.socket:
    """Return a connection to a public address; close any other one."""
    try:
        _check(host, [connection.getpeername()[0]])
    except BaseException:
        connection.close()
        raise
    return connection


def _check(host: str, addresses: list[str]) -> None:
    for address in addresses:
        if not is_public(address):
            raise PrivateAddressError(f"{host} has the address {address}, which is not public")


IMAGE_HEADERS = {**HEADERS, "User-Agent": "triton_sam", "Accept": "image/*,*/*;q=0.5"}
"""They contain nothing from the caller."""


class ImageUrl(Strict):
    """The URL of an image."""

    model_config = examples({"url": "https://example.org/photo.jpg"})

    url: Annotated[str, Field(max_length=2048, description="A public http or https URL.")]


async def fetch_image(url: str, settings: ServiceSettings, budgets: Budgets) -> bytes:
    """Return the image at a URL, at most ``max_body`` bytes."""
    if not settings.image_urls:
        raise Problem(
            403,
            "this service does not fetch images from URLs: upload the image, or start it with --image-urls",
            code="image_urls_off",
        )
    with budgets.fetches.take(), FetchPool() as pool:
        try:
            return await fetch(url, settings.max_body, lambda each: _get(pool, each))
        except FetchError as error:
            raise _problem(error, settings.max_body) from None


def _problem(error: FetchError, limit: int) -> Problem:
    host = urlsplit(error.url).hostname
    if error.fault == "private":
        # Callers must not learn the address, or whether something listens there.
        return Problem(422, f"{host} is not a public host: upload the image", code="private_address")
    if error.fault == "large":
        return Problem(413, f"the image is larger than {limit / MEBI:g} MiB")
    if error.fault == "slow":
        return Problem(504, f"{host} did not send the image within {SECONDS:g} s", code="timeout")
    text = {
        "redirects": f"{host} sends more than {MAX_REDIRECTS} redirects",
        "status": f"{host} answers {error.status}",
    }.get(error.fault, f"{host} cannot be reached")
    return Problem(502, f"{text}: open the URL in a browser, or upload the image", code="fetch_failed")


def _get(pool: FetchPool, url: str) -> urllib3.BaseHTTPResponse:
    _check_url(url)
    return pool.request("GET", url, headers=IMAGE_HEADERS, redirect=False, preload_content=False)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise Problem(422, "a URL must begin with http:// or https:// and the name of a host", code="bad_url")
    if parts.username is not None or parts.password is not None:
        raise Problem(422, "a URL must not contain a user name or a password", code="bad_url")
