"""Segment Anything on NVIDIA Triton: encode an image once, then turn clicks and boxes into masks.

>>> from triton_sam import SAM2TritonClient
>>> client = SAM2TritonClient("localhost:8000")
>>> client.set_image("image.jpg")
>>> masks, iou = client.predict(point_coords=[[512, 512]], point_labels=[1])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__
from .errors import (
    CheckpointError,
    ChecksumError,
    ConfigurationError,
    DownloadError,
    ExportError,
    ImageError,
    InferenceError,
    InputError,
    LocalServerError,
    MissingDependencyError,
    ModelNotReadyError,
    NoImageError,
    PortInUseError,
    PromptError,
    RepositoryError,
    SamError,
    ServerBusyError,
    ServerError,
    ServerTimeoutError,
    ServerUnreachableError,
    UnknownSessionError,
    VideoError,
)

if TYPE_CHECKING:
    from .client.aio import AsyncSAM2TritonClient, AsyncSamTritonClient
    from .client.mask_generator import SAM2AutomaticMaskGenerator, SamAutomaticMaskGenerator
    from .client.paths import queue_multiple_requests, wait_for_latest_result
    from .client.speculative import SpeculativeSAM2Client
    from .client.sync import SAM2TritonClient, SamTritonClient
    from .client.video import AsyncSAM2VideoClient, SAM2VideoClient
    from .client.video.word_tracking import track_words
    from .client.video.words import find_in_video
    from .concepts.video_rules import VideoRules
    from .download.http import fetch_image
    from .inputs.embeddings import ImageEmbeddings
    from .masks.cleanup import Cleanup
    from .masks.segment import Segment, VideoSegment

__all__ = [
    "AsyncSAM2TritonClient",
    "AsyncSAM2VideoClient",
    "AsyncSamTritonClient",
    "CheckpointError",
    "ChecksumError",
    "Cleanup",
    "ConfigurationError",
    "DownloadError",
    "ExportError",
    "ImageEmbeddings",
    "ImageError",
    "InferenceError",
    "InputError",
    "LocalServerError",
    "MissingDependencyError",
    "ModelNotReadyError",
    "NoImageError",
    "PortInUseError",
    "PromptError",
    "RepositoryError",
    "SAM2AutomaticMaskGenerator",
    "SAM2TritonClient",
    "SAM2VideoClient",
    "SamAutomaticMaskGenerator",
    "SamError",
    "SamTritonClient",
    "Segment",
    "ServerBusyError",
    "ServerError",
    "ServerTimeoutError",
    "ServerUnreachableError",
    "SpeculativeSAM2Client",
    "UnknownSessionError",
    "VideoError",
    "VideoRules",
    "VideoSegment",
    "__version__",
    "fetch_image",
    "find_in_video",
    "queue_multiple_requests",
    "track_words",
    "wait_for_latest_result",
]

_MODULES = {
    "AsyncSAM2TritonClient": "client.aio",
    "AsyncSAM2VideoClient": "client.video",
    "AsyncSamTritonClient": "client.aio",
    "Cleanup": "masks.cleanup",
    "ImageEmbeddings": "inputs.embeddings",
    "SAM2AutomaticMaskGenerator": "client.mask_generator",
    "SAM2TritonClient": "client.sync",
    "SAM2VideoClient": "client.video",
    "SamAutomaticMaskGenerator": "client.mask_generator",
    "SamTritonClient": "client.sync",
    "Segment": "masks.segment",
    "SpeculativeSAM2Client": "client.speculative",
    "VideoRules": "concepts.video_rules",
    "VideoSegment": "masks.segment",
    "fetch_image": "download.http",
    "find_in_video": "client.video.words",
    "queue_multiple_requests": "client.paths",
    "track_words": "client.video.word_tracking",
    "wait_for_latest_result": "client.paths",
}
"""Public names by module. A module is imported on first use, so that numpy is imported only for a client."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    if name in ("client", "inputs", "masks"):  # `import triton_sam` is enough for `triton_sam.client`
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
