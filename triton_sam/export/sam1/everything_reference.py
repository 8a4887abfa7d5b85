"""The official mask generator of SAM1 as a reference for automatic masks."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..._common.quiet import quiet
from ..reference import official_records


class Sam1EverythingReference:
    """Reference that runs segment_anything.SamAutomaticMaskGenerator.

    Args:
        model: a segment_anything.modeling.Sam.
    """

    package: ClassVar[str] = "segment_anything"
    """The package whose SamAutomaticMaskGenerator is run."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, image: npt.NDArray[np.uint8], **parameters: Any) -> list[dict[str, Any]]:
        """See EverythingReference.generate."""
        generator = import_module(self.package).SamAutomaticMaskGenerator
        with quiet():
            return official_records(generator(self._model, **parameters), image)
