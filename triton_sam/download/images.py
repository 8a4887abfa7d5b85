"""Fetch an image from the web on request. Clients never open web URLs automatically."""

from __future__ import annotations

import time

from urllib3.exceptions import HTTPError

from ..errors import ConfigurationError, ImageError
from .http import TransientError, classify, make_pool

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
    pool = make_pool(url, timeout)
    try:
        response = pool.request("GET", url, preload_content=False)
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
