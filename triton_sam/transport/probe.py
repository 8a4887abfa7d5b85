"""Finds out what listens at an address where Triton was expected to speak another protocol."""

from __future__ import annotations

import re
from dataclasses import replace

import urllib3

from ..errors import SamError
from .triton import Transport
from .url import ServerUrl

SECONDS = 2.0
_TRITON_METRICS = re.compile(r"(?m)^(# \w+ )?nv_")
"""Every metric of Triton begins with nv_, for example nv_inference_count."""
_SERVICE_METRICS = "triton_sam_service_"
"""The beginning of the names of metrics of `triton-sam service`; triton_sam.service.metrics has them."""


def hint(url: ServerUrl) -> str:
    """Return what a user may have meant by a URL that failed; "" if the address answers in no other way.

    Triton has three ports: 8000 for HTTP, 8001 for gRPC and 8002 for metrics, unless they were changed.

    Args:
        url: the URL that failed.
    """
    if url.is_secure:
        return ""  # the address is that of a proxy
    metrics = _read(f"http://{url.address}/metrics") or ""
    if _SERVICE_METRICS in metrics:
        return f"; {url.address} is `triton-sam service`: give the URL of its Triton, or open http://{url.address}"
    if _TRITON_METRICS.search(metrics):
        return f"; {url.address} is the port of metrics: give the one of HTTP (8000) or gRPC (8001)"
    if url.is_grpc:
        is_http = _read(f"http://{url.address}/v2/health/live") is not None
        return f"; HTTP answers there: give http://{url.address}" if is_http else ""
    other = replace(url, scheme="grpc")
    return f"; gRPC answers there: give {other}" if "/" not in url.address and _is_live(other) else ""


def _read(url: str) -> str | None:
    """Return the text that an address answers to this URL over HTTP; None if it answers with no success."""
    pool = urllib3.PoolManager(timeout=SECONDS, retries=False)
    try:
        response = pool.request("GET", url)
        return response.data.decode(errors="replace") if response.status == 200 else None
    except (urllib3.exceptions.HTTPError, ValueError):
        return None
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
