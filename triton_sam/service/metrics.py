"""The metrics at /metrics; each application has its own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of a service; every name begins with ``triton_sam_service_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        prefix = "triton_sam_service"
        self.requests = Counter(
            f"{prefix}_requests", "HTTP requests", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            f"{prefix}_request_seconds", "Time to the answer", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.in_flight = Gauge(f"{prefix}_requests_in_flight", "Requests worked on now", registry=self.registry)
        self.pages = Gauge(f"{prefix}_pages", "Open pages (WebSockets)", registry=self.registry)
        self.live = Counter(
            f"{prefix}_live_predictions",
            "Predictions asked for by pages; replaced ones were never computed or cancelled",
            ["lane", "outcome"],
            registry=self.registry,
        )
        self.encodes = Counter(f"{prefix}_encodes", "Images sent to an encoder", registry=self.registry)
        self.cancelled = Counter(f"{prefix}_cancelled", "Requests given up by their clients", registry=self.registry)
        self.triton_up = Gauge(f"{prefix}_triton_up", "1 when Triton answers and has models", registry=self.registry)
        self.budget_used = Gauge(
            f"{prefix}_budget_used",
            "The used part of a budget that all requests share",
            ["budget"],
            registry=self.registry,
        )
        self.budget_limit = Gauge(f"{prefix}_budget_limit", "Limit of a budget", ["budget"], registry=self.registry)
        self.refused = Counter(
            f"{prefix}_refused", "Requests refused because a budget was used up", ["budget"], registry=self.registry
        )
        self.by_caller = Counter(
            f"{prefix}_requests_by_caller",
            "HTTP requests by the name of their token",
            ["caller"],
            registry=self.registry,
        )
        self.by_adapter = Counter(
            f"{prefix}_requests_by_adapter",
            "HTTP requests that an adapter for another tool answered",
            ["adapter", "status"],
            registry=self.registry,
        )
        self.over_quota = Counter(
            f"{prefix}_over_quota",
            "Requests refused because a quota was used up",
            ["caller", "quota"],
            registry=self.registry,
        )
        self.stored_bytes = Gauge(f"{prefix}_stored_bytes", "Memory of uploaded images", registry=self.registry)
        self.tracked_frames = Counter(
            f"{prefix}_tracked_frames", "Frames of videos that were tracked", registry=self.registry
        )
        self.stored_images = Gauge(f"{prefix}_stored_images", "Uploaded images in memory", registry=self.registry)

    def text(self) -> bytes:
        """Return the metrics in Prometheus text format."""
        return generate_latest(self.registry)
