"""Videos whose frames a tool sends as images before tracking: storing them, and searching them for words."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from ...concepts.instances import Instance
from ...masks.rle import mask_to_rle
from ...masks.segment import Segment
from ...tracks.records import MaskRecord
from ..engine import Pair
from ..problems import Problem
from ..schemas import RleMask
from ..videos.store import StoredVideo
from ..videos.uploads import Upload
from .bridge import Bridge, decoded

Result = TypeVar("Result")


@dataclass(frozen=True)
class FoundInstance:
    """An instance of words or examples in a frame."""

    text: str
    score: float
    rle: RleMask


async def keep_images(bridge: Bridge, texts: Sequence[str], pair: Pair) -> StoredVideo:
    """Store frames, each a base64 image file, as a video."""
    check_count(bridge, len(texts))
    async with bridge.videos.room() as room:
        upload = Upload("frames")
        for index, text in enumerate(texts):
            content = await room.run(functools.partial(decoded, text, f"frame {index}"))
            upload.frames.append(room.folder / f"{index:06d}")
            await room.write(content, upload.frames[-1])
        return await bridge.videos.keep(upload, room, pair)


def check_count(bridge: Bridge, count: int) -> None:
    """Reject a video without frames, or with too many."""
    if not count:
        raise Problem(422, "there are no frames: send at least one image")
    most = bridge.engine.settings.max_video_frames
    if count > most:
        raise Problem(413, f"a video may have {most} frames")


async def find_in_frame(
    bridge: Bridge, request: Request, video: StoredVideo, frame: int, texts: Sequence[str], **filters: Any
) -> list[FoundInstance]:
    """Return every instance of texts, or of example boxes, in a frame."""
    content = await asyncio.to_thread(video.file.paths[frame].read_bytes)
    image = await bridge.engine.store(content)

    def convert(each: Instance) -> FoundInstance:
        return FoundInstance(each.label, each.score, RleMask(**mask_to_rle(each.mask)))

    return await bridge.instances(request, image, await bridge.words_pair(), texts, convert, **filters)


async def in_thread(
    bridge: Bridge, video: StoredVideo, records: Sequence[MaskRecord], convert: Callable[[MaskRecord], Result]
) -> list[Result]:
    """Convert masks to the tool's form, one by one in a thread."""
    width, height = video.file.size
    return await bridge.engine.budgets.workers.map(2 * width * height, convert, records)


def segment_of(record: MaskRecord) -> Segment:
    """Return a mask of a video as a mask of an image."""
    return Segment(record.mask, record.score, None, record.object_id - 1)
