"""Reads the counts and times that a server reports: Triton's statistics, and the metrics of session models.

Triton's statistics of a session model are wrong. Its statistics of a decoder exclude clicks on a session model that
runs the decoder in its own process.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable

from ..transport.triton import Transport

_SAMPLE = re.compile(r'(?m)^triton_sam_(\w+)\{(?:[^}]*,)?model="([^"]*)"[^}]*\} (\S+)$')
_PATIENCE = 2.0
"""Maximum delay in seconds until a server has counted an answered request."""


def session_metrics(metrics_url: str | None, model: str) -> dict[str, float]:
    """Return the metrics of a session model, summed over all kinds of requests.

    Args:
        metrics_url: URL of the server's metrics, such as http://host:8002/metrics; None if unknown.

    Returns:
        Values by name without the prefix ``triton_sam_``; empty if the server reports none.
    """
    found: defaultdict[str, float] = defaultdict(float)
    try:
        if metrics_url is not None:
            with urllib.request.urlopen(metrics_url, timeout=5) as answer:  # noqa: S310 - from a parsed server URL
                for name, owner, value in _SAMPLE.findall(answer.read().decode("utf-8", "replace")):
                    if owner == model:
                        found[name] += float(value)
    except (OSError, urllib.error.URLError, ValueError):
        return {}
    return dict(found)


def decode_counter(
    transport: Transport, decoder: str, session_model: str, metrics_url: str | None, click: Callable[[], object]
) -> Callable[[], int | None]:
    """Return a function that reads the number of decodes of a server so far.

    Args:
        click: sends a click and waits for its mask, to detect which count grows.

    Returns:
        The function. It returns None if no reported count grows.
    """
    counts: list[Callable[[], int]] = [
        lambda: int(transport.statistics(decoder)["inference_count"]),
        lambda: int(session_metrics(metrics_url, session_model).get("decodes_total", 0)),
    ]
    before = [count() for count in counts]
    click()
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        for count, least in zip(counts, before, strict=True):
            if count() > least:
                return count
        time.sleep(0.05)
    return lambda: None
