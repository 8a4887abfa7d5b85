"""The table of the formats in which a tracked video is written.

To add a format, write its function in a file of its own and add a row to `_ROWS`. The records (`rle`) are always
written, because all formats of a whole video are made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from PIL import Image

from .._common import strict_json
from .._common.files import atomic_write
from ..families.base import Size
from ..masks.label_map import label_map_png
from .coco_video import coco_video
from .overlay_video import draw_records, write_mp4
from .palette import MAX_OBJECT_ID, label_map
from .protocols import ObjectMask
from .records import MaskRecord

RECORDS = "masks.jsonl"
"""Name of the file of records."""


@dataclass(frozen=True)
class TrackedVideo:
    """A video that is tracked to its end.

    Args:
        name: name of the video, for people.
        size: width and height in pixels.
        rate: images a second of the tracked images.
        records: the records of each tracked image.
        images: opens the images of these numbers, in ascending order, one after the other.
        pixel_ratio: width of a pixel on a screen, divided by its height.
    """

    name: str
    size: Size
    rate: Fraction
    records: Mapping[int, Sequence[MaskRecord]]
    images: Callable[[Sequence[int]], Iterator[Image.Image]]
    pixel_ratio: Fraction = Fraction(1)


@dataclass(frozen=True)
class TrackFormat:
    """One format of a tracked video.

    Args:
        name: the name by which callers request it.
        file: the file or folder, in the folder of the results.
        meaning: one line for people.
        image_file: returns the name of the file of one image; None if the format has one file for the whole video.
        write_image: encodes the masks of one image while the video is tracked.
        write_video: writes the file of the whole video at the end.
        largest_id: the highest object id that the format can hold, or None.
        needs_images: whether the images themselves are read again for the file of the whole video.
        needs_logits: whether the masks of several objects need their logits.
    """

    name: str
    file: str
    meaning: str
    image_file: Callable[[int], str] | None = None
    write_image: Callable[[Mapping[int, ObjectMask]], bytes] | None = None
    write_video: Callable[[Path, TrackedVideo], None] | None = None
    largest_id: int | None = None
    needs_images: bool = False
    needs_logits: bool = False


def _png(masks: Mapping[int, ObjectMask]) -> bytes:
    return label_map_png(label_map(masks))


def _coco(path: Path, video: TrackedVideo) -> None:
    records = (record for group in video.records.values() for record in group)
    document = coco_video(video.name, video.size, list(video.records), records)
    atomic_write(path, strict_json.dumps(document).encode())


def _overlay(path: Path, video: TrackedVideo) -> None:
    frames = sorted(video.records)
    images = video.images(frames)
    write_mp4(
        path,
        (draw_records(image, video.records[frame]) for frame, image in zip(frames, images, strict=True)),
        video.rate,
        pixel_ratio=video.pixel_ratio,
    )


_ROWS = (
    TrackFormat(
        "png",
        "masks",
        "one PNG for each image with the palette of DAVIS: a pixel holds the id of its object",
        image_file="{:05d}.png".format,
        write_image=_png,
        largest_id=MAX_OBJECT_ID,
        needs_logits=True,
    ),
    TrackFormat("rle", RECORDS, "JSON Lines with COCO RLE, score, box and area; always written"),
    TrackFormat("coco", "annotations.json", "COCO for videos, as in YouTube-VIS", write_video=_coco),
    TrackFormat("overlay", "overlay.mp4", "the video with the masks drawn in", write_video=_overlay, needs_images=True),
)

TRACK_FORMATS: dict[str, TrackFormat] = {form.name: form for form in _ROWS}
"""All formats by name."""
