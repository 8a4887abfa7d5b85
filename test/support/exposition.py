"""The metrics of a running server, and Prometheus' functions of two scrapes."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


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
