"""The table of all output formats of masks.

To add a format, write the function that encodes a segment and add a row to FORMATS. The session models
(``output_format``), the service (``format`` of ``/v1`` and its description) and `Segment.encode` read the table.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from .._common import strict_json
from ..errors import InputError
from .compare import best_of
from .label_map import MAX_OBJECTS, label_map_of
from .polygons import Polygon, trace_polygons
from .rings import EXACT, FloatPoints
from .rle import BoolArray, Rle, rle_to_mask

if TYPE_CHECKING:
    from .segment import Segment

TOLERANCE = EXACT
"""Default for the maximum distance, in pixels, between a polygon and the exact outline."""

Interface = Literal["session model", "service", "client"]
"""An interface that offers formats: ``output_format`` of a session model, ``format`` of ``/v1``, `Segment.encode`."""
EVERYWHERE: frozenset[Interface] = frozenset(("session model", "service", "client"))


@dataclass(frozen=True)
class Format:
    """One output format.

    Args:
        name: the name by which callers request it.
        media_type: media type of its files, as in the headers Accept and Content-Type.
        meaning: one line for the API description of the service.
        value: type of the encoded mask: bytes for binary formats, else the type of the JSON value.
        encode: encodes one mask; its second argument is the tolerance of polygons in pixels. None if the format cannot
            represent a single mask.
        document: encodes all masks of an answer as one file. None if the format has no such file.
        decode: decodes the bytes of one encoded mask, for clients that request this format from a server.
        interfaces: the interfaces that offer it.
    """

    name: str
    media_type: str
    meaning: str
    value: Any
    encode: Callable[[Segment, float], Any] | None = None
    document: Callable[[Iterable[Segment], float], Any] | None = None
    decode: Callable[[bytes], BoolArray] | None = None
    interfaces: frozenset[Interface] = EVERYWHERE

    @property
    def is_binary(self) -> bool:
        """Whether encoded masks are bytes. Otherwise they are JSON values."""
        return self.value is bytes

    def to_bytes(self, segment: Segment, tolerance: float = TOLERANCE) -> bytes:
        """Return the content of a file with one mask.

        Raises:
            MissingDependencyError: a polygon format, and contourpy is not installed.
        """
        if self.encode is None:
            return self.to_document([segment], tolerance)
        return _content(self.encode(segment, tolerance))

    def to_document(self, segments: Iterable[Segment], tolerance: float = TOLERANCE) -> bytes:
        """Return the content of a file with all masks of an answer.

        Raises:
            InputError: the format has no such file.
            MissingDependencyError: a polygon format, and contourpy is not installed.
        """
        if self.document is None:
            raise InputError(f"the format {self.name} has no file for several masks: encode them one by one")
        return _content(self.document(segments, tolerance))

    def to_json(self, segment: Segment, tolerance: float = TOLERANCE) -> Any:
        """Return the mask as a JSON value. Bytes are encoded in base64.

        Raises:
            InputError: the format cannot represent a single mask.
            MissingDependencyError: a polygon format, and contourpy is not installed.
        """
        if self.encode is None:
            raise InputError(f"the format {self.name} cannot represent a single mask: request the file of all masks")
        encoded = self.encode(segment, tolerance)
        return base64.b64encode(encoded).decode() if isinstance(encoded, bytes) else encoded

    def to_mask(self, content: bytes) -> BoolArray:
        """Decode the bytes of one encoded mask to bool (H,W).

        Raises:
            InputError: the content is damaged, or the format cannot be decoded.
        """
        if self.decode is None:
            raise InputError(f"the format {self.name} cannot be decoded: request another one")
        return self.decode(content)


def find_format(name: str, interface: Interface) -> Format:
    """Return the format of a name.

    Raises:
        InputError: the name is unknown, or this interface does not offer the format.
    """
    known = formats_of(interface)
    if name not in known:
        raise InputError(f"there is no format {name[:40]!r} here: give one of {', '.join(known)}")
    return known[name]


def formats_of(interface: Interface) -> dict[str, Format]:
    """Return the formats that an interface offers, by name, in the order of the table."""
    return {name: form for name, form in FORMATS.items() if interface in form.interfaces}


def feature_collection(segments: Iterable[Segment], tolerance: float) -> dict[str, Any]:
    """Return GeoJSON with one feature for each segment but empty ones: x, y in pixels, y downwards, with holes."""
    features = [_feature(segment, tolerance) for segment in segments if segment.box is not None]
    return {"type": "FeatureCollection", "features": features}


def label_image(segments: Iterable[Segment], _: float) -> bytes:
    """Return the best mask of each object as one PNG.

    Pixels are 255 for one object, else the object's number, from 1, where small objects win. The file has 8 bits for
    numbers up to 255, and 16 bits for higher ones.

    Raises:
        InputError: there is no mask, so the size of the file is unknown; or a number exceeds 65535.
    """
    best = best_of(segments)
    if not best:
        raise InputError("there is no object, so there is no label image of them: request another format")
    if len(best) == 1:
        return best[0].to_png()
    numbers = np.array([0, *(segment.object_index + 1 for segment in best)])
    if numbers.max() > MAX_OBJECTS:
        raise InputError(f"a label image holds {MAX_OBJECTS} objects, not {numbers.max()}: filter the masks first")
    numbers = numbers.astype(np.uint8 if numbers.max() <= 255 else np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(numbers[label_map_of([segment.mask for segment in best])]).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _content(encoded: Any) -> bytes:
    return encoded if isinstance(encoded, bytes) else strict_json.dumps(encoded, separators=(",", ":")).encode()


def multi_polygon(mask: npt.ArrayLike, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Return a mask (H,W) as a geometry of GeoJSON: x, y in pixels, y downwards, holes as inner rings.

    Raises:
        MissingDependencyError: contourpy is not installed.
    """
    return to_geometry(trace_polygons(mask, tolerance))


def to_geometry(polygons: Iterable[Polygon]) -> dict[str, Any]:
    """Return polygons as a MultiPolygon of GeoJSON."""
    rings = [[_ring(ring) for ring in (polygon.exterior, *polygon.holes)] for polygon in polygons]
    return {"type": "MultiPolygon", "coordinates": rings}


def to_feature(geometry: dict[str, Any], label: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Feature of GeoJSON, which QuPath imports as an annotation with a class.

    Reference: QuPath's QuPathTypeAdapters.java.

    Args:
        geometry: see to_geometry().
        label: name of the class; "" for none.
        properties: further properties.
    """
    known: dict[str, Any] = {"objectType": "annotation", **({"classification": {"name": label}} if label else {})}
    return {"type": "Feature", "geometry": geometry, "properties": {**known, **properties}}


def _feature(segment: Segment, tolerance: float) -> dict[str, Any]:
    properties = {
        "object": segment.object_index,
        "candidate": segment.candidate,
        "score": segment.score,
        "area": segment.area,
    }
    return to_feature(multi_polygon(segment.mask, tolerance), segment.label, properties)


def _ring(points: FloatPoints) -> list[list[float]]:
    ring: list[list[float]] = points.tolist()
    return [*ring, ring[0]]


def _rle(segment: Segment, _: float) -> dict[str, Any]:
    return segment.to_rle()


def _polygons(segment: Segment, tolerance: float) -> list[list[float]]:
    return segment.to_polygons(tolerance)


def _png(segment: Segment, _: float) -> bytes:
    return segment.to_png()


def _png_base64(segment: Segment, _: float) -> bytes:
    return base64.b64encode(segment.to_png())


def _read_rle(content: bytes) -> BoolArray:
    try:
        return rle_to_mask(json.loads(content))
    except ValueError as error:  # the JSON is invalid
        raise InputError(f"this is not COCO RLE: {error}") from error


_ROWS = (
    Format(
        "rle",
        media_type="application/json",
        meaning="COCO run-length encoding.",
        value=Rle,
        encode=_rle,
        decode=_read_rle,
    ),
    Format(
        "polygons",
        media_type="application/json",
        meaning="COCO rings; holes are filled.",
        value=list[list[float]],
        encode=_polygons,
        interfaces=frozenset(("service", "client")),
    ),
    Format(
        "geojson",
        media_type="application/geo+json",
        meaning="A FeatureCollection of all masks; holes are inner rings.",
        value=dict[str, Any],
        document=feature_collection,
        interfaces=frozenset(("service", "client")),
    ),
    Format(
        "png",
        media_type="image/png",
        meaning="Base64 PNG, 255 inside.",
        value=bytes,
        encode=_png,
        document=label_image,
    ),
    Format(
        "png_base64",
        media_type="text/plain",
        meaning="Base64 PNG as text: requests in plain JSON would break the bytes of `png`.",
        value=bytes,
        encode=_png_base64,
        interfaces=frozenset(("session model",)),
    ),
)

FORMATS: dict[str, Format] = {form.name: form for form in _ROWS}
"""All formats by name. If a caller accepts several equally, the service sends the first."""
