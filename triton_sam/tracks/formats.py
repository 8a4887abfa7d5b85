"""The table of the formats in which a tracked video is written.

To add a format, write its function and add a row to `_ROWS`. The records (`rle`) are always written, because all
formats of a whole video are made from them. The videos with the masks drawn in are MP4, by PyAV, or animated GIF, by
Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .._common import strict_json
from .._common.files import atomic_path, atomic_write
from ..errors import InputError
from ..families.base import Size
from ..inputs.names import name_of
from ..inputs.video.files import import_av
from ..masks.boxes import corner_and_size
from ..masks.drawing import PALETTE, overlay
from ..masks.label_map import label_map_png, size_of_masks
from ..masks.resize import resize_logits
from ..masks.segment import VideoSegment
from .records import MaskRecord

DEFAULT_RATE = Fraction(25)
"""Images per second if the source has no rate, such as a folder of images."""

_CODECS = ("libx264", "mpeg4")
"""Encoders by preference. Every build of FFmpeg has the second."""
_QUALITY = {"libx264": {"crf": "20", "preset": "veryfast"}, "mpeg4": {"qscale": "3"}}
_LARGEST_DENOMINATOR = 1001  # of the frame rate: 30000/1001 is the rate of NTSC, and mpeg4 takes at most 65535
_GIF_COLORS = 128


def draw_records(image: Image.Image, records: Iterable[MaskRecord]) -> Image.Image:
    """Return the image with the masks of its objects. An object has the same colour in all images."""
    ordered = sorted(records, key=lambda record: record.object_id)
    colors = [PALETTE[(record.object_id - 1) % len(PALETTE)] for record in ordered]
    return overlay(image, [record.mask for record in ordered], colors=colors or None)


def encoder_name() -> str:
    """Return the name of the best video encoder of this machine.

    Raises:
        MissingDependencyError: PyAV is not installed.
    """
    av = import_av()
    for name in _CODECS:
        try:
            av.codec.Codec(name, "w")
        except Exception:  # noqa: BLE001, S112 - versions of PyAV raise different errors for a missing encoder
            continue
        return name
    return _CODECS[-1]


def write_mp4(
    path: Path,
    images: Iterable[Image.Image],
    rate: Fraction,
    pixel_ratio: Fraction = Fraction(1),
) -> None:
    """Write images of one size as an MP4 file, atomically.

    Encoders need an even number of columns and rows. If it is odd, the last column or row is repeated.

    Args:
        path: the file, with the suffix .mp4.
        images: RGB images.
        rate: images per second.
        pixel_ratio: width of a pixel on a screen, divided by its height; players then stretch the images.

    Raises:
        MissingDependencyError: PyAV is not installed.
        InputError: the images differ in size, or there are none.
        OSError: the file cannot be written.
    """
    av, stream, size = import_av(), None, (0, 0)
    with atomic_path(path) as temporary, av.open(str(temporary), "w") as container:
        for number, image in enumerate(images):
            if stream is None:
                stream, size = _video_stream(container, image.size, rate, encoder_name()), image.size
                stream.codec_context.sample_aspect_ratio = pixel_ratio
            elif image.size != size:
                has, first = (f"{width} x {height}" for width, height in (image.size, size))
                raise InputError(f"frame {number} has {has} pixels, but the first has {first}: {path} needs one size")
            for packet in stream.encode(av.VideoFrame.from_ndarray(_even(image), format="rgb24")):
                container.mux(packet)
        if stream is None:
            raise InputError(f"there is no image for {path}")
        for packet in stream.encode():
            container.mux(packet)


def write_gif(path: Path, images: Sequence[Image.Image], rate: Fraction) -> None:
    """Write images as an endless animated GIF, atomically.

    Raises:
        InputError: there are no images.
        OSError: the file cannot be written.
    """
    if not images:
        raise InputError(f"there is no image for {path}")
    first, *others = [image.quantize(_GIF_COLORS) for image in images]
    milliseconds = max(20, round(1000 / rate))  # browsers slow down images that are shown for less time
    with atomic_path(path) as temporary:
        first.save(temporary, format="GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)


def has_av() -> bool:
    """Return whether PyAV is installed."""
    try:
        import av  # noqa: F401 - only checks whether it is installed
    except ImportError:
        return False
    return True


def _video_stream(container: Any, size: tuple[int, int], rate: Fraction, encoder: str) -> Any:
    stream = container.add_stream(
        encoder, rate=rate.limit_denominator(_LARGEST_DENOMINATOR), options=_QUALITY.get(encoder, {})
    )
    stream.width, stream.height = (side + side % 2 for side in size)
    stream.pix_fmt = "yuv420p"
    return stream


def _even(image: Image.Image) -> Any:
    """Return the pixels uint8 (H,W,3) with an even number of rows and columns."""
    pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    return np.ascontiguousarray(np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


RECORDS = "masks.jsonl"
"""Name of the file of records."""


MAX_OBJECT_ID = 255
"""The highest object id that a label map of 8 bits can hold; 0 is the background."""
_CATEGORY = {"id": 1, "name": "object"}


@dataclass(frozen=True)
class TrackedVideo:
    """A video that is tracked to its end.

    Args:
        name: name of the video, for display.
        size: width and height in pixels.
        rate: tracked images per second.
        records: the records of each tracked image.
        images: opens the images of these numbers in ascending order, one after the other.
        pixel_ratio: width of a pixel on a screen, divided by its height.
        image_names: name of the file of each image, for data sets; None if the images are not files.
    """

    name: str
    size: Size
    rate: Fraction
    records: Mapping[int, Sequence[MaskRecord]]
    images: Callable[[Sequence[int]], Iterator[Image.Image]]
    pixel_ratio: Fraction = Fraction(1)
    image_names: Sequence[str] | None = None


@dataclass(frozen=True)
class TrackFormat:
    """One format of a tracked video.

    Args:
        name: the name by which callers request it.
        file: the file or folder, in the folder of the results.
        meaning: one line for users.
        write_image: encodes the masks of one image while the video is tracked; None if the format has one file for the
            whole video.
        write_video: writes the file of the whole video at the end.
        largest_id: the highest object id that the format can hold, or None.
        needs_images: whether the images are read again for the file of the whole video.
        needs_logits: whether the masks of several objects need their logits.
    """

    name: str
    file: str
    meaning: str
    write_image: Callable[[Mapping[int, VideoSegment]], bytes] | None = None
    write_video: Callable[[Path, TrackedVideo], None] | None = None
    largest_id: int | None = None
    needs_images: bool = False
    needs_logits: bool = False

    def holds(self, ids: Iterable[int]) -> bool:
        """Return whether the format can hold all object ids."""
        return self.largest_id is None or max(ids, default=0) <= self.largest_id


def mask_stems(names: Sequence[str] | None) -> list[str] | None:
    """Return the file names of images without suffixes, as names of their masks.

    None, for numbered masks: there are no names, or two differ at most in suffix and capital letters.
    """
    stems = [Path(name).stem for name in names or ()]
    return stems if stems and len({stem.casefold() for stem in stems}) == len(stems) else None


def mask_file(frame: int, stems: Sequence[str] | None) -> str:
    """Return the name of the PNG of an image."""
    return f"{stems[frame]}.png" if stems else f"{frame:05d}.png"


def label_map(masks: Mapping[int, VideoSegment]) -> NDArray[np.uint8]:
    """Merge the masks of one image, so that each pixel belongs to one object at most.

    A pixel in several masks belongs to the object with the highest logit at this pixel (the low-resolution logits are
    resized to the image, as for the masks). Among objects with equal logits, and among objects without logits, the
    highest id takes precedence. An object with logits takes precedence over one without.

    Args:
        masks: object id, 1..255, to its mask; all masks have the same size. At least one.

    Returns:
        uint8 (H,W): the id of the object, 0 for background.

    Raises:
        InputError: an id is outside 1..255, there is no mask, or the masks differ in size.
    """
    width, height = size_of_masks(found.mask.shape for found in masks.values())
    labels = np.zeros((height, width), np.uint8)
    highest = np.full((height, width), -np.inf, np.float32)
    for object_id, found in sorted(masks.items()):
        if not 1 <= object_id <= MAX_OBJECT_ID:
            raise InputError(f"a label map holds the object ids 1..{MAX_OBJECT_ID}, not {object_id}: use other ids")
        if len(masks) == 1 or found.logits is None:
            wins = found.mask & np.isneginf(highest)
        else:
            logits = resize_logits(found.logits, (width, height))
            wins = found.mask & (logits >= highest)
            highest[wins] = logits[wins]
        labels[wins] = object_id
    return labels


def coco_video(video: TrackedVideo) -> dict[str, Any]:
    """Return the whole video in the layout of the data set YouTube-VIS, as plain Python types, ready for JSON.

    Reference: https://youtube-vos.org/dataset/vis: videos have file_names and length, an annotation is one object and
    has a list with one entry for each image (segmentations, bboxes, areas), in ascending order, null where the object
    is not visible.
    """
    width, height = video.size
    ordered = sorted(video.records)
    names = video.image_names
    found: dict[int, list[MaskRecord | None]] = {}
    for place, frame in enumerate(ordered):
        for record in video.records[frame]:
            row = found.setdefault(record.object_id, [None] * len(ordered))
            row[place] = record if record.area else None
    facts = {
        "id": 1,
        "width": width,
        "height": height,
        "length": len(ordered),
        "file_names": [name_of(names[frame]) if names else f"{video.name}/{frame:05d}.jpg" for frame in ordered],
        "frames": ordered,
    }
    annotations = [_annotation(object_id, video.size, row) for object_id, row in sorted(found.items())]
    return {"videos": [facts], "categories": [_CATEGORY], "annotations": annotations}


def _annotation(object_id: int, size: Size, row: Sequence[MaskRecord | None]) -> dict[str, Any]:
    scores = [record.score for record in row if record is not None]
    return {
        "id": object_id,
        "video_id": 1,
        "category_id": _CATEGORY["id"],
        "iscrowd": 0,
        "width": size[0],
        "height": size[1],
        "length": len(row),
        "score": round(sum(scores) / len(scores), 5) if scores else 0.0,
        "segmentations": [record.rle if record is not None else None for record in row],
        "bboxes": [corner_and_size(record.box) if record is not None else None for record in row],
        "areas": [record.area if record is not None else None for record in row],
    }


def _png(masks: Mapping[int, VideoSegment]) -> bytes:
    return label_map_png(label_map(masks))


def _coco(path: Path, video: TrackedVideo) -> None:
    atomic_write(path, strict_json.dumps(coco_video(video)).encode())


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
