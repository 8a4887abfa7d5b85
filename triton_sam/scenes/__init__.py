"""Generated images with exact masks of their objects. This package needs the `evaluate` extra."""

from .._common.extras import missing

try:
    import cv2  # noqa: F401 - checked once here for all modules of this package
except ImportError as error:
    raise missing("generated scenes need", "evaluate", error) from error
