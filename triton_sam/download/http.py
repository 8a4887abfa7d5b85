"""What download.py needs of HTTP: a pool that goes through the right proxy, and which failures may pass."""

from __future__ import annotations

import re
import ssl
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader, LocationParseError, MaxRetryError, ProxyError, SSLError

from ..errors import ConfigurationError, DownloadError

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP status codes that a later try may not see again."""


class PassingError(Exception):
    """A failure that is worth another try, after ``wait`` seconds where the server named them."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class NotFoundError(DownloadError):
    """The server has no such file; another URL may."""


def bad_status(url: str, response: urllib3.BaseHTTPResponse) -> Exception:
    """Turn an HTTP status other than success into the error to raise."""
    status, reason = response.status, response.reason or ""
    if status in _PASSING:
        return PassingError(f"the server answered {status} {reason}".strip(), _retry_after(response))
    if status in (404, 410):
        return NotFoundError(f"{url} does not exist ({status}): check the mirror's URL")
    if status in (401, 403, 407):
        return DownloadError(f"{url} is forbidden ({status}): check proxy and mirror, or use another --mirror")
    return DownloadError(f"{url} cannot be downloaded: the server answered {status} {reason}".strip())


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    try:
        value = response.headers.get("Retry-After")
        return None if value is None else urllib3.Retry().parse_retry_after(value)
    except InvalidHeader:
        return None


def classify(error: HTTPError, url: str) -> Exception:
    """Tell failures of the network that may pass from those that will not."""
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
        return PassingError(f"TLS failed: {_first_line(reason)}")
    if isinstance(error, MaxRetryError) and "redirect" in str(reason):
        return DownloadError(f"{url} is redirected in circles")
    return PassingError(_first_line(reason))


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    # urllib3 puts the connection in front: "HTTPSConnection(host='...', port=443): Failed to resolve ..."
    return re.sub(r"^(<[^>]*>|\w+\([^)]*\))(, |: )", "", lines[0]) if lines else type(error).__name__


def make_pool(url: str, timeout: float) -> urllib3.PoolManager:
    """Make the connection pool for a URL, through the proxy of the environment."""
    parts = urllib3.util.parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigurationError(f"{url!r} must begin with http:// or https://")
    # Redirects are followed here; all other tries are counted in _transfer, which resumes.
    retries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)
    waits = urllib3.Timeout(connect=timeout, read=timeout)
    proxies = getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    proxy = proxies.get(kind)
    if not proxy or proxy_bypass(parts.netloc or parts.host):
        return urllib3.PoolManager(retries=retries, timeout=waits)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    address = _proxy_address(proxy, f"{kind.upper()}_PROXY")
    # As Latin-1, in which make_headers() writes them, the bytes of a name or password come out as they went in.
    auth = unquote(address.auth, encoding="latin-1") if address.auth else None
    headers = urllib3.make_headers(proxy_basic_auth=auth) if auth else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, retries=retries, timeout=waits)


def _proxy_address(proxy: str, variable: str) -> urllib3.util.Url:
    """Take a proxy's URL apart. Messages name the variable and not the URL, which may hold a password.

    Raises:
        ConfigurationError: it is none that can be used.
    """
    try:
        address = urllib3.util.parse_url(proxy)
    except LocationParseError as error:
        raise ConfigurationError(f"{variable} is no URL: it must look like http://host:port") from error
    if address.scheme not in ("http", "https"):
        raise ConfigurationError(f"{variable}: proxies must be http:// or https://, not {address.scheme}://")
    if not address.host:
        raise ConfigurationError(f"{variable} names no host: it must look like http://host:port")
    return address
