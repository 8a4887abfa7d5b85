"""Converts a decoder's logits to full-size masks, and encodes masks in every supported format.

`segment` has masks with their scores and the table of wire formats. `cleanup` has optional changes of masks, and their
connected parts.
"""

from .boxes import intersection_over_union, mask_to_box
from .cleanup import Cleanup
from .drawing import crop, cutout, overlay
from .label_map import mask_to_png
from .polygons import Polygon, fill_polygons, joined_ring, main_polygons, mask_to_polygons, trace_polygons
from .resize import full_size_logits, resize_logits
from .rle import mask_to_rle, rle_to_mask
from .segment import Segment, VideoSegment, best_of, to_supervision

__all__ = [
    "Cleanup",
    "Polygon",
    "Segment",
    "VideoSegment",
    "best_of",
    "crop",
    "cutout",
    "fill_polygons",
    "full_size_logits",
    "intersection_over_union",
    "joined_ring",
    "main_polygons",
    "mask_to_box",
    "mask_to_png",
    "mask_to_polygons",
    "mask_to_rle",
    "overlay",
    "resize_logits",
    "rle_to_mask",
    "to_supervision",
    "trace_polygons",
]
