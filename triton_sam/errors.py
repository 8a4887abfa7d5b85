"""The errors that triton_sam raises on purpose.

    SamError
    ├── ConfigurationError          an option or a URL is invalid (also a ValueError)
    ├── InputError                  an input of the caller is invalid (also a ValueError)
    │   ├── ImageError              an image is empty, damaged, too large or not an image
    │   ├── PromptError             points, labels, boxes or a mask have a wrong shape, type or range
    │   └── VideoError              a video is empty, damaged or not a video, or its frames change their size
    ├── NoImageError                a prediction needs an image, and none was set
    ├── MissingDependencyError      an optional package is not installed (also an ImportError)
    ├── ServerError                 a call to Triton failed
    │   ├── ServerUnreachableError  nothing answers at the URL, or the connection broke
    │   ├── ServerTimeoutError      the server did not answer in time
    │   ├── ModelNotReadyError      the server answers, but the model is not loaded
    │   ├── ServerBusyError         too many requests wait at the server: try again in a moment
    │   └── InferenceError          the server received the request, but refused it or failed
    │       ├── UnknownImageError   the server does not hold the image of an id (any more): send it again
    │       └── UnknownSessionError the server does not hold the video session of an id (any more)
    ├── CheckpointError             a checkpoint file is missing, damaged or of another model
    │   └── DownloadError           a download failed
    │       └── ChecksumError       a downloaded file has the wrong SHA-256 or size
    ├── ExportError                 a checkpoint could not be exported to ONNX
    ├── RepositoryError             a model repository or a config.pbtxt is invalid
    └── LocalServerError            the local Triton could not be started, or ended unexpectedly
        └── PortInUseError          another process listens on a port

Each message describes the problem and, where there is one, the command that fixes it.
"""

from __future__ import annotations


class SamError(Exception):
    """The base class of all errors of this package. The text of an error is one line for people."""


class ConfigurationError(SamError, ValueError):
    """An option or a URL is invalid."""


class InputError(SamError, ValueError):
    """An input of the caller is invalid."""


class ImageError(InputError):
    """An image is empty, damaged, too large, or not an image at all."""


class PromptError(InputError):
    """Points, labels, boxes or a mask have a wrong shape, type or range."""


class VideoError(InputError):
    """A video is empty, damaged or not a video at all, or its frames change their size."""


class NoImageError(SamError):
    """A prediction needs an image, but none was set: call set_image() first."""


class MissingDependencyError(SamError, ImportError):
    """An optional package is needed, but not installed."""


class ServerError(SamError):
    """A call to Triton failed."""


class ServerUnreachableError(ServerError):
    """Nothing answers at the URL, or the connection broke before the answer."""


class ServerTimeoutError(ServerError):
    """The server did not answer in time."""


class ModelNotReadyError(ServerError):
    """The server answers, but the model is not ready there."""


class ServerBusyError(ServerError):
    """Too many requests wait at the server. It computed nothing: try again in a moment."""


class InferenceError(ServerError):
    """The server received the request, but refused it or failed to compute it."""


class UnknownImageError(InferenceError):
    """The server does not hold the image of an id, or not any more. Clients send the image again automatically.

    Attributes:
        frame: index of the frame, if the image is a frame of a video and the server names it; else None.
    """

    def __init__(self, *args: object, frame: int | None = None) -> None:
        super().__init__(*args)
        self.frame = frame


class UnknownSessionError(InferenceError):
    """The server does not hold the video session of an id, or not any more. Clients restore it automatically."""


class CheckpointError(SamError):
    """A checkpoint file is missing, damaged or of another model."""


class DownloadError(CheckpointError):
    """A download failed, even after retries."""


class ChecksumError(DownloadError):
    """A downloaded file has the wrong SHA-256 or size."""


class ExportError(SamError):
    """A checkpoint could not be exported to ONNX files."""


class RepositoryError(SamError):
    """A model repository or a config.pbtxt is invalid, so that Triton would refuse it."""


class LocalServerError(SamError):
    """The local Triton could not be started, or ended unexpectedly."""


class PortInUseError(LocalServerError):
    """Another process listens on the port."""
