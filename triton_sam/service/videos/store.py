"""The videos of the service: uploaded ones with their files, and those whose frames arrive one by one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from ...inputs.video.base import FrameSource
from ...inputs.video.streams import GrowingFrames, SharedPath
from ...tracks.records import MaskRecord
from .. import background
from ..budgets import stopping
from ..engine import Engine, Pair
from ..problems import Problem, cancelled
from ..settings import ServiceSettings
from ..store import StoredImage
from . import uploads
from .files import Decoders, StoredFrames, VideoFile, examine
from .schemas import ObjectInfo, VideoInfo, video_prompt
from .sessions import LiveVideo, Session, Sessions, unknown
from .tracking import Tracking
from .uploads import Folder, Room, Upload

if TYPE_CHECKING:
    from ...client.video import AsyncSAM2VideoClient


CHECKS = 2
"""Uploads that are checked concurrently."""


def connect(settings: ServiceSettings, pair: Pair) -> AsyncSAM2VideoClient:
    """Return the client of a pair's video model. It connects on first use."""
    from ...client.video import AsyncSAM2VideoClient

    return AsyncSAM2VideoClient(
        settings.url,
        None if pair.name == pair.family.name else pair.name,
        model_type=pair.family.name,
        timeout=settings.timeout,
        headers=settings.triton_headers,
        ca_certs=settings.ca_certs,
    )


@dataclass(eq=False)
class StoredVideo(Session):
    """An uploaded video.

    Args:
        room: its place, its bytes, and the folder of its files.
        downloads: the number of files with its masks that are being written.
    """

    video_id: str
    name: str
    room: Room
    file: VideoFile
    model: str
    tracking: Tracking
    decoders: Decoders
    downloads: int = 0

    @property
    def stem(self) -> str:
        """The name without folders and extension, for the names of downloads."""
        return PurePosixPath(self.name.replace("\\", "/")).stem or "video"

    @property
    def is_busy(self) -> bool:
        return self.tracking.is_tracking or self.downloads > 0

    def stop_soon(self) -> None:
        self.tracking.stop_soon()

    async def close(self) -> None:
        try:
            await self.tracking.close()
        finally:
            try:
                await asyncio.to_thread(self.decoders.forget, self.file)
            finally:
                await self.room.close()


class Videos:
    """All videos of a service, used on one event loop from ``start()`` to ``stop()``."""

    def __init__(self, engine: Engine) -> None:
        self._clients: dict[str, AsyncSAM2VideoClient] = {}
        self.decoders = Decoders()
        self.sessions = Sessions(engine.settings.video_idle_seconds)
        self._engine = engine
        self._budgets = engine.budgets
        self._folder: Folder | None = None
        self._folder_lock = threading.Lock()
        self._checks = asyncio.Semaphore(CHECKS)
        self._is_stopping = False

    async def start(self) -> None:
        self.sessions.start()

    async def stop(self) -> None:
        self.refuse()
        await self.sessions.stop()
        for client in self._clients.values():
            await client.aclose()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)

    def refuse(self) -> None:
        """Reject new videos, and stop tracking after the frame that Triton is computing."""
        self._is_stopping = True
        self.sessions.stop_soon()

    async def pair(self, name: str | None) -> Pair:
        """Return the pair of a name, if it has a video model. None: the default one, or else any."""
        pair = await self._engine.pair(name)
        if not pair.tracks_videos and not name:
            pair = next((other for other in self._engine.state.pairs.values() if other.tracks_videos), pair)
        if not pair.tracks_videos:
            raise Problem(
                404,
                f"Triton serves no video model of {pair.name!r}: `triton-sam setup sam2 --video` sets one up",
                code="no_video_model",
            )
        return pair

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncIterator[Room]:
        """Yield a room for a new video. It is closed at the end of the block, unless keep() has taken it."""
        if self._is_stopping:
            raise stopping()
        with self._budgets.videos.take() as place, self._budgets.video_bytes.take(0) as disk:
            room = Room(place.pass_on(), disk.pass_on(), self._make_folder)
        async with self.own(room):
            await room.open()
            yield room

    @contextlib.asynccontextmanager
    async def own(self, room: Room) -> AsyncIterator[Room]:
        """Close a room at the end of the block, unless it was kept there."""
        room.is_kept = False
        try:
            yield room
        finally:
            if not room.is_kept:
                await room.close()

    async def receive(self, request: Request, room: Room) -> Upload:
        try:
            return await uploads.receive(request, room, self._engine.settings.max_video_frames)
        except ClientDisconnect:
            raise cancelled() from None

    async def keep(self, upload: Upload, room: Room, pair: Pair, every: int = 1) -> StoredVideo:
        """Check an upload, and store it with its room. One in ``every`` frames is tracked."""
        file = await room.run(lambda: examine(upload, self._engine.settings), self._checks)
        size = await room.run(lambda: file.nbytes)
        tracking = self._tracking(StoredFrames(file, self.decoders), pair, every)
        room.disk.hold(size)  # an upload in a form holds the same amount until its request ends
        room.is_kept = True
        video = StoredVideo(uuid.uuid4().hex, upload.name, room, file, pair.name, tracking, self.decoders)
        self.sessions.add(video.video_id, video)
        return video

    def get(self, video_id: str) -> StoredVideo:
        """Return a video, and count this as use; raise a 404 problem if there is none."""
        video = self.sessions.find(video_id, StoredVideo)
        if video is None:
            raise Problem(404, "the video is unknown or expired: upload it again", code="unknown_video")
        return video

    async def begin(
        self, image: StoredImage, pair: Pair, drawn: Sequence[dict[str, Any]]
    ) -> tuple[str, list[MaskRecord]]:
        """Start a session whose frames arrive one by one. Its name cannot be guessed.

        Args:
            drawn: members of a VideoPrompt for each object in the image; the objects are numbered 1, 2, ...

        Returns:
            The name of the session, and the masks of the objects.
        """
        pair = await self.pair(pair.name)
        path = SharedPath(image.image_id)
        with self._budgets.videos.take() as place, self._budgets.video_masks.take(len(image.content)) as memory:
            frames = GrowingFrames(image.content, image.size)
            tracking = self._tracking(frames, pair)
            most = self._engine.settings.max_video_frames
            video = LiveVideo(frames, path, tracking, place.pass_on(), memory.pass_on(), most)
        name = uuid.uuid4().hex
        self.sessions.add(name, video)
        try:
            masks = []
            for number, members in enumerate(drawn, 1):
                masks.append(await tracking.add(video_prompt(frame=0, object_id=number, **members)))
                path.begin(number)
            return name, masks
        except BaseException:
            await background.finish(self.sessions.remove(name))  # it waits for the call, which continues
            raise

    async def track(self, image: StoredImage, wanted: Mapping[str, Sequence[int]]) -> dict[str, list[MaskRecord]]:
        """Return the masks of objects in a frame, for several live sessions, by session name."""
        videos = {name: self._live(name) for name in wanted}
        return {name: await video.track(image, wanted[name]) for name, video in videos.items()}

    def describe(self, video: StoredVideo) -> VideoInfo:
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

    def _live(self, name: str) -> LiveVideo:
        video = self.sessions.find(name, LiveVideo)
        if video is None:
            raise unknown()
        return video

    def _tracking(self, frames: FrameSource, pair: Pair, every: int = 1) -> Tracking:
        if pair.name not in self._clients:
            self._clients[pair.name] = connect(self._engine.settings, pair)
        return Tracking(frames, self._clients[pair.name], self._budgets, self._engine.metrics, every=every)

    def _make_folder(self) -> Path:
        with self._folder_lock:
            if self._folder is None:
                self._folder = Folder()
        return self._folder.new()
