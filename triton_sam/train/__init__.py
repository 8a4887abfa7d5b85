"""Train the small default model on generated scenes (needs the `train` extra).

The scenes alone need the `evaluate` extra: `triton-sam evaluate` draws some.
"""

from .._extras import missing

try:
    import cv2  # noqa: F401 - looked for here, once for all modules that draw
except ImportError as error:
    raise missing("generated scenes need", "evaluate", error) from error
