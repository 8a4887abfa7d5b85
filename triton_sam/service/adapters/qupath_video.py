"""QuPath's stacks and time series: frames are uploaded one by one, and one call follows all objects through them.

Reference: ``upload``, ``video`` and ``sam3video`` in src/samapi/main.py of https://github.com/ksugar/samapi.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import Field
from starlette.datastructures import UploadFile

from ...concepts.instances import SAME_OBJECT
from ...masks.boxes import intersection_over_union
from ...masks.rle import BoolArray, rle_to_mask
from ...tracks.records import MaskRecord
from .. import background
from ..bodies import FILES, kind_of
from ..engine import Pair
from ..problems import Problem
from ..videos.schemas import PropagateRequest, video_prompt
from ..videos.sessions import Session
from ..videos.store import StoredVideo
from ..videos.uploads import Room, Upload
from .bridge import Bridge, FoundInstance, Lenient, Target

MAX_NAME = 200
MAX_PROMPTS = 1024
TRACK_SECONDS = 3600.0
"""Timeout of a call that follows objects."""
FOLDER = "qupath/"
"""Prefix of the folders' names among the sessions of the service."""
VISUAL = "visual"
"""SAM3's text for a prompt that has only boxes."""
UNKNOWN = "these frames are unknown or expired: upload them again"

Feature = bytes
"""A GeoJSON feature as JSON."""
Describe = Callable[[MaskRecord, int], Feature | None]
Work = Callable[[StoredVideo], Coroutine[Any, Any, list[Feature]]]
FrameNumber = Annotated[int, Field(ge=0, lt=1 << 31)]


class VideoBody(Lenient):
    """The frames: an uploaded folder, or base64 images."""

    objs: Mapping[int, Any]

    dirname: str | None = Field(default=None, max_length=MAX_NAME)
    b64imgs: list[str] | None = None
    axes: Literal["XYT", "XYZ"] = "XYT"
    plane_position: int | None = 0
    start_frame_idx: FrameNumber | None = None
    max_frame_num_to_track: int | None = Field(default=None, ge=0, lt=(1 << 31) - 1)

    def plane(self, frame: int) -> dict[str, int]:
        other = self.plane_position or 0
        z, t = (frame, other) if self.axes == "XYZ" else (other, frame)
        return {"c": -1, "z": z, "t": t}

    @property
    def count(self) -> int | None:
        return None if self.max_frame_num_to_track is None else self.max_frame_num_to_track + 1


class Clicked(Lenient):
    """The prompt of one object in a frame."""

    obj_id: int = Field(ge=0, lt=(1 << 31) - 1)
    point_coords: list[list[float]] | None = None
    point_labels: list[int] | None = None
    bbox: list[float] | None = None


class Shown(Lenient):
    """Words and examples in a frame; boxes are x, y, width and height."""

    obj_id: int = 0
    text: str | None = None
    boxes_xywh: list[list[float]] | None = None
    box_labels: list[int] | None = None


class Sam2VideoBody(VideoBody):
    type: str = Field(default="sam2_t", max_length=32)
    objs: dict[FrameNumber, list[Clicked]] = Field(max_length=MAX_PROMPTS)


class Sam3VideoBody(VideoBody):
    type: str = Field(default="sam3", max_length=32)
    objs: dict[FrameNumber, list[Shown]] = Field(max_length=MAX_PROMPTS)


@dataclass(eq=False)
class Folder(Session):
    """Uploaded frames that are not followed yet.

    Args:
        files: the path and the number of bytes of each frame, by name.
    """

    room: Room
    files: dict[str, tuple[Path, int]] = field(default_factory=dict)

    async def close(self) -> None:
        await self.room.close()

    async def keep(self, name: str, content: bytes) -> None:
        """Store a frame; it replaces a frame with the same name."""
        path, before = self.files.get(name) or (self.room.folder / uuid.uuid4().hex, 0)
        await self.room.write(content, path, before)
        self.files[name] = path, len(content)

    def frames(self) -> list[Path]:
        """Return the files, sorted by number."""

        def order(name: str) -> tuple[float, str]:
            stem = PurePosixPath(name).stem
            return (int(stem) if stem.isdecimal() else float("inf"), name)

        return [self.files[name][0] for name in sorted(self.files, key=order)]


class Sequences:
    """Follows objects through stacks and time series."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._sessions = bridge.videos.sessions
        self._lock = asyncio.Lock()

    async def receive(self, request: Request) -> str:
        """Store a frame in the folder that the request names, and return the name of the frame."""
        if kind_of(request.headers) != FILES:
            raise Problem(415, f"send a form as {FILES}, with dirname and file")
        async with request.form(max_files=1, max_fields=8) as sent:
            file, name = sent.get("file"), sent.get("dirname")
            if not isinstance(file, UploadFile) or not file.filename or not isinstance(name, str) or not name:
                raise Problem(422, "send dirname, and the image as file with a name")
            if max(len(name), len(file.filename)) > MAX_NAME:
                raise Problem(422, f"a name has at most {MAX_NAME} characters")
            content = await file.read()
        async with self._lock:  # QuPath sends several frames concurrently, and the first one creates the folder
            folder = self._sessions.find(FOLDER + name, Folder)
            if folder is not None:
                self._bridge.check_count(len({*folder.files, file.filename}))
                await folder.keep(file.filename, content)
            else:
                self._bridge.check_count(1)
                async with self._bridge.videos.room() as room:
                    folder = Folder(room)
                    await folder.keep(file.filename, content)
                    self._sessions.add(FOLDER + name, folder)
                    room.is_kept = True
        return file.filename

    async def clicked(self, request: Request, pair: Pair, body: Sam2VideoBody, feature: Describe) -> list[Feature]:
        """Return the features of all objects in all frames.

        Args:
            feature: makes the feature of a mask from a MaskRecord and the object number.
        """

        async def work(video: StoredVideo) -> list[Feature]:
            for frame, objects in sorted(body.objs.items()):
                for each in objects:
                    points = each.point_coords or []
                    target = Target(points, each.point_labels or [1] * len(points), each.bbox or None)
                    placed = target.inside(video.file.size)
                    await video.tracking.add(video_prompt(frame=frame, object_id=each.obj_id + 1, **placed))
            ways = [PropagateRequest(start=body.start_frame_idx, count=body.count)]
            return await self._features(video, ways, lambda record: feature(record, record.object_id - 1))

        return await self._bridge.run(request, self._with_video(body, pair, work), timeout=TRACK_SECONDS)

    async def named(self, request: Request, pair: Pair, body: Sam3VideoBody, feature: Describe) -> list[Feature]:
        """Return the features of all instances of words and examples in all frames; see clicked()."""

        async def work(video: StoredVideo) -> list[Feature]:
            owners: dict[int, tuple[int, str]] = {}
            before = None
            for frame, shown in sorted(body.objs.items()):
                if before is not None and owners:
                    await _walk(video, PropagateRequest(start=before, count=frame - before + 1))
                await self._find(request, video, frame, shown, owners)
                before = frame
            if not owners:
                return []
            first = min(body.objs) if body.start_frame_idx is None else body.start_frame_idx
            ways = [PropagateRequest(start=first, count=body.count)]
            if first:
                ways.append(PropagateRequest(start=first, count=body.count, reverse=True))
            return await self._features(video, ways, lambda record: feature(record, owners[record.object_id][0]))

        return await self._bridge.run(request, self._with_video(body, pair, work), timeout=TRACK_SECONDS)

    async def _with_video(self, body: VideoBody, pair: Pair, work: Work) -> list[Feature]:
        if body.dirname is not None:
            async with self._lock:
                folder = self._sessions.take(FOLDER + body.dirname, Folder)
            if folder is None:
                raise Problem(404, UNKNOWN)
            async with self._bridge.videos.own(folder.room) as room:
                upload = Upload(body.dirname, frames=folder.frames())
                video = await self._bridge.videos.keep(upload, room, pair)
        elif body.b64imgs is not None:
            video = await self._bridge.keep_images(body.b64imgs, pair)
        else:
            raise Problem(422, "send dirname or b64imgs")
        try:
            for frame in (*body.objs, body.start_frame_idx or 0):
                if frame >= video.file.num_frames:
                    raise Problem(422, f"there is no frame {frame}: the last one is {video.file.num_frames - 1}")
            return await work(video)
        finally:
            await background.finish(self._sessions.remove(video.video_id))

    async def _find(
        self, request: Request, video: StoredVideo, frame: int, shown: list[Shown], owners: dict[int, tuple[int, str]]
    ) -> None:
        """Add the new instances of a frame as objects, and record the prompt that each belongs to."""
        by_text: defaultdict[str, list[Shown]] = defaultdict(list)
        for each in shown:
            by_text["" if each.text in (None, VISUAL) else str(each.text).strip()].append(each)
        for text, prompts in by_text.items():
            boxes, labels = _examples(prompts)
            if not text and not boxes:
                raise Problem(422, "send a text, boxes, or both")
            examples: dict[str, Any] = {"boxes": boxes, "box_labels": labels} if boxes else {}
            texts = [text] if text else []
            found = await self._bridge.find_in_frame(request, video, frame, texts, **examples)
            known = [each for each in video.tracking.records.at(frame) if owners[each.object_id][1] == text]
            for new in await asyncio.to_thread(_new, found, known):
                number = len(owners) + 1
                owners[number] = prompts[0].obj_id, text
                await video.tracking.add(video_prompt(frame=frame, object_id=number, mask_rle=new.rle))

    async def _features(
        self, video: StoredVideo, ways: list[PropagateRequest], feature: Callable[[MaskRecord], Feature | None]
    ) -> list[Feature]:
        by_frame: dict[int, list[Feature | None]] = {}
        for way in ways:
            propagation = await video.tracking.propagate(way)
            async with contextlib.aclosing(propagation.frames()) as frames:
                async for each in frames:
                    by_frame[each.frame] = await self._bridge.in_thread(video.file.size, each.records, feature)
        return [each for frame in sorted(by_frame) for each in by_frame[frame] if each is not None]


async def _walk(video: StoredVideo, way: PropagateRequest) -> None:
    """Follow the objects through the frames, to store their masks."""
    propagation = await video.tracking.propagate(way)
    async with contextlib.aclosing(propagation.frames()) as frames:
        async for _ in frames:
            pass


def _examples(prompts: list[Shown]) -> tuple[list[list[float]], list[int]]:
    """Return the example boxes of prompts, as x1, y1, x2, y2, and their labels."""
    boxes, labels = [], []
    for each in prompts:
        given = each.boxes_xywh or []
        marks = each.box_labels or [1] * len(given)
        if len(marks) != len(given) or any(len(box) != 4 for box in given):
            raise Problem(422, "a box is x, y, width, height, and has one label")
        boxes += [[x, y, x + width, y + height] for x, y, width, height in given]
        labels += marks
    return boxes, labels


def _new(found: list[FoundInstance], known: Sequence[MaskRecord]) -> list[FoundInstance]:
    """Return the instances that are not known objects, as in a search in a video."""
    masks: list[BoolArray] = [record.mask for record in known]
    new = []
    for each in found:
        mask = rle_to_mask(each.rle.model_dump())
        if all(intersection_over_union(mask, other) < SAME_OBJECT for other in masks):
            new.append(each)
    return new
