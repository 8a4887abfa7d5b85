"""Train the small default model on generated scenes (needs the `train` extra).

The scenes alone need the `evaluate` extra: `triton-sam evaluate` draws some.
"""

from ..errors import MissingDependencyError

try:
    import cv2  # noqa: F401 - looked for here, once for all modules that draw
except ImportError as error:
    raise MissingDependencyError(
        'generated scenes need the evaluate or the train extra (cv2 is missing): pip install "triton-sam[evaluate]"'
    ) from error
