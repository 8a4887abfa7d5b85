"""Finds out what listens at an address where Triton was expected to speak another protocol."""

from __future__ import annotations

from dataclasses import replace

import urllib3

from ..errors import SamError
from .triton import Transport
from .url import ServerUrl

SECONDS = 2.0


def hint(url: ServerUrl) -> str:
    """Return what a user may have meant by a URL that failed; "" if the address answers in no other way.

    Triton has three ports: 8000 for HTTP, 8001 for gRPC and 8002 for metrics, unless they were changed.

    Args:
        url: the URL that failed.
    """
    if url.is_secure:
        return ""  # the address is that of a proxy
    if _answers(f"http://{url.address}/metrics"):
        return f"; {url.address} is the port of metrics: give the one of HTTP (8000) or gRPC (8001)"
    if url.is_grpc:
        is_http = _answers(f"http://{url.address}/v2/health/live")
        return f"; HTTP answers there: give http://{url.address}" if is_http else ""
    other = replace(url, scheme="grpc")
    return f"; gRPC answers there: give {other}" if "/" not in url.address and _is_live(other) else ""


def _answers(url: str) -> bool:
    """Whether an address answers this URL over HTTP with a success."""
    pool = urllib3.PoolManager(timeout=SECONDS, retries=False)
    try:
        return pool.request("GET", url).status == 200
    except (urllib3.exceptions.HTTPError, ValueError):
        return False
    finally:
        pool.clear()


def _is_live(url: ServerUrl) -> bool:
    transport = Transport(url, timeout=SECONDS, retries=0)
    try:
        return transport.is_ready()
    except SamError:
        return False
    finally:
        transport.close()
