"""Values of more than 8 bits, of files and of microscopes, become bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Stretch:
    """Turns values into bytes: ``low`` becomes 0, and ``high`` 255. Values that are not measurements become 0.

    Args:
        nodata: the value of pixels without a measurement, as NaN and infinity always are; None: there is none.
    """

    low: float = 0.0
    high: float = 255.0
    nodata: float | None = None
    is_inverted: bool = False

    def to_bytes(self, values: Values) -> Bytes:
        """Return values of any shape as uint8 of the same shape."""
        invalid = _invalid(values, self.nodata)
        # Floats of 32 bits would lose the differences of large numbers: 4,000,000,000 and 4,000,000,100 would be equal.
        is_exact = values.dtype.itemsize <= 2 or values.dtype == np.float32
        floats: Values = values.astype(np.float32 if is_exact else np.float64)
        if invalid is not None:
            floats[invalid] = self.low
        low, high = self.low / 2, self.high / 2  # halves, since the range of all floats is not a finite number
        floats *= 0.5
        floats -= low
        floats *= 255.0 / (high - low) if high > low else 0.0
        if self.is_inverted:
            np.subtract(255, floats, out=floats)
        found = np.clip(np.rint(floats, out=floats), 0, 255, out=floats).astype(np.uint8)
        if invalid is not None:
            found[invalid] = 0
        return found


def value_range(
    parts: Iterable[Values], nodata: float | None = None, percentiles: tuple[float, float] | None = None
) -> tuple[float, float] | None:
    """Return the smallest and the largest value that is a measurement; None if no value is one.

    Args:
        percentiles: return these percentiles of the values instead. All parts are then in memory at a time.
    """
    if percentiles is not None:
        found = np.concatenate([_valid(part, nodata).ravel() for part in parts])
        low, high = np.percentile(found, percentiles) if found.size else (np.inf, -np.inf)
        return None if low > high else (float(low), float(high))
    lows, highs = [], []
    for part in parts:
        if (found := _valid(part, nodata)).size:
            lows.append(float(found.min()))
            highs.append(float(found.max()))
    return (min(lows), max(highs)) if lows else None


def nodata_of(text: Any, dtype: np.dtype[Any]) -> float | None:
    """Return the value that GDAL writes for pixels without a measurement, as the type of the pixels holds it.

    Args:
        text: the number as text or as a number; None if the file has none.

    Returns:
        None: no pixel can have the value, or it is NaN, which never counts.
    """
    try:
        number = float(str(text).strip(" \0"))
    except ValueError:
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            rounded = float(dtype.type(number))
        return rounded if np.isfinite(rounded) else None
    if dtype.kind not in "iu" or not number.is_integer():
        return None
    limits = np.iinfo(dtype)
    return number if limits.min <= number <= limits.max else None


def _invalid(values: Values, nodata: float | None) -> npt.NDArray[np.bool_] | None:
    """Return which values are not measurements; None: all are."""
    invalid = ~np.isfinite(values) if values.dtype.kind == "f" else None
    if nodata is None:
        return invalid
    is_nodata: npt.NDArray[np.bool_] = np.equal(values, nodata)
    return is_nodata if invalid is None else invalid | is_nodata


def _valid(values: Values, nodata: float | None) -> Values:
    invalid = _invalid(values, nodata)
    return values if invalid is None else values[~invalid]
