"""The record of one object in one image, and the file of records: JSON Lines with COCO RLE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common import strict_json
from .._common.checks import whole_number
from ..errors import InputError
from ..masks.boxes import Box
from ..masks.rle import BoolArray, mask_to_rle, rle_to_mask
from ..masks.segment import VideoSegment


@dataclass(frozen=True)
class MaskRecord:
    """One object in one image of a video, ready for JSON.

    Args:
        frame: number of the image, from 0.
        object_id: the caller's number of the object.
        rle: compressed COCO RLE of the mask, ``{"size": [H, W], "counts": text}``.
        score: the IoU with the true mask that the model predicts, about 0..1.
        object_score: a logit, above 0 if the object is visible in this image.
        box: x1,y1,x2,y2 of the mask in pixels, x2 and y2 one past the last pixel; None if the mask is empty.
        area: number of pixels of the mask.
    """

    frame: int
    object_id: int
    rle: dict[str, Any]
    score: float
    object_score: float
    box: Box | None
    area: int

    @classmethod
    def of(cls, frame: int, object_id: int, found: VideoSegment) -> MaskRecord:
        """Return the record of a mask."""
        score, object_score = round(float(found.score), 5), round(float(found.object_score), 5)
        return cls(frame, object_id, mask_to_rle(found.mask), score, object_score, found.box, found.area)

    @property
    def mask(self) -> BoolArray:
        """The mask, bool (H,W).

        Raises:
            InputError: the RLE is damaged.
        """
        return rle_to_mask(self.rle)

    def to_line(self) -> str:
        """Return the record as one line of JSON, with its line break."""
        return strict_json.dumps(vars(self), separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> MaskRecord:
        """Read one line of JSON; bytes are UTF-8.

        Raises:
            InputError: the line is not a record.
        """
        try:
            row = json.loads(line.decode() if isinstance(line, bytes) else line)
            box = row["box"]
            if box is not None:
                x1, y1, x2, y2 = (int(value) for value in box)
                box = (x1, y1, x2, y2)
            frame, object_id = whole_number(row["frame"]), whole_number(row["object_id"])
            scores = float(row["score"]), float(row["object_score"])
            return cls(frame, object_id, dict(row["rle"]), *scores, box, int(row["area"]))
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"this is not the record of a mask: {line[:60]!r}") from error


def append_records(path: Path, records: Iterable[MaskRecord]) -> None:
    """Append the records of one image to a file in one unbuffered write.

    Raises:
        OSError: the file cannot be written.
    """
    text = "".join(record.to_line() for record in records)
    with path.open("ab", buffering=0) as stream:
        stream.write(text.encode())


def read_records(path: Path) -> Iterator[MaskRecord]:
    """Read a file of records, one at a time, in the order of the file.

    Raises:
        InputError: a line, which the message names, is not a record.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield MaskRecord.from_line(line)
            except InputError as error:
                raise InputError(f"{path}, line {number}: {error}") from error
