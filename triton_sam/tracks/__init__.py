"""The masks of objects in all images of a video, and the files that hold them. docs/how-to/video.md shows each file.

`formats.py` has the table of formats. A mask of one object in one image is a `MaskRecord`; all formats that need the
whole video are written from records.
"""

from ..masks.label_map import davis_palette
from .formats import TRACK_FORMATS, TrackFormat, label_map
from .prompts import ObjectPrompt
from .records import MaskRecord

__all__ = [
    "TRACK_FORMATS",
    "MaskRecord",
    "ObjectPrompt",
    "TrackFormat",
    "davis_palette",
    "label_map",
]
