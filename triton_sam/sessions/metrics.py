"""The metrics that the session model adds to Triton's ``/metrics``."""

from __future__ import annotations

from typing import Any, Protocol

RESTARTS_VARIABLE = "TRITON_SAM_RESTARTS"
"""The environment variable in which the supervisor of Triton says how often it has started Triton again."""
PREFIX = "triton_sam_"
COUNTERS = {
    "cache_hits": "Requests whose image was in the cache",
    "cache_misses": "Requests whose image was not in the cache: new images, and ids that are not known (any more)",
    "cache_evictions": "Images that made room for others",
    "encodes": "Images encoded",
    "encode_seconds": "Time spent on encoding images, from compressed bytes to embeddings",
    "decodes": "Prompts decoded",
    "decode_seconds": "Time spent on decoding prompts, from the cached embeddings to logits",
    "failures": "Requests answered with an error",
    "refusals": "Requests refused because too many waited already",
    "restarts": "How often Triton was started again, because it or the process of one of its models had died",
}
GAUGES = {
    "cache_bytes": "Bytes of embeddings in the cache",
    "cache_limit_bytes": "Bytes of embeddings that the cache may hold",
    "cache_images": "Images in the cache",
}


class Metrics(Protocol):
    """The methods by which the session model reports its metrics."""

    def add(self, name: str, value: float = 1.0) -> None:
        """Increase the counter with this name in COUNTERS."""

    def set(self, name: str, value: float) -> None:
        """Set the gauge with this name in GAUGES."""


class TritonMetrics:
    """Reports to custom metrics of Triton, ``triton_sam_*{model="NAME"}``.

    Args:
        pb_utils: Triton's module ``triton_python_backend_utils``.
        model: name of the model, which is the label of its metrics.
        restarts: how often Triton was started again so far. Every session model of a server reports this number.
    """

    def __init__(self, pb_utils: Any, model: str, restarts: int = 0) -> None:
        kinds = pb_utils.MetricFamily
        # Triton drops a family as soon as nothing refers to it.
        self._families: list[Any] = []
        self._metrics: dict[str, Any] = {}
        for names, kind, ending in ((COUNTERS, kinds.COUNTER, "_total"), (GAUGES, kinds.GAUGE, "")):
            for name, description in names.items():
                family = kinds(name=f"{PREFIX}{name}{ending}", description=description, kind=kind)
                self._families.append(family)
                self._metrics[name] = family.Metric(labels={"model": model})
        self.add("restarts", restarts)

    def add(self, name: str, value: float = 1.0) -> None:
        """See Metrics."""
        self._metrics[name].increment(value)

    def set(self, name: str, value: float) -> None:
        """See Metrics."""
        self._metrics[name].set(value)
