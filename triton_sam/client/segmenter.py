"""What verify and evaluate need of a client."""

from __future__ import annotations

from typing import Any, Protocol

from ..inputs.images import ImageSource
from ..masks.segment import Segment


class Segmenter(Protocol):
    """What is measured or compared: SAM2TritonClient, or anything that acts like it."""

    def set_image(self, image: ImageSource) -> None:
        """Make an image the current one."""

    def segment(
        self,
        point_coords: Any = None,
        point_labels: Any = None,
        box: Any = None,
        mask_input: Any = None,
        multimask_output: bool = False,
    ) -> list[Segment]:
        """Return full-size masks of the current image with their low-resolution logits, object by object."""
