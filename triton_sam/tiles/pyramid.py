"""A large image as a pyramid of levels, and its georeference. Any part can be read as RGB.

References: OGC GeoTIFF standard 1.1, sections 7.2 (raster space) and B.6 (ModelTiepoint, ModelPixelScale and
ModelTransformation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import ConfigurationError, InputError
from ..families.base import Size
from ..masks.rings import FloatPoints


@dataclass(frozen=True)
class Georeference:
    """The position of an image on Earth.

    Args:
        matrix: a, b, c, d, e, f: pixel x, y is at a x + b y + c, d x + e y + f. Pixel 0, 0 covers 0 to 1.
        epsg: number of the reference system in the EPSG register; None if the file has none.
    """

    matrix: tuple[float, float, float, float, float, float]
    epsg: int | None = None

    def to_map(self, points: FloatPoints) -> FloatPoints:
        """Return points (N,2), x and y in pixels, as coordinates of the reference system."""
        a, b, c, d, e, f = self.matrix
        x, y = np.asarray(points, np.float64).T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)

    def to_pixels(self, points: FloatPoints) -> FloatPoints:
        """Return coordinates (N,2) of the reference system as pixels."""
        a, b, c, d, e, f = self.matrix
        inverse = np.linalg.inv([[a, b], [d, e]])
        pixels: FloatPoints = (np.asarray(points, np.float64) - [c, f]) @ inverse.T
        return pixels

    @property
    def crs(self) -> dict[str, Any] | None:
        """The GeoJSON member ``crs``, which GDAL and QGIS read; None without an EPSG number."""
        if self.epsg is None:
            return None
        return {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{self.epsg}"}}


def georeference_of(tags: Mapping[str, Any]) -> Georeference | None:
    """Return the georeference in the tags of a GeoTIFF file, named as in tifffile; None without one."""
    matrix = _matrix(tags)
    if matrix is None:
        return None
    if int(tags.get("GTRasterTypeGeoKey", 1)) == 2:  # the coordinates refer to the centres of pixels
        a, b, c, d, e, f = matrix
        matrix = (a, b, c - (a + b) / 2, d, e, f - (d + e) / 2)
    epsg = next((int(tags[name]) for name in ("ProjectedCSTypeGeoKey", "GeographicTypeGeoKey") if name in tags), None)
    return Georeference(matrix, None if epsg in (0, 32767) else epsg)  # undefined, defined by the user


def _matrix(tags: Mapping[str, Any]) -> tuple[float, float, float, float, float, float] | None:
    if "ModelTransformation" in tags:
        rows = np.asarray(tags["ModelTransformation"], np.float64).reshape(4, 4)
        return (rows[0, 0], rows[0, 1], rows[0, 3], rows[1, 0], rows[1, 1], rows[1, 3])
    if "ModelPixelScale" in tags and "ModelTiepoint" in tags:
        across, down, *_ = (float(value) for value in tags["ModelPixelScale"])
        column, row, _, x, y, *_ = (float(value) for value in np.ravel(tags["ModelTiepoint"]))
        return (across, 0.0, x - column * across, 0.0, -down, y + row * down)
    return None


Bytes = npt.NDArray[np.uint8]
Region = tuple[int, int, int, int]
"""x1, y1, x2, y2 in pixels of the whole image; x2 and y2 are exclusive."""

MAX_READ = 1 << 27
"""Maximum number of pixels of a level per read: 400 MB as RGB."""


def sample_regions(size: Sequence[int], pixels: int) -> Iterator[Region]:
    """Yield a small level whole, or parts at 16 heights and different places, of about ``pixels`` pixels in all.

    The parts are wide and low, because files are stored in strips or tiles.
    """
    width, height = size
    if width * height <= pixels:
        yield 0, 0, width, height
        return
    wide = min(width, 1 << 12)
    high = min(height, pixels // 16 // wide)
    for number in range(16):
        left, top = (width - wide) * (number * 7 % 16) // 15, (height - high) * number // 15
        yield left, top, left + wide, top + high


@dataclass(frozen=True)
class Level:
    """One level of a pyramid.

    Args:
        read: returns the pixels x1, y1, x2, y2 of the level as uint8 (h,w,3).
        values: returns the same part in the file's values, (h,w) or (h,w,c) with all channels; None without a file.
    """

    size: Size
    read: Callable[[int, int, int, int], Bytes]
    values: Callable[[int, int, int, int], npt.NDArray[Any]] | None = None


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a large image in the form that is sent to a server."""

    pixels: Bytes
    region: Region

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the whole image per pixel of the window, in x and y."""
        x1, y1, x2, y2 = self.region
        height, width = self.pixels.shape[:2]
        return (x2 - x1) / width, (y2 - y1) / height

    def inside(self, points: npt.ArrayLike) -> FloatPoints:
        """Convert points (...,2) of the whole image to points of the window."""
        moved: FloatPoints = (np.asarray(points, np.float64) - self.region[:2]) / self.scale
        return moved

    def outside(self, points: npt.ArrayLike) -> FloatPoints:
        """Convert points (...,2) of the window to points of the whole image."""
        moved: FloatPoints = np.asarray(points, np.float64) * self.scale + self.region[:2]
        return moved


class LargeImage:
    """An image whose parts are read on demand.

    Args:
        georeference: the georeference of a map; None if the file has none.

    Attributes:
        size: width and height of the largest level in pixels.
    """

    def __init__(
        self,
        name: str,
        levels: Sequence[Level],
        georeference: Georeference | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.levels = tuple(levels)
        self.size: Size = self.levels[0].size
        self.georeference = georeference
        self.close = close

    def __enter__(self) -> LargeImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LargeImage({self.name}, {self.size[0]} x {self.size[1]}, {len(self.levels)} levels)"

    def window(self, region: Region, side: int) -> Window:
        """Read a part of the image, at the coarsest level that still has ``side`` pixels along its longest side.

        Args:
            side: maximum width and height of the result in pixels. Smaller parts are not enlarged.
        """
        region = self.clip(region)
        longest = max(region[2] - region[0], region[3] - region[1])
        level = self._level(longest, side)
        across, down = (whole / part for whole, part in zip(self.size, level.size, strict=True))
        x1, y1 = int(region[0] / across), int(region[1] / down)
        x2, y2 = min(level.size[0], -int(-region[2] // across)), min(level.size[1], -int(-region[3] // down))
        if (x2 - x1) * (y2 - y1) > MAX_READ:
            raise InputError(
                f"{self.name} has no level for a view of {longest} pixels: make a pyramid, for example by "
                "`gdaladdo` or `vips tiffsave --pyramid`, or look at a smaller part"
            )
        pixels = level.read(x1, y1, x2, y2)
        share = side / max(pixels.shape[:2])
        if share < 1:
            size = (max(1, round(pixels.shape[1] * share)), max(1, round(pixels.shape[0] * share)))
            pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX, reducing_gap=2))
        shown = (round(x1 * across), round(y1 * down), round(x2 * across), round(y2 * down))
        return Window(pixels, shown)

    def level_at(self, number: int) -> Level:
        """Return the level with a number; 0 is the largest level."""
        last = len(self.levels) - 1
        if not 0 <= number <= last:
            known = f"0 to {last}" if last else f"0, the only one of {self.name}"
            raise ConfigurationError(f"level must be {known}, not {number}")
        return self.levels[number]

    def pixels_of(self, region: Region, side: int) -> int:
        """Return the number of pixels that window() reads from the file for a part."""
        x1, y1, x2, y2 = self.clip(region)
        level = self._level(max(x2 - x1, y2 - y1), side)
        across, down = (part / whole for part, whole in zip(level.size, self.size, strict=True))
        return int(((x2 - x1) * across + 1) * ((y2 - y1) * down + 1))

    def clip(self, region: Region) -> Region:
        x1, y1 = max(0, region[0]), max(0, region[1])
        x2, y2 = min(self.size[0], region[2]), min(self.size[1], region[3])
        if x1 >= x2 or y1 >= y2:
            corners, (width, height) = ", ".join(map(str, region)), self.size
            raise InputError(f"the part {corners} lies outside {self.name}, which has {width} x {height} pixels")
        return x1, y1, x2, y2

    def _level(self, longest: int, side: int) -> Level:
        """Return the smallest level in which ``longest`` pixels of the image are ``side`` pixels or more."""
        fitting = [level for level in self.levels if longest * level.size[0] / self.size[0] >= side]
        return fitting[-1] if fitting else self.levels[0]
