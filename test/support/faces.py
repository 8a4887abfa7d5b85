"""The image clients with a common interface, so that all run the same tests."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from support.in_process import InProcess

from triton_sam import AsyncSAM2TritonClient, SAM2TritonClient, SpeculativeSAM2Client

CLIENTS = {
    "sync": SAM2TritonClient,
    "async": AsyncSAM2TritonClient,
    "speculative": SpeculativeSAM2Client,
    "blocking": SpeculativeSAM2Client,
}
"""The speculative client has calls for an event loop, and two for callers without a loop."""
_BLOCKING = {"set_image": "set_image", "predict": "predict_sync"}


class Face:
    """A client whose calls all block and are named as in the sync client."""

    def __init__(self, kind: str, server: InProcess, **options: Any) -> None:
        self._kind = kind
        self.client: Any = CLIENTS[kind](server.url, **{"retries": 0, **options})

    def __enter__(self) -> Face:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def __getattr__(self, name: str) -> Any:
        is_speculative = self._kind in ("speculative", "blocking")
        if self._kind == "blocking" and name in _BLOCKING:
            return getattr(self.client, _BLOCKING[name])
        call = getattr(self.client, f"{name}_async" if is_speculative else name)
        return lambda *args, **options: asyncio.run(_wait(call, args, options))


async def _wait(call: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    answer = call(*args, **options)
    answer = await answer if inspect.isawaitable(answer) else answer
    is_queued = isinstance(answer, tuple) and asyncio.isfuture(answer[1])
    return await answer[1] if is_queued else answer
