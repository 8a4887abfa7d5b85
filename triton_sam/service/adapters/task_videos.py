"""Keeps the videos of Label Studio's tasks among the uploaded videos, each for one task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ..engine import Pair
from ..image_files import check_image
from ..problems import Problem
from ..store import StoredImage
from ..videos.files import to_jpeg
from ..videos.store import StoredVideo
from ..videos.uploads import VIDEO, Upload
from .bridge import Bridge
from .task_images import TaskImages


class TaskVideos:
    """The videos of tasks.

    Args:
        bridge: keeps the videos.
        files: fetches files of tasks.
    """

    def __init__(self, bridge: Bridge, files: TaskImages) -> None:
        self._bridge = bridge
        self._files = files
        self._known: dict[tuple[str, str], str] = {}
        self._lock = asyncio.Lock()

    async def video(self, address: str, task: str) -> StoredVideo:
        """Return the video of a task, which is fetched if it is not kept.

        Raises:
            Problem: 404, there is no video model; 4xx, it is no video; 502, Label Studio does not answer with it; 503,
                there are too many videos.
            VideoError: the video is damaged.
        """
        async with self._lock:
            known = self._known.get((task, address))
            if known is not None:
                try:
                    return self._bridge.videos.get(known)
                except Problem:
                    del self._known[task, address]  # nobody has used it for a while
            video = await self._fetch(address, task, await self._bridge.videos.pair(None))
            self._known[task, address] = video.video_id
            return video

    async def release(self, task: str) -> None:
        """Forget the videos of a task."""
        for key in [key for key in self._known if key[0] == task]:
            await self._bridge.videos.remove(self._known.pop(key))

    async def frame(self, video: StoredVideo, index: int) -> StoredImage:
        """Return a frame as an image.

        Raises:
            VideoError: the frame is damaged.
        """

        async def fetch() -> list[int]:
            return [index]

        def make(frames: Iterator[int]) -> bytes:
            return to_jpeg(self._bridge.videos.decoders.frame(video.file, next(frames), "preview"), None)

        width, height = video.file.size
        content = await self._bridge.engine.budgets.workers.run(width * height, fetch, make)
        check_image(content, self._bridge.engine.settings.max_megapixels)
        return await self._bridge.engine.store(content)

    async def _fetch(self, address: str, task: str, pair: Pair) -> StoredVideo:
        content = await self._files.content(address, task, "video")
        folder, place = await self._bridge.videos.room()
        try:
            upload = Upload(folder, b"-", 1)
            upload.video = folder / VIDEO
            upload.name = address.rpartition("/")[2][:200] if not address.startswith("data:") else ""
            await asyncio.to_thread(upload.video.write_bytes, content)
        except BaseException:
            await self._bridge.videos.drop(folder, place)
            raise
        return await self._bridge.videos.keep(upload, folder, place, pair)
