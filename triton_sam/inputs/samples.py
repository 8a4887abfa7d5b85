"""The meaning of the stored values of an image (grey, colours, inks, or indices of a palette), and values of more than
8 bits as bytes.

Reference: TIFF 6.0, the tags PhotometricInterpretation, SampleFormat, ColorMap and ExtraSamples; GDAL's tag 42113.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import ImageError

Values = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Kind = Literal["grey", "white is zero", "rgb", "palette", "cmyk", "ycbcr", "lab"]
BITS, PHOTOMETRIC, ORIENTATION, PLANAR, EXTRA_SAMPLES, SAMPLE_FORMAT, GDAL_NODATA = 258, 262, 274, 284, 338, 339, 42113
"""Numbers of TIFF tags."""
RGB = (0, 1, 2)
"""The channels that are shown by default."""


@dataclass(frozen=True)
class Stretch:
    """Turns values into bytes: ``low`` becomes 0, and ``high`` 255. Invalid values become 0.

    Args:
        nodata: the value of invalid pixels, in addition to NaN and infinity; None: there is none.
    """

    low: float = 0.0
    high: float = 255.0
    nodata: float | None = None
    is_inverted: bool = False

    def to_bytes(self, values: Values) -> Bytes:
        """Return values of any shape as uint8 of the same shape."""
        invalid = _invalid(values, self.nodata)
        # float32 would lose differences of large numbers: 4,000,000,000 and 4,000,000,100 would be equal.
        is_exact = values.dtype.itemsize <= 2 or values.dtype == np.float32
        floats: Values = values.astype(np.float32 if is_exact else np.float64)
        if invalid is not None:
            floats[invalid] = self.low
        low, high = self.low / 2, self.high / 2  # halves, because the range of all floats overflows
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
    """Return the smallest and the largest valid value; None if all values are invalid.

    Args:
        percentiles: return these percentiles of the values instead. All parts are then in memory at the same time.
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
    """Return GDAL's nodata value, rounded to the type of the pixels.

    Args:
        text: the number as text or as a number; None if the file has none.

    Returns:
        The value; None if no pixel can have it, or if it is NaN, which is always invalid.
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
    """Return a mask of the invalid values; None if all are valid."""
    invalid = ~np.isfinite(values) if values.dtype.kind == "f" else None
    if nodata is None:
        return invalid
    is_nodata: npt.NDArray[np.bool_] = np.equal(values, nodata)
    return is_nodata if invalid is None else invalid | is_nodata


def _valid(values: Values, nodata: float | None) -> Values:
    invalid = _invalid(values, nodata)
    return values if invalid is None else values[~invalid]


KINDS: Mapping[int, Kind] = {0: "white is zero", 1: "grey", 2: "rgb", 3: "palette", 5: "cmyk", 6: "ycbcr", 8: "lab"}
"""The meanings by the value of the tag PhotometricInterpretation. Other kinds are shown without conversion."""
_PREMULTIPLIED = 1
_MODES = {"cmyk": ("CMYK", 4), "ycbcr": ("YCbCr", 3), "lab": ("LAB", 3)}
"""Pillow's modes, and their numbers of channels."""
_LOSSLESS = (1, 5, 8, 32773, 32946, 34925, 50000)
"""Lossless compressions. Decoders of lossy ones convert YCbCr to RGB themselves."""


@dataclass(frozen=True)
class Samples:
    """The meaning of the stored values of an image.

    Args:
        bits: bits of a value, for 8-bit types that hold fewer.
    """

    kind: Kind = "rgb"
    bits: int = 8
    palette: Bytes | None = None
    is_premultiplied: bool = False
    nodata: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether colours() only selects channels."""
        return self.kind in ("rgb", "grey", "white is zero") and not self.is_premultiplied

    def colours(self, values: Values, channels: Sequence[int] = RGB) -> Values:
        """Return stored values as grey or colours, of the same type or as bytes.

        Args:
            channels: the stored channels that become red, green and blue. Palettes, inks and other colour spaces are
                converted only for the default. Without enough channels, the first one is grey.

        Returns:
            (h,w,1) or (h,w,3).
        """
        if values.dtype.kind not in "biuf":
            raise ImageError(f"values of the type {values.dtype} are neither grey values nor colours")
        if values.ndim == 2:
            values = values[:, :, None]
        if self.kind == "palette" and self.palette is not None:
            return np.asarray(self.palette[np.minimum(values[:, :, 0], len(self.palette) - 1)])
        if tuple(channels) == RGB and self.kind in _MODES and values.shape[2] >= _MODES[self.kind][1]:
            return self._converted(values)
        if tuple(channels) == RGB and self.is_premultiplied and values.shape[2] >= 4 and values.dtype == np.uint8:
            return _decoded(values[:, :, :4], "RGBA", "RGBa")
        if max(channels) >= values.shape[2]:
            return values[:, :, :1]
        return values[:, :, list(channels)]

    def stretch(self, limits: tuple[float, float] | None, dtype: np.dtype[Any]) -> Stretch:
        """Return the conversion of colours() to bytes.

        Args:
            limits: the values that become black and white; None: all values are invalid.
        """
        inverted = self.kind == "white is zero"
        if not is_stretched(dtype):
            bits = 8 if self.palette is not None else self.bits
            return Stretch(0, 1 if dtype.kind == "b" else 2**bits - 1, None, inverted)
        low, high = limits or (0.0, 1.0)
        return Stretch(low, high, self.nodata, inverted)

    def _converted(self, values: Values) -> Bytes:
        mode, count = _MODES[self.kind]
        if values.dtype == np.uint16 and self.kind == "cmyk":
            values = values >> 8
        elif values.dtype != np.uint8:
            raise ImageError(f"colours in {mode} with values of the type {values.dtype} are not supported")
        return _decoded(values[:, :, :count], mode, mode)


def _decoded(values: Values, mode: str, raw: str) -> Bytes:
    """Return values after Pillow's decoding and conversion."""
    content = np.ascontiguousarray(values, np.uint8).tobytes()
    image = Image.frombytes(mode, (values.shape[1], values.shape[0]), content, "raw", raw)
    return np.asarray(image.convert("RGB"))


def is_stretched(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a type are stretched to bytes."""
    return dtype not in (np.dtype(np.uint8), np.dtype(bool))


def samples_of_page(page: Any) -> Samples:
    """Return the meaning of the values of a page of tifffile."""
    kind: Kind = KINDS.get(int(page.photometric), "rgb")
    if kind == "ycbcr" and int(page.compression) not in _LOSSLESS:
        kind = "rgb"
    palette = None
    if kind == "palette" and page.colormap is not None:
        palette = np.ascontiguousarray((page.colormap >> 8).T.astype(np.uint8))
    nodata = page.tags.get(GDAL_NODATA)
    bits = page.bitspersample if isinstance(page.bitspersample, int) else 8
    return Samples(
        kind,
        min(bits, 8),
        palette,
        _PREMULTIPLIED in map(int, page.extrasamples),
        None if nodata is None else nodata_of(nodata.value, page.dtype),
    )
