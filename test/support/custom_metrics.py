"""A stand-in for Triton's custom metrics (`pb_utils.MetricFamily`), whose values tests can read."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any


class Metric:
    """pb_utils.Metric: one series."""

    def __init__(self, series: Series, kind: str, key: tuple[str, str | None]) -> None:
        self._series, self._kind, self._key = series, kind, key

    def _change(self, kind: str) -> None:
        assert self._kind == kind, f"{self._key[0]} is a {self._kind}"
        self._series.threads.add(threading.current_thread().name)

    def increment(self, value: float) -> None:
        self._change("counter")
        self._series.counts[self._key] += value

    def set(self, value: float) -> None:
        self._change("gauge")
        self._series.gauges[self._key].append(value)

    def observe(self, value: float) -> None:
        self._change("histogram")
        self._series.seconds[self._key].append(value)


class Series:
    """All series of one stand-in for Triton, by name and label `kind`, which most of them lack.

    Attributes:
        counts: sums of the counters.
        gauges: all values of a gauge, in order.
        seconds: every value of a histogram.
        threads: names of the threads that have changed a metric.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[tuple[str, str | None], float] = defaultdict(float)
        self.gauges: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
        self.seconds: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
        self.threads: set[str] = set()

    def family(self) -> type:
        """Return the class MetricFamily."""
        series = self

        class MetricFamily:
            COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

            def __init__(self, name: str, description: str, kind: str) -> None:
                assert description
                self._name, self._kind = name.removeprefix("triton_sam_"), kind

            def Metric(self, labels: dict[str, str], **more: Any) -> Metric:  # noqa: N802 - Triton's name
                buckets = more.pop("buckets", None)
                assert not more
                assert (buckets is not None) == (self._kind == self.HISTOGRAM)
                assert buckets is None or buckets == sorted(set(buckets))
                assert labels["model"]
                return Metric(series, self._kind, (self._name, labels.get("kind")))

        return MetricFamily
