"""The methods of a client that `verify` and `evaluate` use."""

from __future__ import annotations

from typing import Protocol

from ..inputs.images import ImageSource
from ..inputs.prompts import PromptArray
from ..masks.segment import Segment


class Segmenter(Protocol):
    """The object that is measured or compared: a SAM2TritonClient, or any object with the same two methods."""

    def set_image(self, image: ImageSource) -> object:
        """Make an image the current one."""

    def segment(
        self,
        point_coords: PromptArray = None,
        point_labels: PromptArray = None,
        box: PromptArray = None,
        mask_input: PromptArray = None,
        multimask_output: bool = False,
    ) -> list[Segment]:
        """Return full-size masks of the current image with their low-resolution logits, object by object."""
