"""Masks with their scores, and the table of all output formats of masks.

To add a format, write a function that encodes a segment and add a row to FORMATS. The session models
(``output_format``), the service (``format`` of ``/v1`` and its description) and `Segment.encode` use the table.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from PIL import Image

from .._common import strict_json
from .._common.extras import missing
from .._common.files import atomic_write
from ..errors import InputError
from ..families.base import FloatArray
from ..inputs.images import ImageSource
from .boxes import Box, mask_to_box
from .drawing import PALETTE, Color, crop, cutout, overlay
from .label_map import mask_to_png, numbered_png
from .polygons import mask_to_polygons, to_feature, to_geometry, trace_polygons
from .rings import EXACT
from .rle import BoolArray, Rle, mask_to_rle, rle_json_to_mask

TOLERANCE = EXACT
"""Default for the maximum distance, in pixels, between a polygon and the exact outline."""
UNNAMED = "object"
"""The class of unlabelled objects in files and detections."""

Interface = Literal["session model", "service", "client"]
"""An interface with formats: ``output_format`` of a session model, ``format`` of ``/v1``, `Segment.encode`."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One object found in an image.

    Args:
        mask: bool (H,W) at the size of the original image.
        score: the predicted IoU with the true mask, about 0..1.
        logits: float32 (h,w) low-resolution logits; pass them to predict() as mask_input to refine the mask. None
            without logits. Empty (0,0), which mask_input refuses, if segment() left them out by default.
        object_index: index of the prompt, 0..P-1.
        candidate: index of the candidate for that prompt, from 0.
        label: the text that found the object; empty without a text.
    """

    mask: BoolArray
    score: float
    logits: FloatArray | None
    object_index: int = 0
    candidate: int = 0
    label: str = field(default="", kw_only=True)

    def __repr__(self) -> str:
        height, width = self.mask.shape
        return f"{type(self).__name__}({width}x{height}, {self.area} px, box={self.box}, score={self.score:.2f})"

    @property
    def area(self) -> int:
        """Number of foreground pixels."""
        return int(np.count_nonzero(self.mask))

    @property
    def box(self) -> Box | None:
        """Tight box, see mask_to_box()."""
        return mask_to_box(self.mask)

    def encode(self, form: str, tolerance: float = TOLERANCE) -> bytes:
        """Return the content of a file with the mask, in any format of triton_sam.masks.segment.FORMATS.

        Args:
            form: name of the format: "rle", "polygons", "geojson" or "png".
            tolerance: maximum distance, in pixels, between a polygon and the exact outline.

        Raises:
            InputError: the format is unknown.
            MissingDependencyError: a polygon format, and contourpy is not installed.
        """
        return find_format(form, "client").to_bytes(self, tolerance)

    def to_png(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return the mask as PNG, see mask_to_png(). With a path, also write the file atomically.

        Raises:
            OSError: the file cannot be written; an existing file stays intact.
        """
        content = mask_to_png(self.mask)
        if path is not None:
            atomic_write(path, content)
        return content

    def to_rle(self, compressed: bool = True) -> dict[str, Any]:
        """Return the mask as COCO RLE, see mask_to_rle()."""
        return mask_to_rle(self.mask, compressed)

    def to_polygons(self, tolerance: float = TOLERANCE) -> list[list[float]]:
        """Return the mask as COCO polygons with filled holes, see mask_to_polygons().

        Raises:
            MissingDependencyError: contourpy is not installed.
        """
        return mask_to_polygons(self.mask, tolerance)

    def to_pycocotools(self) -> dict[str, Any]:
        """Return the mask for the functions of pycocotools.mask: compressed RLE with ``counts`` as bytes."""
        rle = self.to_rle()
        return {**rle, "counts": rle["counts"].encode()}

    def to_supervision(self) -> Any:
        """Return the mask as supervision.Detections, see triton_sam.masks.to_supervision().

        Raises:
            MissingDependencyError: supervision is not installed.
        """
        return to_supervision([self])

    def cutout(self, image: ImageSource) -> Image.Image:
        """Return the object without background, RGBA in the size of its box, see triton_sam.masks.cutout().

        Args:
            image: the image that was segmented, in any form that the client accepts.

        Raises:
            ImageError: the image cannot be used.
            InputError: the image has another size than the mask, or the mask is empty.
        """
        return cutout(image, self.mask)

    def crop(self, image: ImageSource, margin: int = 0) -> Image.Image:
        """Return the part of an image around the object, with the background, as RGB.

        Args:
            image: the image that was segmented, in any form that the client accepts.
            margin: pixels to keep around the box, clipped to the image.

        Raises:
            ImageError: the image cannot be used.
            InputError: the image has another size than the mask, the mask is empty, or the margin is negative.
        """
        return crop(image, self.mask, margin)

    def _repr_png_(self) -> bytes:  # for notebooks
        return self.to_png()

    def overlay(
        self,
        image: ImageSource,
        color: Color | None = None,
        alpha: float = 0.5,
        outline: bool = True,
    ) -> Image.Image:
        """Return the image with the mask drawn into it, see triton_sam.masks.overlay().

        Args:
            image: the image that was segmented, in any form that the client accepts.
            color: red, green, blue in 0..255. None: a colour of PALETTE, chosen by object_index.
            alpha: opacity of the fill, 0..1.
            outline: whether to also draw the border.
        """
        chosen = color if color is not None else PALETTE[self.object_index % len(PALETTE)]
        return overlay(image, [self.mask], colors=[chosen], alpha=alpha, outline=outline)


@dataclass(frozen=True, eq=False)
class VideoSegment(Segment):
    """One object in one frame of a video.

    ``object_index`` is the index of the object in the video, in the order in which objects were added.

    Args:
        object_id: the id that the caller gave to the object.
        frame: index of the frame, from 0.
        object_score: a logit, above 0 if the object is visible in this frame. The mask of an invisible object is empty.
    """

    object_id: int = 0
    frame: int = 0
    object_score: float = 0.0

    @property
    def is_visible(self) -> bool:
        """Whether the object is visible in this frame."""
        return self.object_score > 0


def best_of(segments: Iterable[Segment]) -> list[Segment]:
    """Return the candidate with the highest score for each object, sorted by object; of equal scores the first."""
    best: dict[int, Segment] = {}
    for segment in segments:
        kept = best.get(segment.object_index)
        if kept is None or segment.score > kept.score:
            best[segment.object_index] = segment
    return [best[index] for index in sorted(best)]


def to_supervision(segments: Sequence[Segment]) -> Any:
    """Return segments as supervision.Detections. Empty masks are left out, because detections need a box.

    Args:
        segments: masks of one image.

    Returns:
        Detections with ``xyxy`` float32 (N,4), ``mask`` bool (N,H,W), ``confidence`` float32 (N,) (the predicted IoU),
        ``class_id`` int64 (N,) (the index of the label in order of appearance), ``data["class_name"]`` (the label, or
        "object"), ``data["object_index"]`` and ``data["candidate"]``.

    Raises:
        MissingDependencyError: supervision is not installed.
    """
    try:
        import supervision
    except ImportError as error:
        raise missing("to_supervision() needs", "supervision", error) from error
    boxes = [segment.box for segment in segments]
    kept = [(segment, box) for segment, box in zip(segments, boxes, strict=True) if box is not None]
    if not kept:
        return supervision.Detections.empty()
    names = [segment.label or UNNAMED for segment, _ in kept]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return supervision.Detections(
        xyxy=np.array([box for _, box in kept], np.float32),
        mask=np.stack([segment.mask for segment, _ in kept]),
        confidence=np.array([segment.score for segment, _ in kept], np.float32),
        class_id=np.array([numbers[name] for name in names], np.int64),
        data={
            "class_name": np.array(names),
            "object_index": np.array([segment.object_index for segment, _ in kept]),
            "candidate": np.array([segment.candidate for segment, _ in kept]),
        },
    )


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
        document: encodes all masks of an answer as one file. None if the format has no file for several masks.
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
    interfaces: frozenset[Interface] = frozenset(("session model", "service", "client"))

    @property
    def is_binary(self) -> bool:
        """Whether encoded masks are bytes instead of JSON values."""
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
            InputError: the format has no file for several masks.
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
    """Return the format with a name.

    Raises:
        InputError: the name is unknown, or this interface does not offer the format.
    """
    known = formats_of(interface)
    if name not in known:
        raise InputError(f"there is no format {name[:40]!r} here: give one of {', '.join(known)}")
    return known[name]


def formats_of(interface: Interface) -> dict[str, Format]:
    """Return the formats of an interface by name, in the order of the table."""
    return {name: form for name, form in FORMATS.items() if interface in form.interfaces}


def _content(encoded: Any) -> bytes:
    return encoded if isinstance(encoded, bytes) else strict_json.dumps(encoded, separators=(",", ":")).encode()


def feature_collection(segments: Iterable[Segment], tolerance: float) -> dict[str, Any]:
    """Return GeoJSON with one feature per nonempty segment: x, y in pixels, y downwards, with holes."""
    features = []
    for each in segments:
        known = {"object": each.object_index, "candidate": each.candidate, "score": each.score, "area": each.area}
        if each.area:
            features.append(to_feature(to_geometry(trace_polygons(each.mask, tolerance)), each.label, known))
    return {"type": "FeatureCollection", "features": features}


def label_image(segments: Iterable[Segment], _: float) -> bytes:
    """Return the best mask of each object as one PNG, see triton_sam.masks.label_map.numbered_png()."""
    best = best_of(segments)
    return numbered_png([segment.mask for segment in best], [segment.object_index + 1 for segment in best])


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "rle",
            media_type="application/json",
            meaning="COCO run-length encoding.",
            value=Rle,
            encode=lambda segment, _: segment.to_rle(),
            decode=rle_json_to_mask,
        ),
        Format(
            "polygons",
            media_type="application/json",
            meaning="COCO rings; holes are filled.",
            value=list[list[float]],
            encode=lambda segment, tolerance: segment.to_polygons(tolerance),
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
            encode=lambda segment, _: segment.to_png(),
            document=label_image,
        ),
        Format(
            "png_base64",
            media_type="text/plain",
            meaning="Base64 PNG as text: requests in plain JSON would break the bytes of `png`.",
            value=bytes,
            encode=lambda segment, _: base64.b64encode(segment.to_png()),
            interfaces=frozenset(("session model",)),
        ),
    )
}
"""All formats by name. If a caller accepts several formats equally, the service sends the first."""
