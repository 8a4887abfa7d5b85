"""The official mask generator of SAM2 as a reference for automatic masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.quiet import quiet
from ..reference import official_records


class Sam2EverythingReference:
    """Reference that runs sam2.automatic_mask_generator.SAM2AutomaticMaskGenerator.

    Args:
        model: a sam2.modeling.sam2_base.SAM2Base.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, image: npt.NDArray[np.uint8], **parameters: Any) -> list[dict[str, Any]]:
        """See EverythingReference.generate."""
        from sam2.automatic_mask_generator import SAM2AutomaticMaskGenerator

        with quiet():
            generator = SAM2AutomaticMaskGenerator(self._model, **parameters)
            # By default, its predictor assumes the feature sizes of an image size of 1024 pixels.
            sizes = [(self._model.image_size // stride,) * 2 for stride in (4, 8, 16)]
            generator.predictor._bb_feat_sizes = sizes  # noqa: SLF001
            return official_records(generator, image)
