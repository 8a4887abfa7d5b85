"""Opens maps in formats that tifffile does not read: JPEG 2000, VRT mosaics and ERDAS Imagine, by rasterio (GDAL)."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .._common.extras import missing
from ..inputs.samples import Kind, Samples, nodata_of
from .pyramid import Georeference

_KINDS: dict[str, Kind] = {"cyan": "cmyk", "Y": "ycbcr"}
"""The meaning of channels other than grey and RGB, by the meaning of the first channel."""


class Bands:
    """One level of a map as a thread-safe array (c,y,x) that is read in parts."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._lock = threading.Lock()  # GDAL datasets are not thread-safe
        self.shape = (dataset.count, dataset.height, dataset.width)
        self.dtype = np.dtype(dataset.dtypes[0])

    def __getitem__(self, part: tuple[slice, slice, slice]) -> Any:
        bands, down, across = part
        numbers = [band + 1 for band in range(*bands.indices(self.shape[0]))]
        with self._lock:
            return self._dataset.read(numbers, window=((down.start, down.stop), (across.start, across.stop)))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[list[Bands], Samples, Georeference | None]]:
    """Open a map while the block runs; yield its levels, largest first, the meaning of values, and the georeference."""
    try:
        import rasterio
    except ImportError as error:
        raise missing(f"{path.suffix} needs", "maps", error) from error
    if not path.is_file():
        raise FileNotFoundError(path)
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            whole = stack.enter_context(rasterio.open(path))
            smaller = [
                stack.enter_context(rasterio.open(path, overview_level=level))
                for level in range(len(whole.overviews(1)))
            ]
        yield [Bands(each) for each in (whole, *smaller)], _samples(whole), _place(whole)


def _samples(dataset: Any) -> Samples:
    """Return the meaning of the values of a map."""
    first = dataset.colorinterp[0].name
    nodata = nodata_of(dataset.nodata, np.dtype(dataset.dtypes[0]))
    bits = int(dataset.tags(1, ns="IMAGE_STRUCTURE").get("NBITS", 8))
    if first == "palette":
        colours = dataset.colormap(1)
        palette = np.zeros((max(colours) + 1, 3), np.uint8)
        for number, colour in colours.items():
            palette[number] = colour[:3]
        return Samples("palette", palette=palette, nodata=nodata)
    return Samples(_KINDS.get(first, "rgb"), min(bits, 8), nodata=nodata)


def _place(dataset: Any) -> Georeference | None:
    if dataset.crs is None and dataset.transform.is_identity:
        return None
    a, b, c, d, e, f = tuple(dataset.transform)[:6]
    return Georeference((a, b, c, d, e, f), None if dataset.crs is None else dataset.crs.to_epsg())
