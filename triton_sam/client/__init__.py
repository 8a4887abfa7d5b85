"""The image clients: `SAM2TritonClient` blocks, `AsyncSAM2TritonClient` is its asyncio twin, and
`SpeculativeSAM2Client` predicts while the mouse moves.

The asynchronous clients make the calls of the synchronous one in threads (aio.py). The speculative one sends only the
newest position of a mouse: `Lanes` (lanes.py) decides which, and `Dispatcher` (dispatcher.py) sends it. CLAUDE.md in
the repository lists the steps of a click and of a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aio import AsyncSAM2TritonClient, AsyncSamTritonClient
    from .paths import queue_multiple_requests, wait_for_latest_result
    from .speculative import SpeculativeSAM2Client
    from .sync import SAM2TritonClient, SamTritonClient

__all__ = [
    "AsyncSAM2TritonClient",
    "AsyncSamTritonClient",
    "SAM2TritonClient",
    "SamTritonClient",
    "SpeculativeSAM2Client",
    "queue_multiple_requests",
    "wait_for_latest_result",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import triton_sam

    return getattr(triton_sam, name)
