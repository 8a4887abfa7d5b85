"""Detects what listens at a URL that did not answer like Triton with the expected protocol."""

from __future__ import annotations

import http.client
import re
import urllib.request
from dataclasses import replace

import urllib3

from ..errors import SamError
from .failures import ADVICE
from .triton import Transport
from .url import ServerUrl

SECONDS = 2.0
METRICS_SECONDS = 10.0
_TRITON_METRICS = re.compile(r"(?m)^(# \w+ )?nv_")
"""Every metric of Triton begins with nv_, for example nv_inference_count."""
_SERVICE_HEALTH = re.compile(r'"status":.*"triton":')
"""The answer of `triton-sam service` at /health, which needs no token; see triton_sam.service.api.v0."""


def hint(url: ServerUrl, error: SamError | None = None) -> str:
    """Return what a user may have meant by a URL that failed; "" if nothing else answers there.

    Triton has three ports: 8000 for HTTP, 8001 for gRPC and 8002 for metrics, unless they were changed.

    Args:
        error: the error that is shown before the hint. If it already names Triton's ports, no hint is added.
    """
    if url.is_secure:
        return ""  # the URL is that of a proxy
    if _SERVICE_HEALTH.search(_read(f"http://{url.address}/health", (200, 503)) or ""):
        return f"; {url.address} is `triton-sam service`: give the URL of its Triton, or open http://{url.address}"
    if ADVICE in str(error):
        return ""
    if _TRITON_METRICS.search(_read(f"http://{url.address}/metrics") or ""):
        return f"; {url.address} is the port of metrics: {ADVICE}"
    if url.is_grpc:
        is_http = _read(f"http://{url.address}/v2/health/live") is not None
        return f"; HTTP answers there: give http://{url.address}" if is_http else ""
    other = replace(url, scheme="grpc")
    return f"; gRPC answers there: give {other}" if "/" not in url.address and _is_live(other) else ""


def _read(url: str, statuses: tuple[int, ...] = (200,)) -> str | None:
    """Return the text of the answer to an HTTP request to a URL; None for another status or no answer."""
    pool = urllib3.PoolManager(timeout=SECONDS, retries=False)
    try:
        response = pool.request("GET", url)
        return response.data.decode(errors="replace") if response.status in statuses else None
    except (urllib3.exceptions.HTTPError, ValueError):
        return None
    finally:
        pool.clear()


def read_metrics(url: str) -> str | None:
    """Return the text of a server's metrics, read by way of the user's proxy; None if they are not available."""
    try:
        with urllib.request.urlopen(url, timeout=METRICS_SECONDS) as answer:  # noqa: S310 - http and https only
            return str(answer.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _is_live(url: ServerUrl) -> bool:
    transport = Transport(url, timeout=SECONDS, retries=0)
    try:
        return transport.is_ready()
    except SamError:
        return False
    finally:
        transport.close()
