"""The meaning of the stored values of an image: grey, colours, inks, or indices of a palette.

Reference: TIFF 6.0, the tags PhotometricInterpretation, SampleFormat, ColorMap and ExtraSamples; GDAL's tag 42113.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from ..errors import ImageError
from .stretch import Bytes, Stretch, Values, nodata_of

Kind = Literal["grey", "white is zero", "rgb", "palette", "cmyk", "ycbcr", "lab"]

BITS, PHOTOMETRIC, ORIENTATION, PLANAR, EXTRA_SAMPLES, SAMPLE_FORMAT, GDAL_NODATA = 258, 262, 274, 284, 338, 339, 42113
"""Numbers of TIFF tags."""
KINDS: Mapping[int, Kind] = {0: "white is zero", 1: "grey", 2: "rgb", 3: "palette", 5: "cmyk", 6: "ycbcr", 8: "lab"}
"""The meanings by the value of the tag PhotometricInterpretation. Others are shown as they are."""
_PREMULTIPLIED = 1
_MODES = {"cmyk": ("CMYK", 4), "ycbcr": ("YCbCr", 3), "lab": ("LAB", 3)}
"""The modes of Pillow, and their numbers of channels."""
_LOSSLESS = (1, 5, 8, 32773, 32946, 34925, 50000)
"""Compressions without loss. Decoders of the others turn YCbCr into RGB themselves."""
RGB = (0, 1, 2)
"""The channels that are shown unless the caller names others."""


@dataclass(frozen=True)
class Samples:
    """What the stored values of an image mean.

    Args:
        bits: bits of a value, for types of 8 bits that hold fewer.
    """

    kind: Kind = "rgb"
    bits: int = 8
    palette: Bytes | None = None
    is_premultiplied: bool = False
    nodata: float | None = None

    def colours(self, values: Values, channels: Sequence[int] = RGB) -> Values:
        """Return stored values as grey or colours, of the same type or as bytes.

        Args:
            channels: the stored channels that become red, green and blue. Palettes, inks and other colour spaces are
                converted only for the default.

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
            return values[:, :, [min(channels[0], values.shape[2] - 1)]]
        return values[:, :, list(channels)]

    def stretch(self, limits: tuple[float, float] | None, dtype: np.dtype[Any]) -> Stretch:
        """Return how colours() become bytes.

        Args:
            limits: the values that become black and white; None: no value is a measurement.
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
    """Return values as Pillow decodes and converts them."""
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
