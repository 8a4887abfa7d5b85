"""A stand-in for Triton's custom metrics (`pb_utils.MetricFamily`), and metrics read from their text."""

from __future__ import annotations

import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


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


class Scrape:
    """The samples of one scrape of ``metrics_url``."""

    def __init__(self, metrics_url: str) -> None:
        with urllib.request.urlopen(metrics_url, timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        self.samples = [sample for family in families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with these labels."""
        return sum(
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def buckets(self, name: str, **labels: str) -> Counter[float]:
        """Return the cumulative counts of a histogram by upper bound."""
        found: Counter[float] = Counter()
        for sample in self.samples:
            if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items():
                found[float(sample.labels["le"])] += int(sample.value)
        return found


class Growth:
    """The growth of a model's metrics since the creation of this object, for one kind of request."""

    def __init__(self, metrics_url: str, model: str, kind: str) -> None:
        self._url, self._labels = metrics_url, {"model": model, "kind": kind}
        self._before = Scrape(self._url)

    def __call__(self, name: str) -> float:
        return Scrape(self._url).total(name, **self._labels) - self._before.total(name, **self._labels)

    def quantile(self, name: str, share: float) -> float:
        now, before = (scrape.buckets(name, **self._labels) for scrape in (Scrape(self._url), self._before))
        return quantile(share, {bound: now[bound] - before[bound] for bound in now})


def quantile(share: float, counts: Mapping[float, float]) -> float:
    """Return a quantile as histogram_quantile() of Prometheus does.

    Args:
        share: 0.5 for the median.
        counts: cumulative counts by upper bound, ending with infinity.
    """
    wanted, lower, below = share * max(counts.values()), 0.0, 0.0
    for bound in sorted(counts):
        if counts[bound] >= wanted:
            return (
                lower if bound == float("inf") else lower + (bound - lower) * (wanted - below) / (counts[bound] - below)
            )
        lower, below = bound, counts[bound]
    raise AssertionError("no bucket holds all")
