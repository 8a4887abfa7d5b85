"""The clients of images.

`SAM2TritonClient` waits for each answer, `AsyncSAM2TritonClient` lets other tasks run meanwhile, and
`SpeculativeSAM2Client` predicts while the mouse moves.
"""

from .aio import AsyncSAM2TritonClient, AsyncSamTritonClient
from .paths import queue_multiple_requests, wait_for_latest_result
from .segmenter import Segmenter
from .server_models import ServerModels
from .speculative import SpeculativeSAM2Client
from .sync import SAM2TritonClient, SamTritonClient

__all__ = [
    "AsyncSAM2TritonClient",
    "AsyncSamTritonClient",
    "SAM2TritonClient",
    "SamTritonClient",
    "Segmenter",
    "ServerModels",
    "SpeculativeSAM2Client",
    "queue_multiple_requests",
    "wait_for_latest_result",
]
