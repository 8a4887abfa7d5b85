"""The result of one image, stored in a shard as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._common import strict_json
from ..families.base import Size
from ..masks.coco import coco_object
from ..masks.rle import BoolArray, rle_to_mask
from ..masks.segment import Segment
from .sources import ImageItem, Skipped


@dataclass(frozen=True)
class ImageRecord:
    """The objects of one image, or the error.

    Args:
        size: width and height in pixels; (0, 0) if the image cannot be opened.
        objects: for each object ``category_id``, ``score`` (predicted IoU), ``area`` (pixels), ``bbox`` (x, y, width,
            height in pixels), ``segmentation`` (compressed COCO RLE) and optionally ``name``.
    """

    id: int
    name: str
    size: Size
    objects: tuple[dict[str, Any], ...] = ()
    skipped: tuple[Skipped, ...] = ()
    error: str = ""

    @classmethod
    def of(
        cls,
        item: ImageItem,
        size: Size,
        segments: Iterable[Segment],
        categories: Sequence[int],
        skipped: Sequence[Skipped] = (),
        *,
        origins: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> ImageRecord:
        """Create the record of an image from its segments.

        Empty masks are listed as skipped, because readers of most formats reject them.
        """
        objects, left = [], list(skipped)
        for number, (segment, category) in enumerate(zip(segments, categories, strict=True)):
            if segment.box is None:
                origin = origins[number] if origins else f"object {number + 1}"
                left.append(Skipped(item.name, origin, "its mask is empty"))
                continue
            objects.append({**coco_object(segment, category), **({"name": names[number]} if names else {})})
        return cls(item.id, item.name, size, tuple(objects), tuple(left))

    def mask(self, index: int) -> BoolArray:
        """Return the bool mask (H,W) of an object."""
        return rle_to_mask(self.objects[index]["segmentation"])

    def masks(self) -> Iterator[BoolArray]:
        """Yield the bool mask (H,W) of each object, with one in memory at a time."""
        return map(self.mask, range(len(self.objects)))

    def to_line(self) -> str:
        """Return the record as one line of JSON."""
        return strict_json.dumps(asdict(self), separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str) -> ImageRecord:
        try:
            values = json.loads(line)
            values["size"] = (values["size"][0], values["size"][1])
            values["objects"] = tuple(values["objects"])
            values["skipped"] = tuple(Skipped(**each) for each in values["skipped"])
            return cls(**values)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not the record of an image: {error}") from error
