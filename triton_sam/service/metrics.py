"""The metrics at /metrics; each application has its own registry."""

from __future__ import annotations

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SPACE = "triton_sam_service"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of a service; every name begins with ``triton_sam_service_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = functools.partial(Counter, namespace=SPACE, registry=self.registry)
        gauge = functools.partial(Gauge, namespace=SPACE, registry=self.registry)
        self.requests = counter("requests", "HTTP requests", ["method", "route", "status"])
        self.seconds = Histogram(
            "request_seconds", "Time to the answer", ["route"], SPACE, registry=self.registry, buckets=_SECONDS
        )
        self.in_flight = gauge("requests_in_flight", "Requests worked on now")
        self.pages = gauge("pages", "Open pages (WebSockets)")
        self.live = counter(
            "live_predictions",
            "Predictions asked for by pages; replaced ones were never computed or cancelled",
            ["lane", "outcome"],
        )
        self.encodes = counter("encodes", "Images sent to an encoder")
        self.cancelled = counter("cancelled", "Requests given up by their clients")
        self.triton_up = gauge("triton_up", "1 when Triton answers and has models")
        self.budget_used = gauge("budget_used", "The used part of a budget that all requests share", ["budget"])
        self.budget_limit = gauge("budget_limit", "Limit of a budget", ["budget"])
        self.refused = counter("refused", "Requests refused because a budget was used up", ["budget"])
        self.by_caller = counter("requests_by_caller", "HTTP requests by the name of their token", ["caller"])
        self.by_adapter = counter(
            "requests_by_adapter", "HTTP requests that an adapter for another tool answered", ["adapter", "status"]
        )
        self.over_quota = counter("over_quota", "Requests refused because a quota was used up", ["caller", "quota"])
        self.stored_bytes = gauge("stored_bytes", "Memory of uploaded images")
        self.tracked_frames = counter("tracked_frames", "Frames of videos that were tracked")
        self.stored_images = gauge("stored_images", "Uploaded images in memory")

    def text(self) -> bytes:
        return generate_latest(self.registry)
