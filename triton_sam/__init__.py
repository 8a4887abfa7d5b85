"""Segment Anything on NVIDIA Triton: encode an image once, then turn clicks and boxes into masks.

>>> from triton_sam import SAM2TritonClient
>>> client = SAM2TritonClient("localhost:8000")
>>> client.set_image("image.jpg")
>>> masks, iou = client.predict(point_coords=[[512, 512]], point_labels=[1])
"""

from ._version import __version__
from .client.paths import queue_multiple_requests, wait_for_latest_result
from .client.speculative import SpeculativeSAM2Client
from .client.sync import SAM2TritonClient, SamTritonClient
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
)
from .inputs.embeddings import ImageEmbeddings
from .masks.segment import Segment

__all__ = [
    "CheckpointError",
    "ChecksumError",
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
    "SAM2TritonClient",
    "SamError",
    "SamTritonClient",
    "Segment",
    "ServerBusyError",
    "ServerError",
    "ServerTimeoutError",
    "ServerUnreachableError",
    "SpeculativeSAM2Client",
    "__version__",
    "queue_multiple_requests",
    "wait_for_latest_result",
]
