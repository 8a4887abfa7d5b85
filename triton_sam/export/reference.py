"""The interface of the official predictors for `triton-sam verify`. They need the export extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from .._common.progress import quiet
from ..concepts.video_rules import VideoRules
from ..families import get_family
from ..families.base import Family, FloatArray

BoolArray = npt.NDArray[np.bool_]
Frames = Sequence[npt.NDArray[np.uint8]]
"""The frames of a video, each (height,width,3) uint8 RGB, all of one size."""
Prompt = Mapping[str, Any]
"""Keyword arguments of predict(): any of point_coords, point_labels, box and mask_input."""
Logits = Mapping[int, FloatArray]
"""Logits (H,W) of one frame, in its size, by object id."""
Record = dict[str, Any]
"""One mask in the format of the official generators: ``segmentation`` bool (H,W), ``predicted_iou`` and others."""
GenerateMasks = Callable[..., list[Record]]
"""Segments all objects of an image uint8 (H,W,3), with parameters of the official generators as keywords."""


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
    """Follows objects through one video. The official predictors have this interface, and the clients of `verify`."""

    def add(
        self, frame: int, object_id: int, *, points: Any = None, labels: Any = None, box: Any = None, mask: Any = None
    ) -> Logits:
        """Add points (N,2), their labels (N,) and a box (4,), in pixels of the frame, or a mask bool (H,W).

        Returns:
            The logits of the object in this frame.
        """
        ...

    def propagate(self, start: int | None = None, *, reverse: bool = False) -> Iterator[tuple[int, Logits]]:
        """Track all objects from a frame, by default the earliest prompted one; yield each frame and its logits."""
        ...

    def reset(self) -> None:
        """Remove all objects."""
        ...


def official_records(
    generator: Callable[..., Any], model: Any, image: npt.NDArray[np.uint8], **parameters: Any
) -> list[Record]:
    """Run an official generator of a class. With crop layers, it raises an IndexError if no crop has a mask."""
    with quiet():
        try:
            found: list[Record] = generator(model, **parameters).generate(image)
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


@dataclass(frozen=True)
class FollowedObject:
    """One object that words found, in one frame of a video.

    Args:
        text_index: index of the matching text.
        logits: (h,w), from the tracker, or from the detector in the first frame of the object.
        mask: bool (H,W) in the size of the frame, without the pixels that a better object of its text has.
    """

    text_index: int
    logits: FloatArray
    mask: BoolArray


class VideoWordsReference(Protocol):
    """The official model that finds words in the frames of one video, and follows their objects."""

    def scores(self, texts: Sequence[str]) -> list[FloatArray]:
        """Return the detector's scores (Q,), 0..1, of each text in the first frame."""
        ...

    def follow(self, texts: Sequence[str], rules: VideoRules) -> Iterator[tuple[int, Mapping[int, FollowedObject]]]:
        """Yield each frame with its visible objects, by object id from 1."""
        ...


def in_bf16() -> AbstractContextManager[object]:
    """Enable PyTorch's bfloat16 autocast on the CPU, as the official examples do on GPUs."""
    import torch

    return torch.autocast("cpu", torch.bfloat16)


class TransformersReference:
    """Runs a transformers model with its processor; subclasses answer the prompts."""

    def __init__(self, family: str, model: Any, processor: Any) -> None:
        self.family = get_family(family)
        self._model = model
        self._processor = processor

    def set_image(self, image: Image.Image) -> None:
        inputs = self._processor(images=image, return_tensors="pt")
        self._sizes = inputs["original_sizes"].tolist()
        self._embeddings = self._model.get_image_embeddings(inputs["pixel_values"])

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return the model's arguments for the points and boxes of a prompt."""
        nested: dict[str, Any] = {"original_sizes": self._sizes, "return_tensors": "pt"}
        if "point_coords" in prompt:
            nested["input_points"] = [[np.asarray(prompt["point_coords"]).tolist()]]
            nested["input_labels"] = [[np.asarray(prompt["point_labels"]).tolist()]]
        if "box" in prompt:
            nested["input_boxes"] = [np.reshape(prompt["box"], (-1, 4)).tolist()]
        inputs = dict(self._processor(**nested))
        inputs.pop("original_sizes")
        return inputs

    def _answer(self, logits: Any, scores: Any) -> Answer:
        """Return the answer from logits (N,M,h,w) and scores (N,M) of N prompts with M masks each."""
        (masks,) = self._processor.post_process_masks([logits], self._sizes)
        return Answer(logits.flatten(0, 1).numpy(), scores.flatten().numpy(), masks.flatten(0, 1).numpy())
