"""HTTP for downloads: a connection pool with the right proxy, the classification of failures, and images at URLs.

Clients open URLs of images only on request, never automatically.
"""

from __future__ import annotations

import re
import ssl
import time
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    HTTPError,
    InvalidHeader,
    LocationParseError,
    MaxRetryError,
    NameResolutionError,
    ProxyError,
    SSLError,
)

from .._common.text import first_line
from ..errors import ConfigurationError, DownloadError, ImageError

_TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""The HTTP status codes after which a retry may succeed."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_DNS_RETRIES = 2
"""Attempts to resolve a name: one that fails for about three seconds is wrong, or the network is closed."""


class TransientError(Exception):
    """A failure after which a retry may succeed.

    Args:
        wait: seconds to wait before the next attempt, as the server requests; None if it does not.
        retries: number of attempts after which more are useless; None if there is no limit.
    """

    def __init__(self, reason: str, wait: float | None = None, retries: int | None = None) -> None:
        super().__init__(reason)
        self.wait = wait
        self.retries = retries


class NetworkError(DownloadError):
    """The server or the network prevents a download."""


class NotFoundError(NetworkError):
    """The server does not have the file; the server of another URL may have it."""


def bad_status(url: str, response: urllib3.BaseHTTPResponse) -> Exception:
    """Return the error to raise for an unsuccessful response."""
    status, reason = response.status, response.reason or ""
    if status in _TRANSIENT_STATUSES:
        return TransientError(f"the server answered {status} {reason}".strip(), _retry_after(response))
    if status in (404, 410):
        return NotFoundError(f"{url} does not exist ({status}): check the URL")
    if status in (401, 403, 407):
        return NetworkError(f"{url} is forbidden ({status}): check the URL and the proxy")
    return NetworkError(f"{url} cannot be downloaded: the server answered {status} {reason}".strip())


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    try:
        value = response.headers.get("Retry-After")
        return None if value is None else urllib3.Retry().parse_retry_after(value)
    except InvalidHeader:
        return None


def classify(error: HTTPError, url: str) -> Exception:
    """Return the error to raise for a network failure: a TransientError if a retry may succeed."""
    reason: BaseException = error
    while isinstance(reason, MaxRetryError) and reason.reason is not None:
        reason = reason.reason
    causes = [reason, *reason.args]
    if isinstance(reason, ProxyError) and isinstance(reason.original_error, BaseException):
        causes += [reason.original_error, *reason.original_error.args]
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return DownloadError(
            f"the certificate of {urllib3.util.parse_url(url).host} is not trusted: set SSL_CERT_FILE to "
            f"your network's certificates ({reason})"
        )
    if isinstance(reason, SSLError):
        return TransientError(f"TLS failed: {_first_line(reason)}")
    if isinstance(error, MaxRetryError) and "redirect" in str(reason):
        return DownloadError(f"{url} redirects in circles")
    is_unknown = any(isinstance(cause, NameResolutionError) for cause in causes)
    return TransientError(_first_line(reason), retries=_DNS_RETRIES if is_unknown else None)


def _first_line(error: BaseException) -> str:
    # urllib3 begins its messages with the connection: "HTTPSConnection(host='...', port=443): Failed to resolve ..."
    reason = re.sub(r"^(<[^>]*>|\w+\([^)]*\))(, |: )", "", first_line(error))
    return re.sub(r"\[Errno -?\d+\] ", "", reason)


def make_pool(url: str, timeout: float) -> urllib3.PoolManager:
    """Return a connection pool for a URL, with the proxy from the environment."""
    parts = _parsed(url)
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigurationError(f"{without_credentials(url)!r} must begin with http:// or https://")
    # The pool only follows redirects. fetch.py retries failed requests itself, because it resumes the download.
    retries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)
    waits = urllib3.Timeout(connect=timeout, read=timeout)
    proxies = getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    proxy = proxies.get(kind)
    if not proxy or proxy_bypass(parts.netloc or parts.host):
        return urllib3.PoolManager(retries=retries, timeout=waits)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    address = _proxy_address(proxy, f"{kind.upper()}_PROXY")
    headers = urllib3.make_headers(proxy_basic_auth=_unquoted(address.auth)) if address.auth else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, retries=retries, timeout=waits)


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its user name and password, which error texts must not show, and the header with them."""
    parts = _parsed(url)
    if not parts.auth:
        return url, {}
    basic = urllib3.make_headers(basic_auth=_unquoted(parts.auth))["authorization"]
    return parts._replace(auth=None).url, {"Authorization": basic}


def without_credentials(url: str) -> str:
    """Return the part of a URL behind its user name and password, for messages; the URL need not be valid."""
    return url.rpartition("@")[2]


def _unquoted(auth: str) -> str:
    """Return name and password of a URL. make_headers() encodes them as Latin-1, so this keeps their bytes."""
    return unquote(auth, encoding="latin-1")


def _parsed(url: str) -> urllib3.util.Url:
    shown = without_credentials(url)
    if _CONTROL.search(url):  # urllib3 would send them in another form
        raise ConfigurationError(f"{shown!r} holds a line break or another control character: leave it out")
    try:
        return urllib3.util.parse_url(url)
    except LocationParseError as error:
        raise ConfigurationError(
            f"{shown!r} is not a valid URL: it must look like https://host/path, with a port up to 65535"
        ) from error


def _proxy_address(proxy: str, variable: str) -> urllib3.util.Url:
    """Parse the URL of a proxy. Errors name the variable instead of the URL, which may contain a password."""
    try:
        address = urllib3.util.parse_url(proxy)
    except LocationParseError as error:
        raise ConfigurationError(f"{variable} is not a valid URL: it must look like http://host:port") from error
    if address.scheme not in ("http", "https"):
        raise ConfigurationError(f"{variable} must begin with http:// or https://, not with {address.scheme}://")
    if not address.host:
        raise ConfigurationError(f"{variable} names no host: it must look like http://host:port")
    return address


MAX_BYTES = 256 << 20
_CHUNK = 1 << 16


def fetch_image(url: str, *, timeout: float = 30.0, max_bytes: int = MAX_BYTES) -> bytes:
    """Download an image file.

    Proxies come from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, trusted certificates from the system or from
    SSL_CERT_FILE. Redirects are followed. Check URLs from other people: this function opens any URL that this machine
    can reach, including internal ones.

    Args:
        url: an http or https URL.
        timeout: maximum duration of the download in seconds.
        max_bytes: maximum size of the file.

    Returns:
        The bytes of the file, for set_image() and other methods, which check that it is an image.

    Raises:
        ConfigurationError: the URL is not valid or neither http nor https, or an option is out of range.
        ImageError: the file cannot be downloaded in time, or it is larger than ``max_bytes``.

    Examples:
        >>> client.set_image(fetch_image("https://example.org/cat.jpg"))
    """
    if timeout <= 0 or max_bytes < 1:
        raise ConfigurationError("timeout must be above 0 seconds, and max_bytes at least 1")
    end = time.monotonic() + timeout
    url, headers = split_credentials(url)
    pool = make_pool(url, timeout)
    try:
        response = pool.request("GET", url, headers=headers, preload_content=False)
        try:
            if response.status != 200:
                raise ImageError(
                    f"no image at {url}: the server answered {response.status} {response.reason or ''}".strip()
                )
            content = bytearray()
            for piece in response.stream(_CHUNK):
                content += piece
                if len(content) > max_bytes:
                    raise ImageError(f"{url} is larger than {max_bytes} bytes: allow more by max_bytes")
                if time.monotonic() > end:
                    raise ImageError(f"{url} did not arrive within {timeout:g} s")
        finally:
            response.close()
    except HTTPError as error:
        meant = classify(error, url)
        text = f"no image at {url}: {meant}" if isinstance(meant, TransientError) else str(meant)
        raise ImageError(text) from error
    finally:
        pool.clear()
    return bytes(content)
