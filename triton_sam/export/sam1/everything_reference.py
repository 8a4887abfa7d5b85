"""The official mask generator of SAM1 as a reference for automatic masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.quiet import quiet
from ..reference import official_records


class Sam1EverythingReference:
    """Reference that runs segment_anything.SamAutomaticMaskGenerator.

    Args:
        model: a segment_anything.modeling.Sam.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, image: npt.NDArray[np.uint8], **parameters: Any) -> list[dict[str, Any]]:
        """See EverythingReference.generate."""
        from segment_anything import SamAutomaticMaskGenerator

        with quiet():
            return official_records(SamAutomaticMaskGenerator(self._model, **parameters), image)
