"""What the figures should be at least, on the processor of one machine; judged where they were measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..families import get_family
from .results import NOT_RECOVERED, RECOVERED, Results
from .settings import OVER_LINK, Settings


@dataclass(frozen=True)
class Threshold:
    """One figure with its limit.

    Args:
        name: what is judged.
        value: what was found.
        limit: what it should be.
        at_least: whether the limit is a lower one; else an upper one.
        unit: "x" for a factor, or "ms".
    """

    name: str
    value: float
    limit: float
    at_least: bool
    unit: str = "x"

    @property
    def ok(self) -> bool:
        """Whether the limit is kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def judge(results: Results) -> list[Threshold]:
    """Return all thresholds that the results allow to judge."""
    return [
        *_against_others(results),
        *_over_a_link(results),
        *_boxes(results),
        *_crowd(results),
        *_overload(results),
        *_words(results),
    ]


def _median(results: Results, what: str, who: str, protocol: str | None = None) -> float | None:
    row = results.find("comparison", what, who, protocol)
    return None if row is None or row.ms is None else row.ms.median


def _against_others(results: Results) -> Iterator[Threshold]:
    family = get_family(results.about["model"]["family"])
    limits = {"encode": family.encode_speedup, "click, full-size mask": 1.6}
    for protocol in ("http", "grpc"):
        click, encode = (_median(results, what, "session", protocol) for what in ("click", "encode"))
        alone, encode_alone = (_median(results, what, "inprocess") for what in ("click", "encode"))
        if click and alone:
            yield Threshold(
                f"click, {protocol}: 1.15 x the decode in process + 3 ms", click, 1.15 * alone + 3, False, "ms"
            )
        if encode and encode_alone:
            yield Threshold(f"encode, {protocol}: to resize + encode in process", encode / encode_alone, 1.10, False)
        naive = _median(results, "click", "naive", protocol)
        if click and naive and protocol == "http":
            yield Threshold("click, http: faster than the naive client", naive / click, 2.3, True)
        for what, limit in limits.items():
            ours, torch = _median(results, what, "session", protocol), _median(results, what, "torch")
            if ours and torch:
                yield Threshold(f"{what}, {protocol}: faster than PyTorch", torch / ours, limit, True)


def _over_a_link(results: Results) -> Iterator[Threshold]:
    if results.about["settings"]["link"] != Settings.link:
        return
    for protocol in ("http", "grpc"):
        ours, naive = (_median(results, OVER_LINK, who, protocol) for who in ("session", "naive"))
        if ours and naive:
            name = f"{OVER_LINK} of 1 Gbit/s and 1 ms, {protocol}: faster than the naive client"
            yield Threshold(name, naive / ours, 5.0, True)


def _boxes(results: Results) -> Iterator[Threshold]:
    for row in results.of("throughput", "boxes, one call"):
        single = results.find("throughput", "boxes, a call each", row.who, row.protocol, row.size)
        if row.size == 64 and row.ms and single and single.ms:
            yield Threshold("64 boxes in one call: to 64 calls", row.ms.median / single.ms.median, 1.0, False)


def _crowd(results: Results) -> Iterator[Threshold]:
    for row in results.of("throughput", "clicks"):
        alone = results.find("throughput", "clicks", row.who, row.protocol, 1)
        if row.size != 8 or alone is None or not (row.ms and alone.ms and row.per_second and alone.per_second):
            continue
        yield Threshold(
            f"8 users, {row.protocol}: clicks/s to those of one", row.per_second / alone.per_second, 1.0, True
        )
        yield Threshold(f"8 users, {row.protocol}: p95 to the median of one", row.ms.p95 / alone.ms.median, 10.0, False)
        least, most = row.more["least_calls_of_a_user"], row.more["most_calls_of_a_user"]
        yield Threshold(
            f"8 users, {row.protocol}: fewest clicks of a user to the most", least / max(most, 1), 0.33, True
        )


def _words(results: Results) -> Iterator[Threshold]:
    for row in results.of("words", "no instance"):
        one = results.find("words", row.what, row.who, row.protocol, 1)
        if row.who == "session" and row.size == 20 and row.ms and one and one.ms:
            name = f"20 words on one image, {row.protocol}: to one word"
            yield Threshold(name, row.ms.median / one.ms.median, 2.0, False)


def _overload(results: Results) -> Iterator[Threshold]:
    for row in results.of("overload", "accepted"):
        half, refused, after = (
            next((other for other in results.of("overload", what) if other.protocol == row.protocol), None)
            for what in ("half load", "refused", "after")
        )
        if not (half and refused and after and row.ms and half.ms and refused.ms):
            continue  # nothing was refused: no overload
        name = f"{row.size} users, {row.protocol}"
        yield Threshold(f"{name}: p95 of accepted clicks to that at half load", row.ms.p95 / half.ms.p95, 3.0, False)
        yield Threshold(f"{name}: p95 of refusals", refused.ms.p95, 100.0, False, "ms")
        recovered = after.more.get(RECOVERED)
        until = f"{name}: until clicks are as fast as before" + ("" if recovered is not None else ", at least")
        seconds = after.more[NOT_RECOVERED] if recovered is None else recovered
        yield Threshold(until, 1000 * seconds, 5000.0, False, "ms")
