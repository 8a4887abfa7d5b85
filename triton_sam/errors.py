"""Every error that triton_sam raises on purpose.

    SamError
    ├── ConfigurationError          an option or a URL that cannot work (also a ValueError)
    ├── InputError                  what the caller handed in cannot be used (also a ValueError)
    │   ├── ImageError              not an image, empty, damaged, too large
    │   └── PromptError             points, labels, boxes or mask of the wrong shape, type or range
    ├── NoImageError                predict() before set_image()
    ├── MissingDependencyError      an optional package is not installed (also an ImportError)
    ├── ServerError                 anything between the client and Triton
    │   ├── ServerUnreachableError  nothing answers at the URL, or the connection broke
    │   ├── ServerTimeoutError      no answer in time
    │   ├── ModelNotReadyError      the server answers, the model is not loaded there
    │   ├── ServerBusyError         too many requests wait there already: try again in a moment
    │   └── InferenceError          the server took the request and refused or failed it
    │       └── UnknownImageError   the server does not hold the image of that id (any more): send it again
    ├── CheckpointError             a checkpoint file that is missing, damaged or of another model
    │   └── DownloadError           the download failed
    │       └── ChecksumError       the file arrived, but with the wrong SHA-256 or size
    ├── ExportError                 a checkpoint could not be turned into ONNX files
    ├── RepositoryError             a model repository or a config.pbtxt that Triton would refuse
    └── LocalServerError            the local Triton could not be started or died
        └── PortInUseError          another process listens on the port already

The message of each says what is wrong and, where there is one, the command that fixes it.
"""

from __future__ import annotations


class SamError(Exception):
    """Root of every error of this package. Its text is one line meant for a person."""


class ConfigurationError(SamError, ValueError):
    """An option or a URL that cannot work."""


class InputError(SamError, ValueError):
    """What the caller handed in cannot be used."""


class ImageError(InputError):
    """Not an image, empty, damaged or too large."""


class PromptError(InputError):
    """Points, labels, boxes or mask of the wrong shape, type or range."""


class NoImageError(SamError):
    """A prediction was asked for before an image was set."""


class MissingDependencyError(SamError, ImportError):
    """An optional package is needed and not installed."""


class ServerError(SamError):
    """Anything that goes wrong between the client and Triton."""


class ServerUnreachableError(ServerError):
    """Nothing answers at the URL, or the connection broke before the answer."""


class ServerTimeoutError(ServerError):
    """The server did not answer in time."""


class ModelNotReadyError(ServerError):
    """The server answers, but has no such model ready."""


class ServerBusyError(ServerError):
    """Too many requests wait at the server already. Nothing was computed; try again in a moment."""


class InferenceError(ServerError):
    """The server took the request and refused it or failed on it."""


class UnknownImageError(InferenceError):
    """The server does not hold the image of that id, or not any more. Clients send the image again by themselves."""


class CheckpointError(SamError):
    """A checkpoint file that is missing, damaged or of another model."""


class DownloadError(CheckpointError):
    """A download that failed for good."""


class ChecksumError(DownloadError):
    """A file that arrived with the wrong SHA-256 or size."""


class ExportError(SamError):
    """A checkpoint could not be turned into ONNX files."""


class RepositoryError(SamError):
    """A model repository or a config.pbtxt that Triton would refuse."""


class LocalServerError(SamError):
    """The local Triton could not be started, or died."""


class PortInUseError(LocalServerError):
    """Another process listens on the port already."""
