"""GeoTIFF files in memory: the tags that place a map on Earth, kept from an image to the label map made from it.

Pillow reads and writes them, so this needs no further package. Reference: OGC GeoTIFF standard 1.1, annex B.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin, TiffTags

from .georeference import Georeference, georeference_of

PIXEL_SCALE, TIEPOINT, TRANSFORMATION = 33550, 33922, 34264
KEYS, DOUBLES, TEXTS = 34735, 34736, 34737
_NAMES = {PIXEL_SCALE: "ModelPixelScale", TIEPOINT: "ModelTiepoint", TRANSFORMATION: "ModelTransformation"}
_KEY_NAMES = {1025: "GTRasterTypeGeoKey", 2048: "GeographicTypeGeoKey", 3072: "ProjectedCSTypeGeoKey"}
_TYPES = {
    PIXEL_SCALE: TiffTags.DOUBLE,
    TIEPOINT: TiffTags.DOUBLE,
    TRANSFORMATION: TiffTags.DOUBLE,
    KEYS: TiffTags.SHORT,
    DOUBLES: TiffTags.DOUBLE,
    TEXTS: TiffTags.ASCII,
}


@dataclass(frozen=True)
class GeoTags:
    """The tags of a GeoTIFF file.

    Args:
        tags: the values by number of the tag, as Pillow reads them.
        georeference: the place that they describe.
    """

    tags: dict[int, Any]
    georeference: Georeference


def read_tags(content: bytes) -> GeoTags | None:
    """Return the tags of a GeoTIFF file; None if the content is another image, damaged, or has no place."""
    try:
        with Image.open(io.BytesIO(content), formats=("TIFF",)) as image:
            directory: Any = image.tag_v2  # type: ignore[attr-defined]
            found = {number: directory[number] for number in _TYPES if number in directory}
        georeference = georeference_of(_named(found))
        if georeference is None or not np.isfinite(georeference.matrix).all():
            return None
        georeference.to_pixels(np.zeros((1, 2)))  # a matrix without an inverse is no place
    except Exception:  # noqa: BLE001 - Pillow's parser lets almost any exception through, and damaged tags any other
        return None
    return GeoTags(found, georeference)


def write_labels(labels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16], tags: GeoTags | None) -> bytes:
    """Return a label map (H,W) as a TIFF file, compressed without loss, at the place of the tags."""
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    for number, value in (tags.tags if tags is not None else {}).items():
        directory.tagtype[number] = _TYPES[number]
        directory[number] = value
    buffer = io.BytesIO()
    Image.fromarray(labels).save(buffer, "TIFF", tiffinfo=directory, compression="tiff_adobe_deflate")
    return buffer.getvalue()


def _named(tags: dict[int, Any]) -> dict[str, Any]:
    """Return the tags as tifffile names them, which georeference_of() expects."""
    named: dict[str, Any] = {name: tags[number] for number, name in _NAMES.items() if number in tags}
    keys = np.reshape(np.asarray(tags.get(KEYS, ()), np.int64)[4:], (-1, 4))
    for key, location, _, value in keys.tolist():
        if key in _KEY_NAMES and location == 0:  # the value stands in the directory itself
            named[_KEY_NAMES[key]] = value
    return named
