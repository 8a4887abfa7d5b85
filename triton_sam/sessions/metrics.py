"""The metrics that the session models add to Triton's ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

RESTARTS_VARIABLE = "TRITON_SAM_RESTARTS"
"""The environment variable with the number of times that the supervisor has restarted Triton."""
PREFIX = "triton_sam_"
COUNTERS = {
    "cache_hits": "Requests whose image was in the cache",
    "cache_misses": "Requests whose image was not in the cache: new images, and unknown or expired ids",
    "cache_evictions": "Images that made room for others",
    "encodes": "Images encoded",
    "encode_seconds": "Time spent on encoding images, from compressed bytes to embeddings",
    "decodes": "Prompts decoded",
    "decode_seconds": "Time spent on decoding prompts, from the cached embeddings to logits",
    "finds": "Searches for all instances of concepts",
    "find_seconds": "Time spent on these searches, without the encoding of images",
    "text_encodes": "Texts encoded for these searches",
    "failures": "Requests answered with an error",
    "faults": "Requests answered with an INTERNAL error, which is an error of the server; included in failures",
    "refusals": "Requests refused because too many waited already",
    "restarts": "How often Triton was started again, because it or the process of one of its models had died",
}
GAUGES = {
    "cache_bytes": "Bytes of embeddings in the cache",
    "cache_limit_bytes": "Bytes of embeddings that the cache may hold",
    "cache_images": "Images in the cache",
}
_SHARED = (
    "cache_hits",
    "cache_misses",
    "cache_evictions",
    "encodes",
    "encode_seconds",
    "finds",
    "find_seconds",
    "text_encodes",
    "failures",
    "faults",
    "refusals",
    "restarts",
)
VIDEO_COUNTERS = {
    **{name: COUNTERS[name] for name in _SHARED},
    "sessions_started": "Video sessions started",
    "sessions_restored": "Video sessions started from a snapshot",
    "sessions_expired": "Video sessions closed because nobody used them",
    "sessions_refused": "Video sessions refused because there were too many already",
    "prompts": "Prompts on frames of videos",
    "prompt_seconds": "Time spent on prompts, from the cached embeddings to logits",
    "frames_tracked": "Frames tracked, each once for all objects",
    "objects_tracked": "Objects tracked, each once for every frame",
    "track_seconds": "Time spent on tracking, with waiting for the embeddings of the frames",
    "repeats": "Requests that were answered with the stored answer to the same step",
}
VIDEO_GAUGES = {
    **GAUGES,
    "sessions": "Video sessions that are open",
    "session_bytes": "Bytes of the outputs that all video sessions keep",
}
FRONT_COUNTERS = {name: COUNTERS[name] for name in ("failures", "faults", "refusals")}
"""Counters of the front ends, which do not cache images."""
REQUEST_SECONDS = "request_seconds"
WAITING_SECONDS = "waiting_seconds"
WAITING_REQUESTS = "waiting_requests"
TIMES = {
    REQUEST_SECONDS: "Seconds from the arrival of a request in the model to its answer; without cancelled requests",
    WAITING_SECONDS: "Seconds that a request waited in the model, for a thread, the encoder, or the decoder in this "
    "process; with cancelled requests",
    WAITING_REQUESTS: "Requests that wait in the model",
}
"""Metrics with the label ``kind``: a search takes a thousand times as long as a click."""
_DECADES = [10.0**exponent for exponent in range(-3, 3)]
BUCKETS = {
    REQUEST_SECONDS: [number * decade for decade in _DECADES for number in (1, 1.5, 2, 3, 5, 7)],
    WAITING_SECONDS: [number * decade for decade in _DECADES for number in (1, 3)],
}
"""Upper bounds of the histograms in seconds. The dashboard shows quantiles of the request seconds only."""


class TritonMetrics:
    """Updates Triton's custom metrics ``triton_sam_*{model="NAME"}``, those of TIMES also with a ``kind``.

    Only one thread may call the methods, see tasks.Reports.
    """

    def __init__(
        self, pb_utils: Any, model: str, kinds: Iterable[str], counters: Mapping[str, str], gauges: Mapping[str, str]
    ) -> None:
        types = pb_utils.MetricFamily
        # Triton drops a family as soon as it has no reference.
        self._families: list[Any] = []
        self._metrics: dict[str, Any] = {}
        for names, kind, ending in ((counters, types.COUNTER, "_total"), (gauges, types.GAUGE, "")):
            for name, description in names.items():
                family = types(name=f"{PREFIX}{name}{ending}", description=description, kind=kind)
                self._families.append(family)
                self._metrics[name] = family.Metric(labels={"model": model})
        self._times: dict[tuple[str, str], Any] = {}
        labels = [{"model": model, "kind": kind} for kind in kinds]
        for name, description in TIMES.items():
            kind = types.HISTOGRAM if name in BUCKETS else types.GAUGE
            buckets = {"buckets": BUCKETS[name]} if name in BUCKETS else {}
            family = types(name=f"{PREFIX}{name}", description=description, kind=kind)
            self._families.append(family)
            # Create every series now, so that Prometheus sees the first request as an increase.
            self._times |= {(name, each["kind"]): family.Metric(labels=each, **buckets) for each in labels}

    def report(self, counts: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        """Increase counters, and set gauges."""
        for name, value in counts.items():
            self._metrics[name].increment(value)
        for name, value in gauges.items():
            self._metrics[name].set(value)

    def observe(self, kind: str, waited: float, took: float | None) -> None:
        """Add one request to the histograms."""
        self._times[WAITING_SECONDS, kind].observe(waited)
        if took is not None:
            self._times[REQUEST_SECONDS, kind].observe(took)

    def set_waiting(self, kind: str, number: int) -> None:
        """Set the number of waiting requests of a kind."""
        self._times[WAITING_REQUESTS, kind].set(number)
