"""Generated images whose objects are known. Needs the `evaluate` extra."""

from .._common.extras import missing

try:
    import cv2  # noqa: F401 - looked for here, once for all modules that draw
except ImportError as error:
    raise missing("generated scenes need", "evaluate", error) from error
