"""The uploaded videos of the service: their files, their sessions, and how long they stay."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fastapi import Request
from starlette.requests import ClientDisconnect

from .. import background
from ..budgets import Budgets, stopping
from ..engine import Engine, Pair
from ..logs import LOGGER
from ..problems import Problem, cancelled
from . import uploads
from .clients import VideoClients
from .decoders import Decoders, StoredFrames
from .files import VideoFile, examine
from .folders import Folder
from .rooms import Room
from .schemas import ObjectInfo, VideoInfo
from .tracking import Tracking
from .uploads import Upload

MOST_SECONDS = 5.0
"""The service looks for unused videos so often, or four times in the time that they may be unused."""
CHECKS = 2
"""Uploads that are checked at a time."""


@dataclass(eq=False)
class StoredVideo:
    """One uploaded video.

    Args:
        video_id: a random id.
        name: the name of the file at its sender.
        room: its place, its bytes, and the folder of its files.
        file: the video on the disk.
        model: name of the pair that tracks it.
        tracking: its objects and masks.
        used: time of the clock at which somebody used it last.
    """

    video_id: str
    name: str
    room: Room
    file: VideoFile
    model: str
    tracking: Tracking
    used: float = field(default_factory=time.monotonic)

    @property
    def stem(self) -> str:
        """Its name without folders and ending, for the names of downloads."""
        return PurePosixPath(self.name.replace("\\", "/")).stem or "video"


class Videos:
    """All videos of one service, used on one event loop from ``start()`` to ``stop()``.

    Args:
        engine: knows the models and the budgets.
    """

    def __init__(self, engine: Engine) -> None:
        self.clients = VideoClients(engine.settings)
        self.decoders = Decoders()
        self._engine = engine
        self._videos: dict[str, StoredVideo] = {}
        self._folder: Folder | None = None
        self._folder_lock = threading.Lock()
        self._checks = asyncio.Semaphore(CHECKS)
        self._sweeper: asyncio.Task[None] | None = None
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._videos)

    @property
    def _budgets(self) -> Budgets:
        return self._engine.budgets

    async def start(self) -> None:
        """Begin to remove unused videos."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Remove all videos."""
        self.refuse()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self.remove(video_id) for video_id in list(self._videos)))
        await background.wait()
        await self.clients.close()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)

    def refuse(self) -> None:
        """Take no more videos, and stop all that are tracked after the frame that Triton computes."""
        self._is_stopping = True
        for video in self._videos.values():
            video.tracking.stop_soon()

    async def pair(self, name: str | None) -> Pair:
        """Return the pair that a caller names, if it has a video model. None: the default one, or else any.

        Raises:
            Problem: 404, no such pair, or it has no video model; 503, Triton is gone.
        """
        pair = await self._engine.pair(name)
        if not pair.tracks_videos and not name:
            pair = next((other for other in self._engine.state.pairs.values() if other.tracks_videos), pair)
        if not pair.tracks_videos:
            raise Problem(
                404,
                f"Triton serves no video model of {pair.name!r}: `triton-sam setup sam2 base_plus --video` sets one up",
                code="no_video_model",
            )
        return pair

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncIterator[Room]:
        """Lend a room for a new video. It is given back at the end of the block, unless keep() has taken it.

        Raises:
            Problem: 503, there are too many videos.
        """
        if self._is_stopping:
            raise stopping()
        with self._budgets.videos.take() as place, self._budgets.video_bytes.take(0) as disk:
            room = Room(place.pass_on(), disk.pass_on(), self._make_folder)
        async with self.own(room):
            await room.open()
            yield room

    @contextlib.asynccontextmanager
    async def own(self, room: Room) -> AsyncIterator[Room]:
        """Close a room at the end of the block, unless somebody has kept it there."""
        room.is_kept = False
        try:
            yield room
        finally:
            if not room.is_kept:
                await room.close()

    async def receive(self, request: Request, room: Room) -> Upload:
        """Write the files of a request to the folder of a room.

        Raises:
            Problem: see uploads.receive().
        """
        try:
            return await uploads.receive(request, room, self._engine.settings.max_video_frames)
        except ClientDisconnect:
            raise cancelled() from None

    async def keep(self, upload: Upload, room: Room, pair: Pair, every: int = 1) -> StoredVideo:
        """Check an upload, and keep it with its room. Every how many frames one is tracked: ``every``.

        Raises:
            Problem: it is not a video, or too large.
            VideoError: it is damaged.
        """
        file = await room.run(lambda: examine(upload, self._engine.settings), self._checks)
        size = await room.run(lambda: file.nbytes)
        frames = StoredFrames(file, self.decoders)
        tracking = Tracking(frames, self.clients.of(pair), self._budgets, self._engine.metrics, every=every)
        room.disk.hold(size)  # an upload in a form holds as much besides, until its request ends
        room.is_kept = True
        video = StoredVideo(uuid.uuid4().hex, upload.name, room, file, pair.name, tracking)
        self._videos[video.video_id] = video
        return video

    def get(self, video_id: str) -> StoredVideo:
        """Return a video, which counts as a use.

        Raises:
            Problem: 404, it is not kept, or not any more.
        """
        video = self._videos.get(video_id)
        if video is None:
            raise Problem(404, "there is no such video (any more): upload it again", code="unknown_video")
        video.used = time.monotonic()
        return video

    def has(self, video_id: str) -> bool:
        """Whether a video is kept. This is no use of it."""
        return video_id in self._videos

    async def remove(self, video_id: str) -> bool:
        """Forget a video: its session, its masks, and its files. Return False if there is none."""
        video = self._videos.pop(video_id, None)
        if video is None:
            return False
        await background.finish(self._remove(video))
        return True

    def describe(self, video: StoredVideo) -> VideoInfo:
        """Return the description of a video for callers."""
        width, height = video.file.size
        tracking = video.tracking
        return VideoInfo(
            id=video.video_id,
            name=video.name,
            width=width,
            height=height,
            num_frames=video.file.num_frames,
            fps=round(float(video.file.rate), 3),
            duration=round(float(video.file.num_frames / video.file.rate), 3),
            bytes=video.room.disk.amount,
            model=video.model,
            every=tracking.every,
            objects=[
                ObjectInfo(object_id=object_id, prompted_frames=sorted(frames))
                for object_id, frames in sorted(tracking.prompted.items())
            ],
            tracked=tracking.records.ranges(),
            is_tracking=tracking.is_tracking,
            expires_in=self._engine.settings.video_idle_seconds,
        )

    async def _remove(self, video: StoredVideo) -> None:
        try:
            await video.tracking.close()
            await asyncio.to_thread(self.decoders.forget, video.file)
        finally:
            await video.room.close()

    async def _sweep(self) -> None:
        idle = self._engine.settings.video_idle_seconds
        while True:
            await asyncio.sleep(min(MOST_SECONDS, idle / 4))
            self._remove_unused(idle)

    def _remove_unused(self, idle: float) -> None:
        now = time.monotonic()
        for video in list(self._videos.values()):
            if video.tracking.is_tracking:
                video.used = now
            elif now - video.used > idle:
                background.start(self.remove(video.video_id))  # one that fails or takes long holds up no other
                LOGGER.info("video removed", extra={"fields": {"video": video.video_id, "idle_seconds": idle}})

    def _make_folder(self) -> Path:
        with self._folder_lock:
            if self._folder is None:
                self._folder = Folder()
        return self._folder.new()
