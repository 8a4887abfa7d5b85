"""The clients of the video models, one for each model pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...masks.segment import VideoSegment
from ..engine import Pair
from ..settings import ServiceSettings

if TYPE_CHECKING:
    from ...client.video import AsyncSAM2VideoClient

Masks = Mapping[int, VideoSegment]
"""The mask of each object id in one frame."""


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


class VideoClients:
    def __init__(self, settings: ServiceSettings) -> None:
        self.connect: Callable[[ServiceSettings, Pair], AsyncSAM2VideoClient] = connect
        """Creates a client; tests replace it."""
        self._settings = settings
        self._clients: dict[str, AsyncSAM2VideoClient] = {}

    def of(self, pair: Pair) -> AsyncSAM2VideoClient:
        if pair.name not in self._clients:
            self._clients[pair.name] = self.connect(self._settings, pair)
        return self._clients[pair.name]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
