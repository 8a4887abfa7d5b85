"""The interface of the official predictors for `triton-sam verify`. They need the export extra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..families.base import Family, FloatArray

BoolArray = npt.NDArray[np.bool_]
Prompt = Mapping[str, Any]
"""Keyword arguments of predict(): any of point_coords, point_labels, box and mask_input."""


@dataclass(frozen=True)
class Answer:
    """A predictor's answer to a prompt with P objects and M masks each; masks of an object are adjacent."""

    logits: FloatArray
    scores: FloatArray
    masks: BoolArray


class Reference(Protocol):
    """An official predictor with its model, for example SAM2ImagePredictor."""

    family: Family

    def set_image(self, image: Image.Image) -> None:
        """Encode an RGB image; answer() then refers to this image."""

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt with one mask for each object, or three with ``multimask``."""


class VideoReference(Protocol):
    """An official video predictor with one video. Its logits (objects,H,W) have the order of ``object_ids``."""

    @property
    def object_ids(self) -> list[int]:
        """The ids of the objects, in order of addition."""
        ...

    def add_points(
        self, frame: int, object_id: int, points: Any = None, labels: Any = None, box: Any = None
    ) -> FloatArray:
        """Add points and a box in pixels of the frame; return the logits of all objects in the frame."""
        ...

    def add_mask(self, frame: int, object_id: int, mask: BoolArray) -> FloatArray:
        """Add a mask (H,W); return the logits of all objects in the frame."""
        ...

    def propagate(self, start: int | None = None, *, reverse: bool = False) -> Iterator[tuple[int, FloatArray]]:
        """Yield each frame with the logits of all objects."""
        ...

    def reset(self) -> None:
        """Remove all objects."""
        ...


class EverythingReference(Protocol):
    """An official mask generator with its model, for example SAM2AutomaticMaskGenerator."""

    def generate(self, image: npt.NDArray[np.uint8], **parameters: Any) -> list[dict[str, Any]]:
        """Segment all objects of an image.

        Returns:
            The records of the official generator.
        """
        ...


def official_records(generator: Any, image: npt.NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Run an official generator. With crop layers, the generator raises an IndexError if no crop has a mask."""
    try:
        found: list[dict[str, Any]] = generator.generate(image)
    except IndexError as error:
        if "index 2 is out of bounds for dimension 1 with size 0" not in str(error):
            raise
        return []
    return found


@dataclass(frozen=True)
class FoundInstance:
    """One instance of a concept.

    Args:
        text_index: index of the matching text; 0 if there are only example boxes.
        box: x1, y1, x2, y2 in pixels of the image.
    """

    text_index: int
    score: float
    box: tuple[float, ...]
    mask: BoolArray


class ConceptReference(Protocol):
    """An official detector of concepts with its processor, for example Sam3Model."""

    def set_image(self, image: Image.Image) -> None:
        """Encode an RGB image; find() then refers to this image."""

    def find(
        self,
        text: Sequence[str] | None,
        boxes: Sequence[Sequence[float]] | None = None,
        box_labels: Sequence[int] | None = None,
        *,
        threshold: float,
        mask_threshold: float = 0.5,
    ) -> list[FoundInstance]:
        """Find instances of each text in turn, sorted by score, highest first.

        Args:
            boxes: example boxes (N,4), x1,y1,x2,y2 in pixels of the image.
        """
        ...


def in_bf16() -> AbstractContextManager[object]:
    """Enable PyTorch's bfloat16 autocast on the CPU, as the official examples do on GPUs."""
    import torch

    return torch.autocast("cpu", torch.bfloat16)
