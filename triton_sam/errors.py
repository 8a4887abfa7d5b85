"""The errors that triton_sam raises on purpose.

    SamError
    ├── ConfigurationError          an option or a URL is invalid (also a ValueError)
    ├── InputError                  an input of the caller is invalid (also a ValueError)
    │   ├── ImageError              an image is empty, damaged, too large or of an unsupported format
    │   ├── PromptError             points, labels, boxes or a mask have a wrong shape, type or range
    │   └── VideoError              a video is empty or damaged, its format is unsupported, or its frame size changes
    ├── NoImageError                a prediction needs an image, and none was set
    ├── MissingDependencyError      an optional package is not installed (also an ImportError)
    ├── ServerError                 a call to Triton failed
    │   ├── ServerUnreachableError  nothing answers at the URL, or the connection broke
    │   ├── ServerTimeoutError      the server did not answer in time
    │   ├── ModelNotReadyError      the server answers, but the model is not loaded
    │   ├── ServerBusyError         the server's queue is full: try again in a moment
    │   └── InferenceError          the server received the request, but refused it or failed
    │       ├── UnknownImageError   an unknown or expired image id: send the image again
    │       └── UnknownSessionError an unknown or expired video session
    ├── CheckpointError             a checkpoint file is missing, damaged or of another model
    │   └── DownloadError           a download failed
    │       └── ChecksumError       a downloaded file has the wrong SHA-256 or size
    ├── ExportError                 a checkpoint could not be exported to ONNX
    ├── RepositoryError             a model repository or a config.pbtxt is invalid
    └── LocalServerError            the local Triton could not be started, or ended unexpectedly
        └── PortInUseError          another process listens on a port

Each message describes the problem and, if one exists, the command that fixes it.
"""

from __future__ import annotations


class SamError(Exception):
    """The base class of all errors of this package. The message is one human-readable line."""


class ConfigurationError(SamError, ValueError):
    """An option or a URL is invalid."""


class InputError(SamError, ValueError):
    """An input of the caller is invalid."""


class ImageError(InputError):
    """An image is empty, damaged, too large or of an unsupported format."""


class PromptError(InputError):
    """Points, labels, boxes or a mask have a wrong shape, type or range."""


class VideoError(InputError):
    """A video is empty or damaged, its format is unsupported, or its frame size changes."""


class NoImageError(SamError):
    """A prediction needs an image, but none was set: call set_image() first."""


class MissingDependencyError(SamError, ImportError):
    """A required optional package is not installed."""


class ServerError(SamError):
    """A call to Triton failed."""


class ServerUnreachableError(ServerError):
    """Nothing answers at the URL, or the connection broke before the answer."""


class ServerTimeoutError(ServerError):
    """The server did not answer in time."""


class ModelNotReadyError(ServerError):
    """The server answers, but the model is not loaded."""


class ServerBusyError(ServerError):
    """The server's queue is full. The request was not computed: try again in a moment."""


class InferenceError(ServerError):
    """The server received the request, but refused it or failed to compute it."""


class UnknownImageError(InferenceError):
    """The server has no image with this id, or evicted it. Clients send the image again automatically.

    Attributes:
        frame: index of the frame if the image is a video frame and the server reports the index; else None.
    """

    def __init__(self, *args: object, frame: int | None = None) -> None:
        super().__init__(*args)
        self.frame = frame


class UnknownSessionError(InferenceError):
    """The server has no video session with this id, or closed it. Clients restore it automatically."""


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
    """Another process listens on the port.

    Attributes:
        port: the number of the port; None if it is unknown.
    """

    def __init__(self, *args: object, port: int | None = None) -> None:
        super().__init__(*args)
        self.port = port
