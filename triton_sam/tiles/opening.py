"""Opens large images: TIFF, BigTIFF, GeoTIFF, SVS and OME-TIFF by tifffile, OME-Zarr by zarr, other maps by rasterio.

References: the OME-NGFF specification 0.4 and 0.5, section "multiscales" (https://ngff.openmicroscopy.org), and
tifffile's documentation of `TiffPageSeries.levels`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from .._common.extras import missing
from .._common.text import one_line
from ..errors import DownloadError, ImageError, SamError
from ..families.base import Size
from ..inputs.formats import RASTER_SUFFIXES
from ..inputs.header import SMALLER_OR_MASK, TURNED, say_once
from ..inputs.remote import RemoteFile, is_remote, place_of
from ..inputs.samples import (
    ORIENTATION,
    RGB,
    Bytes,
    Samples,
    Stretch,
    Values,
    is_stretched,
    samples_of_page,
    value_range,
)
from . import rasters
from .folders import LAYOUT, is_zarr
from .pyramid import LargeImage, Level, georeference_of, sample_regions

Read = Callable[[int, int, int, int], Values]
"""Returns the part x1, y1, x2, y2 as (h,w) or (h,w,c)."""


def upright_reader(read: Read, size: Size, orientation: int) -> tuple[Read, Size]:
    """Return a reader of parts of the upright image, and its width and height."""
    if orientation == 1:
        return read, size
    width, height = size
    swaps = orientation in TURNED
    from_right, from_bottom = orientation in (2, 3, 7, 8), orientation in (3, 4, 6, 7)

    def read_upright(x1: int, y1: int, x2: int, y2: int) -> Values:
        if swaps:
            x1, y1, x2, y2 = y1, x1, y2, x2
        if from_right:
            x1, x2 = width - x2, width - x1
        if from_bottom:
            y1, y2 = height - y2, height - y1
        part = read(x1, y1, x2, y2)[:: -1 if from_bottom else 1, :: -1 if from_right else 1]
        return np.swapaxes(part, 0, 1) if swaps else part

    return read_upright, size[::-1] if swaps else size


_GIVE = "give a TIFF file (also GeoTIFF, SVS and OME-TIFF) or the folder of an OME-Zarr image"
_BYTE_ORDERS = (b"II", b"MM")  # the first bytes of TIFF files
_SLIDES = ("svs", "qpi", "ndpi", "bif", "avs", "philips")
"""tifffile's kinds of files with one image of a slide and further images of the whole glass."""
_NAMED = 4
"""Maximum number of images of a folder in an error message."""
_SAMPLE = 1 << 22
"""Maximum number of pixels of the smallest level that determine the range of values above 8 bits."""


@dataclass(frozen=True)
class _View:
    """The shown part of an image's data, see open_large_image()."""

    channels: tuple[int, ...]
    index: Mapping[str, int]
    percentiles: tuple[float, float] | None


def open_large_image(
    path: str | os.PathLike[str],
    *,
    channels: Sequence[int] = RGB,
    index: Mapping[str, int] | None = None,
    stretch: tuple[float, float] | None = None,
) -> LargeImage:
    """Open a large image. Parts are read on demand.

    Palettes, inks, inverted grey values (0 is white) and premultiplied colours are converted as in open_image().

    Args:
        channels: the channels for red, green and blue, or one for grey. With the default, an image with fewer channels
            is grey.
        stretch: for values of more than 8 bits, two percentiles of the smallest level that become black and white, for
            example ``(1, 99)``; None: the smallest and the largest value. NaN, infinity and the file's nodata value do
            not count and become black.

    Returns:
        The image.
    """
    place = cast(Path, path) if is_remote(path) else place_of(os.fspath(path))
    view = _View(tuple(channels), dict(index or {}), stretch)
    try:
        return _kind_of(place)(place, view)
    except (SamError, ImportError):
        raise
    except FileNotFoundError as error:
        if not is_remote(place) and place.is_dir():  # replaces zarr's error for a folder without a group
            raise ImageError(f"{path} is a folder, but not one of an OME-Zarr image: {_GIVE}") from error
        raise ImageError(f"{path}: there is no such file") from error
    except Exception as error:  # tifffile and zarr raise almost any exception for damaged files
        raise ImageError(f"{path} cannot be read as a large image: {one_line(error)}") from error


def _kind_of(place: Path) -> Callable[[Path, _View], LargeImage]:
    """Return the function that opens an image."""
    if place.suffix.lower() in RASTER_SUFFIXES and not place.is_dir():
        if is_remote(place):
            raise ImageError(f"{place}: maps of this format are read from this machine only: copy it first")
        return _open_raster
    folder = is_zarr(place) if is_remote(place) else place.is_dir()
    return _open_zarr if folder else _open_tiff


def check_packages() -> None:
    """Check that the packages for large images are installed."""
    try:
        import tifffile  # noqa: F401
        import zarr  # noqa: F401
    except ImportError as error:
        raise missing("large images need", "tiles", error) from error


def _check_header(path: Path, file: IO[bytes]) -> None:
    """Check the first bytes of a file, because tifffile's error for other formats contains them verbatim."""
    if file.read(2) not in _BYTE_ORDERS:
        raise ImageError(
            f"{path} cannot be read as a large image: {_GIVE}; for small images, such as JPEG and PNG, "
            "use `triton-sam predict`"
        )


def _open_tiff(path: Path, view: _View) -> LargeImage:
    try:
        import tifffile
        import zarr

        from .zarr_stores import CheckedArray, NotingStore, read_errors
    except ImportError as error:
        raise missing("large images need", "tiles", error) from error
    with contextlib.ExitStack() as stack:
        source: Any = path  # from a path, tifffile finds the other files of an OME-TIFF
        if is_remote(path):
            source = stack.enter_context(contextlib.closing(RemoteFile(path)))
            _check_header(path, source)
            source.seek(0)
        else:
            with path.open("rb") as local:
                _check_header(path, local)
        file = stack.enter_context(tifffile.TiffFile(source))
        series = _largest_series(file.series, path.name)
        stores = [NotingStore(series.aszarr(level=level)) for level in range(len(series.levels))]
        with read_errors():
            arrays = [CheckedArray(zarr.open(store, mode="r")) for store in stores]
        page = series.keyframe
        tags = (page.geotiff_tags if page.is_geotiff else None) or {}
        turn = None if tags else page.tags.get(ORIENTATION)
        stored = _Stored(
            arrays, [level.axes for level in series.levels], samples_of_page(page), 1 if turn is None else turn.value
        )
        levels = _levels(stored, view, path.name)
        if source is not path and source.failure:  # tifffile skips unreadable data
            raise source.failure
        return LargeImage(path.name, levels, georeference_of(tags), stack.pop_all().close)


def _largest_series(found: Sequence[Any], name: str) -> Any:
    """Return the image with the most pixels of a TIFF file, the first of equal ones, and report whether it has others.

    Args:
        found: tifffile's series. Those of slides are one image, and its label, macro photograph and thumbnail.
    """
    sizes = [dict(zip(each.axes, each.shape, strict=True)) for each in found]
    pixels = [size.get("X", 0) * size.get("Y", 0) for size in sizes]
    place = pixels.index(max(pixels))
    count = sum(not each.keyframe.subfiletype & SMALLER_OR_MASK for each in found)
    if count > 1 and found[place].kind not in _SLIDES:
        size = f"{sizes[place]['X']} x {sizes[place]['Y']} pixels"
        say_once(
            "series",
            f"{name} holds {count} images, and the largest, of {size}, is shown. For another one, save it as a file "
            "of its own.",
        )
    return found[place]


def _open_zarr(path: Path, view: _View) -> LargeImage:
    try:
        import zarr.storage

        from .zarr_stores import CheckedArray, NotingStore, read_errors
    except ImportError as error:
        raise missing("large images need", "tiles", error) from error
    store = _remote_store(path) if is_remote(path) else NotingStore(zarr.storage.LocalStore(path, read_only=True))
    with read_errors():
        arrays, axes = _arrays(path, store)
    checked_arrays = [CheckedArray(array) for array in arrays]
    return LargeImage(path.name, _levels(_Stored(checked_arrays, [axes] * len(arrays), Samples()), view, path.name))


def _remote_store(path: Any) -> Any:
    from .zarr_stores import PatientStore

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
    named = described[0].get("axes", "tczyx")  # versions 0.1 and 0.2 have no names
    axes = "".join(axis["name"] if isinstance(axis, dict) else axis for axis in named).upper()
    return [group[each["path"]] for each in described[0]["datasets"]], axes


def _described(group: Any) -> Any:
    """Return the list of images in the metadata of a Zarr group; None without one."""
    attributes: dict[str, Any] = dict(group.attrs)
    return attributes.get("ome", attributes).get("multiscales")


def _series(group: Any) -> list[str]:
    """Return the paths of the images of a group in the layout of bioformats2raw or of a plate.

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


def _open_raster(path: Path, view: _View) -> LargeImage:
    with contextlib.ExitStack() as stack:
        bands, samples, place = stack.enter_context(rasters.opened(path))
        levels = _levels(_Stored(bands, ["CYX"] * len(bands), samples), view, path.name)
        return LargeImage(path.name, levels, place, stack.pop_all().close)


@dataclass(frozen=True)
class _Stored:
    """The levels of an opened file and the meaning of their values."""

    arrays: Sequence[Any]
    axes: Sequence[str]
    samples: Samples
    orientation: int = 1


def _levels(stored: _Stored, view: _View, name: str) -> list[Level]:
    levels = list(zip(stored.arrays, stored.axes, strict=True))
    for array, axes in levels:
        _check_axes(array, axes, view, name)
    part, channels = _channels_read(stored, view.channels, name)

    def reader(array: Any, axes: str, part: slice) -> tuple[Read, Size]:
        size = array.shape[axes.index("X")], array.shape[axes.index("Y")]
        return upright_reader(partial(_values, array, axes, view.index, part), size, stored.orientation)

    shown, sizes = [], []
    for array, axes in levels:
        read, size = reader(array, axes, part)
        shown.append(partial(_shown, read, stored.samples, channels))
        sizes.append(size)
    dtype = _type_shown(stored, view.channels)
    stretch = stored.samples.stretch(None, dtype)
    if is_stretched(dtype):
        stretch = _stretch_of(shown[-1], sizes[-1], stored, view.percentiles)
    return [
        Level(size, partial(_as_bytes, colours, stretch), partial(_readable, reader(array, axes, slice(None))[0]))
        for size, colours, (array, axes) in zip(sizes, shown, levels, strict=True)
    ]


def _check_axes(array: Any, axes: str, view: _View, name: str) -> None:
    """Check the axes of a level, and report which positions along further axes are shown."""
    if not {"Y", "X"} <= set(axes):
        raise ImageError(f"an image with the axes {axes} has no Y and X")
    if 0 in array.shape:
        raise ImageError("the image has no pixels")
    lengths = dict(zip(axes, array.shape, strict=True))
    for axis, position in view.index.items():
        if axis in ("C", _channel_axis(axes)):
            raise ImageError(f"--index {axis}={position}: give --channels {position} for a channel")
        if not 0 <= position < lengths.get(axis, 0):
            raise ImageError(f"there is no position {position} along the axis {axis} of {axes}")
    further = {axis: length for axis, length in lengths.items() if axis not in "YXCS" and length > 1}
    left = [f"{axis} has {length} positions" for axis, length in further.items() if axis not in view.index]
    if left:
        axis = next(axis for axis in further if axis not in view.index)
        say_once("axes", f"{name}: {', '.join(left)}, and the first is shown. For another one, give --index {axis}=1.")


def _channel_axis(axes: str) -> str | None:
    return next((axis for axis in axes if axis in "CS"), None)


def _channel_count(stored: _Stored) -> int:
    axis = _channel_axis(stored.axes[0])
    return int(stored.arrays[0].shape[stored.axes[0].index(axis)]) if axis else 1


def _channels_read(stored: _Stored, channels: tuple[int, ...], name: str) -> tuple[slice, tuple[int, ...]]:
    """Return the stored channels to read for the shown ones, and the places of the shown ones in them."""
    count = _channel_count(stored)
    if max(channels) >= count:
        if channels != RGB:
            known = f"{count} channels, 0 to {count - 1}" if count > 1 else "one channel, 0"
            raise ImageError(f"{name} has {known}, and --channels names {max(channels)}")
        channels = (0,)
    if not stored.samples.is_plain:
        return slice(None), channels
    first = min(channels)
    return slice(first, max(channels) + 1), tuple(channel - first for channel in channels)


def _values(
    array: Any, axes: str, index: Mapping[str, int], channels: slice, x1: int, y1: int, x2: int, y2: int
) -> Values:
    """Return a part of a level, (h,w) or (h,w,c), in the array's type."""
    colors = _channel_axis(axes)
    selection = {axis: index.get(axis, 0) for axis in axes} | {"Y": slice(y1, y2), "X": slice(x1, x2)}
    if colors:
        selection[colors] = channels
    values = np.asarray(array[tuple(selection[axis] for axis in axes)])
    kept = [axis for axis in axes if axis in ("Y", "X", colors)]
    return values.transpose([kept.index(axis) for axis in ("Y", "X", colors) if axis])


def _shown(read: Any, samples: Samples, channels: tuple[int, ...], *corners: int) -> Values:
    """Return a part of a level as grey (h,w,1) or RGB (h,w,3)."""
    return samples.colours(read(*corners), channels)


def _type_shown(stored: _Stored, channels: tuple[int, ...]) -> np.dtype[Any]:
    """Return the type of an image's colours without reading pixels."""
    pixel = np.zeros((1, 1, _channel_count(stored)), stored.arrays[0].dtype)
    return stored.samples.colours(pixel, channels).dtype


def _stretch_of(read: Any, size: Size, stored: _Stored, percentiles: tuple[float, float] | None) -> Stretch:
    """Return the conversion of an image's colours to bytes, from the range of a sample of the smallest level."""
    regions, array, place = sample_regions(size, _SAMPLE), stored.arrays[-1], stored.axes[-1].index("Y")
    if (chunks := getattr(array, "chunks", ())) and chunks[place] >= array.shape[place]:  # each read decodes everything
        whole = read(0, 0, *size)
        sample = [whole[y1:y2, x1:x2] for x1, y1, x2, y2 in regions]
    else:
        sample = [read(*corners) for corners in regions]
    return stored.samples.stretch(value_range(sample, stored.samples.nodata, percentiles), sample[0].dtype)


def _as_bytes(read: Any, stretch: Stretch, x1: int, y1: int, x2: int, y2: int) -> Bytes:
    values = _readable(read, x1, y1, x2, y2)
    pixels = values if values.dtype == np.uint8 and stretch == Stretch() else stretch.to_bytes(values)
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)


def _readable(read: Any, x1: int, y1: int, x2: int, y2: int) -> np.ndarray[Any, Any]:
    """Read a part of a level; errors become ImageErrors."""
    try:
        values: np.ndarray[Any, Any] = read(x1, y1, x2, y2)
    except DownloadError:
        raise
    except Exception as error:  # see open_large_image
        raise ImageError(f"the part from ({x1}, {y1}) to ({x2}, {y2}) cannot be read: {one_line(error)}") from error
    return values
