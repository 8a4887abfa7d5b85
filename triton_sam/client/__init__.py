"""The image clients: `SAM2TritonClient` blocks, `AsyncSAM2TritonClient` is its asyncio twin, and
`SpeculativeSAM2Client` predicts while the mouse moves.

A click on an image that the server keeps takes these steps:

1. `SAM2TritonClient.predict` (sync.py): `make_click` (clicks.py) checks the prompt and makes a `SessionClick`.
2. `SessionClick.ask` is a flow: a generator that yields a `Request` with the id of the image and the prompt.
   More than 64 objects are sent in several requests.
3. `carry` (flows.py) passes each request to the transport, and the answer or the error back to the flow.
4. `Transport.infer` (transport/triton.py) sets the deadline, retries the call, and converts errors.
5. `KServeClient` or `GrpcClient` (transport/) sends the tensors and reads the answer.
6. If the server has lost the image, `ask_about` (session_image.py) sends the request again with the image file.
7. `SessionClick.read` checks the answer. `ModelPair.low_res` (wire/pair.py) clamps the logits for predict();
   segment() resizes them to the image by `ModelPair.segments`.

A client that keeps the embeddings makes an `EmbeddingsClick`, which sends them to the decoder; the rest is the same.
The asynchronous clients make these calls in threads (aio.py). The speculative one sends only the newest position of a
mouse: `Lanes` (lanes.py) decides which, and `Dispatcher` (dispatcher.py) sends it.

A frame of a video takes these steps in a pass:

1. `Video.propagate` (video/video.py) checks its arguments. `look_ahead` (video/frames.py) yields the frames. Its thread
   reads the next ones and sends them by `SessionFlows.upload`: the server encodes frame t + 1 while it tracks frame t.
2. `SessionFlows.run` (video/flows.py) is the flow of the operation `propagate`. `VideoModel.request`
   (video/flows.py) builds its request, and `carry` and the transport send it as they send a click.
3. The video model (sessions/video/) runs the operations of a session in sequence: `Tracker.track` takes the
   embeddings from the cache, and calls memory attention, decoder and memory encoder for all objects.
4. The answer has a row for each object. `VideoModel.read_segments` makes the masks.
5. Every 16th answer has a snapshot. If the server has lost the session, the flow starts a new one from the snapshot,
   resends the operations since then with their frames, and then repeats the current operation.
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
