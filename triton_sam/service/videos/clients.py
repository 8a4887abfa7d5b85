"""The clients of the video models, one for each model pair, and the parts of a client that the service uses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from ...inputs.video.base import FrameSource
from ...masks.segment import VideoSegment
from ..engine import Pair
from ..settings import Settings

Masks = Mapping[int, VideoSegment]
"""The mask of each object id in one frame."""


class OpenVideo(Protocol):
    """A session of a video at Triton, as `AsyncSAM2VideoClient.open` returns it."""

    async def add(
        self,
        frame: int,
        object_id: int,
        points: Sequence[Sequence[float]] | None = None,
        labels: Sequence[int] | None = None,
        box: Sequence[float] | None = None,
        mask: Any = None,
        clear_old_points: bool = True,
    ) -> VideoSegment:
        """Prompt an object in a frame."""

    def propagate(
        self, start: int | None = None, count: int | None = None, reverse: bool = False
    ) -> AsyncGenerator[tuple[int, Masks], None]:
        """Track all objects from frame to frame."""

    async def remove(self, object_id: int) -> object:
        """Forget an object."""

    async def clear(self, frame: int, object_id: int) -> object:
        """Forget the prompts of an object in a frame."""

    async def reset(self) -> object:
        """Forget all objects."""

    async def aclose(self) -> object:
        """End the session."""


class VideoClient(Protocol):
    """A client of one video model."""

    async def open(self, source: FrameSource, *, every: int = 1) -> OpenVideo:
        """Begin a session that tracks every n-th frame."""

    async def aclose(self) -> None:
        """Close all connections."""


def connect(settings: Settings, pair: Pair) -> VideoClient:
    """Return the client of a pair's video model. It connects when it is used."""
    from ...client.video import AsyncSAM2VideoClient

    client: VideoClient = AsyncSAM2VideoClient(
        settings.url,
        None if pair.name == pair.family.name else pair.name,
        model_type=pair.family.name,
        timeout=settings.timeout,
        headers=settings.triton_headers,
        ca_certs=settings.ca_certs,
    )
    return client


class VideoClients:
    """All clients of one service."""

    def __init__(self, settings: Settings) -> None:
        self.connect: Callable[[Settings, Pair], VideoClient] = connect
        """Makes a client; tests put their own here."""
        self._settings = settings
        self._clients: dict[str, VideoClient] = {}

    def of(self, pair: Pair) -> VideoClient:
        """Return the client of a pair."""
        if pair.name not in self._clients:
            self._clients[pair.name] = self.connect(self._settings, pair)
        return self._clients[pair.name]

    async def close(self) -> None:
        """Close all clients."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
