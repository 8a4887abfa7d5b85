"""Turns the logits of a decoder into full-size masks, and encodes masks in every supported format."""

from .cleanup import Cleanup
from .compare import best_of, intersection_over_union
from .detections import to_supervision
from .drawing import crop, cutout, overlay
from .polygons import Polygon, fill_polygons, joined_ring, main_polygons, mask_to_polygons, trace_polygons
from .resize import full_size_logits, resize_logits
from .rle import mask_to_rle, rle_to_mask
from .segment import Segment, mask_to_box, mask_to_png
from .video_segment import VideoSegment

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
