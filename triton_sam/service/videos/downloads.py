"""Writes the masks of a video as one file, in any format of `triton_sam.tracks`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ...inputs.images import open_image
from ...tracks.formats import TRACK_FORMATS, TrackedVideo
from ...tracks.records import MaskRecord
from ..problems import Problem
from .decoders import Decoders
from .files import VideoFile
from .records import Records


@dataclass(frozen=True)
class FileKind:
    """The file of a format.

    Args:
        suffix: the end of its name.
        media_type: its media type.
        write: writes it. Its arguments are the path, the video and the frames, one by one.
    """

    suffix: str
    media_type: str
    write: Callable[[Path, Download, Iterator[int]], None]


@dataclass(frozen=True)
class Download:
    """The contents of a file to download.

    Args:
        name: name of the video without its ending.
        video: the video.
        records: its masks, by frame.
        labels: its label maps as PNG, in the order of the frames.
        decoders: open the frames.
    """

    name: str
    video: VideoFile
    records: Mapping[int, Sequence[MaskRecord]]
    labels: Iterator[tuple[int, bytes]]
    decoders: Decoders


def prepare(form: str, name: str, video: VideoFile, records: Records, decoders: Decoders) -> Download:
    """Return the contents of a file in a format, as they are at this moment.

    Raises:
        Problem: 409, there are no masks; 422, the format cannot hold the ids of the objects.
    """
    masks = records.all()
    if not masks:
        raise Problem(409, "the video has no masks yet: add a prompt and track it", code="no_masks")
    largest = TRACK_FORMATS[form].largest_id
    highest = max(record.object_id for group in masks.values() for record in group)
    if largest is not None and highest > largest:
        raise Problem(422, f"the format {form} holds the object ids 1..{largest}, not {highest}: take another format")
    return Download(name, video, masks, records.label_maps(), decoders)


def _write_labels(path: Path, download: Download, frames: Iterator[int]) -> None:
    file_name = TRACK_FORMATS["png"].image_file or str
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # a PNG is compressed already
        for (frame, content), _ in zip(download.labels, frames, strict=True):
            archive.writestr(file_name(frame), content)


def _write_lines(path: Path, download: Download, frames: Iterator[int]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for frame in frames:
            stream.writelines(record.to_line() for record in download.records[frame])


def _write_whole(form: str) -> Callable[[Path, Download, Iterator[int]], None]:
    def write(path: Path, download: Download, frames: Iterator[int]) -> None:
        def images(_: Sequence[int]) -> Iterator[Image.Image]:
            for frame in frames:
                yield open_image(download.decoders.frame(download.video, frame, "preview").content)

        video = TrackedVideo(download.name, download.video.size, download.video.rate, download.records, images)
        writer = TRACK_FORMATS[form].write_video
        if writer is not None:
            writer(path, video)

    return write


FILES: dict[str, FileKind] = {
    "png": FileKind("masks.zip", "application/zip", _write_labels),
    "rle": FileKind("masks.jsonl", "application/jsonl", _write_lines),
    "coco": FileKind("coco.json", "application/json", _write_whole("coco")),
    "overlay": FileKind("overlay.mp4", "video/mp4", _write_whole("overlay")),
}
"""The file of each format."""
