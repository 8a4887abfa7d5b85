"""Opens large images: TIFF, BigTIFF, GeoTIFF, SVS and OME-TIFF by tifffile, OME-Zarr by zarr, other maps by rasterio.

References: the OME-NGFF specification 0.4 and 0.5, section "multiscales" (https://ngff.openmicroscopy.org), and
tifffile's documentation of `TiffPageSeries.levels`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from .._common.extras import missing
from ..errors import DownloadError, ImageError, SamError
from ..inputs.formats import RASTER_SUFFIXES
from ..inputs.remote import RemoteFile, is_remote, place_of
from . import rasters
from .folders import LAYOUT, is_zarr
from .georeference import georeference_of
from .pyramid import Bytes, LargeImage, Level

_GIVE = "give a TIFF file (also GeoTIFF, SVS and OME-TIFF) or the folder of an OME-Zarr image"
_BYTE_ORDERS = (b"II", b"MM")
"""The beginning of every TIFF file."""
_NAMED = 4
"""Images of a folder that an error names, at most."""
_SAMPLE = 1 << 22
"""Pixels of the smallest level, at most, from which the range of deep values is taken."""


def open_large_image(
    path: str | os.PathLike[str], *, channels: Sequence[int] = (0, 1, 2), index: Mapping[str, int] | None = None
) -> LargeImage:
    """Open a large image. Only parts of it are read, when they are needed.

    Args:
        path: a TIFF file (also BigTIFF, GeoTIFF, SVS and OME-TIFF) or the folder of an OME-Zarr image, on this machine
            or at a URL that fsspec reads; or, on this machine, a map that rasterio reads (.jp2, .j2k, .vrt, .img).
        channels: the channels that become red, green and blue. An image with fewer channels is grey.
        index: the position along further axes by their name, for example ``{"T": 3, "Z": 10}``; 0 for the others.

    Returns:
        The image. Values of more than 8 bits are stretched from the range of the smallest level to 0..255.

    Raises:
        ImageError: the file is missing, damaged, or of another format.
        MissingDependencyError: tifffile or zarr, or a package for this kind of URL, is not installed.
        ConfigurationError: fsspec does not know this kind of URL.
        DownloadError: the storage cannot be reached, even after several attempts.
    """
    place = cast(Path, path) if is_remote(path) else place_of(os.fspath(path))
    try:
        return _kind_of(place)(place, tuple(channels), dict(index or {}))
    except (SamError, ImportError):
        raise
    except FileNotFoundError as error:
        if not is_remote(place) and place.is_dir():  # zarr's error for a folder without a group
            raise ImageError(f"{path} is a folder, but not one of an OME-Zarr image: {_GIVE}") from error
        raise ImageError(f"{path}: there is no such file") from error
    except Exception as error:  # tifffile and zarr raise almost any exception for damaged files
        raise ImageError(f"{path} cannot be read as a large image: {_line(error)}") from error


def _kind_of(place: Path) -> Callable[[Path, tuple[int, ...], dict[str, int]], LargeImage]:
    """Return the function that opens an image.

    Raises:
        ImageError: a map of this format lies at a URL.
    """
    if place.suffix.lower() in RASTER_SUFFIXES and not place.is_dir():
        if is_remote(place):
            raise ImageError(f"{place}: maps of this format are read from this machine only: copy it first")
        return _open_raster
    folder = is_zarr(place) if is_remote(place) else place.is_dir()
    return _open_zarr if folder else _open_tiff


def check_packages() -> None:
    """Check that large images can be opened.

    Raises:
        MissingDependencyError: tifffile or zarr is not installed.
    """
    try:
        import tifffile  # noqa: F401
        import zarr  # noqa: F401
    except ImportError as error:
        raise missing("large images need", "tiles", error) from error


def _line(error: Exception) -> str:
    """Return the words of an error on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_header(path: Path, file: IO[bytes]) -> None:
    """Check the first bytes of a file, because tifffile's error for another format shows them as they are.

    Raises:
        ImageError: they are not those of a TIFF file.
    """
    if file.read(2) not in _BYTE_ORDERS:
        raise ImageError(
            f"{path} cannot be read as a large image: {_GIVE}; for small images, such as JPEG and PNG, "
            "use `triton-sam predict`"
        )


def _open_tiff(path: Path, channels: tuple[int, ...], index: dict[str, int]) -> LargeImage:
    try:
        import tifffile
        import zarr

        from .checked_reads import CheckedArray, NotingStore, checked
    except ImportError as error:
        raise missing("large images need", "tiles", error) from error
    with contextlib.ExitStack() as stack:
        source: Any = path  # tifffile finds the other files of an OME-TIFF beside it
        if is_remote(path):
            source = stack.enter_context(contextlib.closing(RemoteFile(path)))
            _check_header(path, source)
            source.seek(0)
        else:
            with path.open("rb") as local:
                _check_header(path, local)
        file = stack.enter_context(tifffile.TiffFile(source))
        series = file.series[0]
        stores = [NotingStore(series.aszarr(level=level)) for level in range(len(series.levels))]
        with checked():
            arrays = [CheckedArray(zarr.open(store, mode="r")) for store in stores]
        levels = _levels(arrays, [level.axes for level in series.levels], channels, index)
        tags = (file.pages.first.geotiff_tags if file.is_geotiff else None) or {}
        if source is not path and source.failure:  # tifffile leaves out what it cannot read
            raise source.failure
        return LargeImage(path.name, levels, georeference_of(tags), stack.pop_all().close)


def _open_zarr(path: Path, channels: tuple[int, ...], index: dict[str, int]) -> LargeImage:
    try:
        import zarr.storage

        from .checked_reads import CheckedArray, NotingStore, checked
    except ImportError as error:
        raise missing("large images need", "tiles", error) from error
    store = _remote_store(path) if is_remote(path) else NotingStore(zarr.storage.LocalStore(path, read_only=True))
    with checked():
        arrays, axes = _arrays(path, store)
    checked_arrays = [CheckedArray(array) for array in arrays]
    return LargeImage(path.name, _levels(checked_arrays, [axes] * len(arrays), channels, index))


def _remote_store(path: Any) -> Any:
    from .remote_store import PatientStore

    return PatientStore.from_url(str(path), storage_options=dict(path.storage_options), read_only=True)


def _arrays(path: Path, store: Any) -> tuple[list[Any], str]:
    """Return the levels of an OME-Zarr image and the names of their axes."""
    import zarr

    group: Any = zarr.open_group(store, mode="r")
    described = _described(group)
    if not described:
        series = _series(group)
        if len(series) > 1:
            raise ImageError(f"{path} holds several OME-Zarr images: give {_several(path, series)}")
        group = group[series[0]] if series else group
        described = _described(group)
    if not described:
        raise ImageError(f"{path} is not an OME-Zarr image: it has no multiscales")
    axes = "".join(axis["name"] if isinstance(axis, dict) else axis for axis in described[0]["axes"]).upper()
    return [group[each["path"]] for each in described[0]["datasets"]], axes


def _described(group: Any) -> Any:
    """Return the list of images that a group of Zarr describes; None if it describes none."""
    attributes: dict[str, Any] = dict(group.attrs)
    return attributes.get("ome", attributes).get("multiscales")


def _series(group: Any) -> list[str]:
    """Return the paths of the images of a group whose layout is that of bioformats2raw or of a plate.

    Reference: OME-NGFF 0.5, sections "bioformats2raw.layout", "plate" and "well".
    """
    attributes = dict(group.attrs)
    attributes = attributes.get("ome", attributes)
    if LAYOUT in attributes:
        named = dict(group["OME"].attrs) if "OME" in group else {}
        listed = named.get("ome", named).get("series")
        return listed or sorted((name for name, _ in group.groups() if name.isdecimal()), key=int)
    wells = [each["path"] for each in attributes.get("plate", {}).get("wells", ())]
    return [f"{well}/{name}" for well in wells for name, _ in group[well].groups()]


def _several(path: Path, series: list[str]) -> str:
    names = [f"{path}/{name}" for name in series]
    return " or ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:_NAMED])} ... (there are {len(names)})"


def _open_raster(path: Path, channels: tuple[int, ...], index: dict[str, int]) -> LargeImage:
    with contextlib.ExitStack() as stack:
        bands, place = stack.enter_context(rasters.opened(path))
        levels = _levels(bands, ["CYX"] * len(bands), channels, index)
        return LargeImage(path.name, levels, place, stack.pop_all().close)


def _levels(
    arrays: Sequence[Any], axes: Sequence[str], channels: tuple[int, ...], index: dict[str, int]
) -> list[Level]:
    for name, array in zip(axes, arrays, strict=True):
        if not {"Y", "X"} <= set(name):
            raise ImageError(f"an image with the axes {name} has no Y and X")
        for axis, position in index.items():
            if axis not in name or not 0 <= position < array.shape[name.index(axis)]:
                raise ImageError(f"there is no position {position} along the axis {axis} of {name}")
    stored = [partial(_values, array, name, index) for array, name in zip(arrays, axes, strict=True)]
    views = [partial(_chosen, values, channels) for values in stored]
    sizes = [tuple(array.shape[name.index(axis)] for axis in "XY") for array, name in zip(arrays, axes, strict=True)]
    limits = _range(views[-1], sizes[-1]) if arrays[0].dtype != np.uint8 else None
    return [
        Level((size[0], size[1]), partial(_as_bytes, view, limits), partial(_readable, values))
        for size, view, values in zip(sizes, views, stored, strict=True)
    ]


def _values(array: Any, axes: str, index: dict[str, int], x1: int, y1: int, x2: int, y2: int) -> np.ndarray[Any, Any]:
    """Return a part of a level as (h,w) or (h,w,c) in the array's type."""
    colors = next((axis for axis in axes if axis in "CS"), None)
    selection = {axis: index.get(axis, 0) for axis in axes} | {"Y": slice(y1, y2), "X": slice(x1, x2)}
    if colors:
        selection[colors] = slice(None)
    values = np.asarray(array[tuple(selection[axis] for axis in axes)])
    kept = [axis for axis in axes if axis in ("Y", "X", colors)]
    return values.transpose([kept.index(axis) for axis in ("Y", "X", colors) if axis])


def _chosen(read: Any, channels: tuple[int, ...], *corners: int) -> np.ndarray[Any, Any]:
    """Return a part of a level as (h,w,3) in the array's type."""
    values: np.ndarray[Any, Any] = read(*corners)
    if values.ndim == 2:
        values = values[:, :, None]
    wanted = list(channels) if max(channels) < values.shape[2] else [min(channels[0], values.shape[2] - 1)] * 3
    return values[:, :, wanted]


def _range(read: Any, size: Sequence[int]) -> tuple[float, float]:
    width, height = size
    rows = max(1, min(height, _SAMPLE // width))
    top = (height - rows) // 2
    sample = read(0, top, width, top + rows)
    finite = sample[np.isfinite(sample)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _as_bytes(read: Any, limits: tuple[float, float] | None, x1: int, y1: int, x2: int, y2: int) -> Bytes:
    values = _readable(read, x1, y1, x2, y2)
    if limits is None:
        return np.asarray(values, np.uint8)
    low, high = limits
    scaled: np.ndarray[Any, Any] = (np.nan_to_num(values.astype(np.float32), nan=low) - low) * (
        255 / max(high - low, 1e-12)
    )
    return np.asarray(np.clip(np.rint(scaled), 0, 255), np.uint8)


def _readable(read: Any, x1: int, y1: int, x2: int, y2: int) -> np.ndarray[Any, Any]:
    """Return a part of a level.

    Raises:
        ImageError: this part of the file is damaged.
        DownloadError: its storage cannot be reached.
    """
    try:
        values: np.ndarray[Any, Any] = read(x1, y1, x2, y2)
    except DownloadError:
        raise
    except Exception as error:  # see open_large_image
        raise ImageError(f"the part from ({x1}, {y1}) to ({x2}, {y2}) cannot be read: {_line(error)}") from error
    return values
