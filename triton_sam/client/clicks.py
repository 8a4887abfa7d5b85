"""A click is a prompt on an image. It builds its request, recovers from errors and reads its answer.

There are two kinds: the request of an `EmbeddingsClick` carries the embeddings, and the request of a `SessionClick`
names an image that the server keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common import strict_json
from ..errors import InferenceError, InputError, NoImageError, PromptError
from ..families.tables import MAX_PROMPT_POINTS, MAX_PROMPTS
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.prompts import PromptArray, Prompts, check_prompts
from ..masks.cleanup import Cleanup
from ..masks.segment import Segment
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import FULL_SIZE, ModelPair, Prediction, Request, read_full_size
from .flows import Flow
from .session_image import SessionImage, ask_about, text

NOT_SENT = np.empty((0, 0), np.float32)
"""Stands for the logits of a segment if the caller left ``logits`` open and the server sent none.

As mask_input, it is an error."""


@dataclass(eq=False)
class Click(ABC):
    """A checked prompt on an image.

    Args:
        image: the embeddings of the image, or the handle of an image that the server keeps.
        logits: whether the segments contain logits. None: only if the answer contains them anyway, else NOT_SENT.
    """

    pair: ModelPair
    image: ImageEmbeddings
    prompts: Prompts
    multimask_output: bool = False
    logits: bool | None = True
    cleanup: Cleanup | None = None

    @abstractmethod
    def ask(self) -> Flow[Tensors]:
        """Send the click and return the answer."""

    @abstractmethod
    def read(self, outputs: Tensors) -> Prediction:
        """Read the answer."""

    def segments(self, outputs: Tensors) -> list[Segment]:
        """Read the answer as full-size masks, ordered by object. This is slow for large images."""
        segments = list(self.each_segment(outputs))
        return segments if self.logits is not False else [replace(segment, logits=None) for segment in segments]

    def each_segment(self, outputs: Tensors) -> Iterator[Segment]:
        """Read the answer as full-size masks with logits, each computed on demand. See segments()."""
        return self.pair.segments(self.read(outputs), self.cleanup)


@dataclass(eq=False)
class EmbeddingsClick(Click):
    """A click whose request carries the embeddings to the decoder."""

    def ask(self) -> Flow[Tensors]:
        """Send the click and return the answer. A click that is too large for one request is sent in parts."""
        parts = self.prompts.fitting_parts(MAX_PROMPTS)
        if len(parts) == 1:
            return (yield self.pair.decode(self.image, self.prompts, self.multimask_output))
        answers: list[Tensors] = []
        for part in parts:
            outputs = yield self.pair.decode(self.image, part, self.multimask_output)
            self.pair.read_masks(outputs, part, self.multimask_output)  # checks the shapes
            answers.append(outputs)
        axes = {tensor.name: tensor.shape.index("prompts") for tensor in self.pair.family.decoder.outputs}
        return {name: np.concatenate([outputs[name] for outputs in answers], axes[name]) for name in answers[0]}

    def read(self, outputs: Tensors) -> Prediction:
        """Read the answer."""
        return self.pair.read_masks(outputs, self.prompts, self.multimask_output)


@dataclass(eq=False)
class SessionClick(Click):
    """A click whose request names an image that the session model keeps."""

    image: SessionImage
    parts: Sequence[Prompts] = field(kw_only=True)

    def ask(self) -> Flow[Tensors]:
        """Send the click and return the answer. If the server has lost the image, send the click with the image.

        A click on more objects than a request may have is sent in parts.
        """
        answers: list[Tensors] = []
        for part in self.parts:
            outputs = yield from ask_about(self.image.remote, self._request(part))
            answers.append(outputs)
        return answers[0] if len(answers) == 1 else self._joined(answers)

    def segments(self, outputs: Tensors) -> list[Segment]:
        """Read the answer. Without logits, it contains full-size masks that the server has encoded."""
        if self.logits:
            return super().segments(outputs)
        texts, scores = outputs[contract.ENCODED_MASKS], outputs[contract.IOU_PREDICTIONS]
        if texts.ndim != 2 or len(texts) != len(self.prompts) or texts.shape != scores.shape:
            raise self._broken_contract(texts)
        masks = [read_full_size(text, self.pair.session_model) for text in texts.flat]
        places = np.ndindex(texts.shape)
        logits = NOT_SENT if self.logits is None else None
        return [Segment(mask, float(scores[place]), logits, *place) for mask, place in zip(masks, places, strict=True)]

    def _request(self, part: Prompts) -> Request:
        inputs: dict[str, npt.NDArray[Any]] = {
            contract.IMAGE_ID: text(self.image.remote.image_id.encode()),
            contract.MULTIMASK_OUTPUT: np.array([self.multimask_output]),
        }
        if part.coords.size:
            inputs[contract.POINT_COORDS] = part.coords
            inputs[contract.POINT_LABELS] = part.labels.astype(np.float32)
        if part.boxes is not None:
            inputs[contract.BOXES] = part.boxes
        if part.mask is not None:
            inputs[contract.MASK_INPUT] = part.mask
        masks = contract.MASKS
        if not self.logits:
            masks = contract.ENCODED_MASKS
            inputs[contract.OUTPUT_FORMAT] = text(FULL_SIZE.name.encode())
            if self.cleanup is not None and not self.cleanup.changes_nothing:
                inputs[contract.CLEANUP] = text(strict_json.dumps(self.cleanup.to_json()).encode())
        return Request(self.pair.session_model, inputs, (masks, contract.IOU_PREDICTIONS, contract.IMAGE_ID))

    def _joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Return the answers to all parts as one."""
        masks = contract.MASKS if self.logits else contract.ENCODED_MASKS
        for part, outputs in zip(self.parts, answers, strict=True):
            if len(outputs[masks]) != len(part) or outputs[masks].shape[1:] != answers[0][masks].shape[1:]:
                raise self._broken_contract(outputs[masks])
        names = (masks, contract.IOU_PREDICTIONS)
        return {name: np.concatenate([outputs[name] for outputs in answers]) for name in names}

    def read(self, outputs: Tensors) -> Prediction:
        """Read the answer."""
        logits, scores = outputs[contract.MASKS], outputs[contract.IOU_PREDICTIONS]
        if logits.ndim != 4 or len(logits) != len(self.prompts.coords) or logits.shape[:2] != scores.shape:
            raise self._broken_contract(logits)
        return Prediction(logits, scores, self.prompts)

    def _broken_contract(self, masks: npt.NDArray[Any]) -> InferenceError:
        return InferenceError(
            f"{self.pair.session_model} sent masks of shape {masks.shape} for {len(self.prompts)} object(s)"
        )


def make_click(
    pair: ModelPair,
    current: ImageEmbeddings | None,
    image: ImageEmbeddings | None,
    point_coords: PromptArray,
    point_labels: PromptArray,
    box: PromptArray,
    mask_input: PromptArray,
    multimask_output: bool,
    logits: bool | None = True,
    cleanup: Cleanup | None = None,
) -> Click:
    """Check the arguments of a prediction and return its click. ``image`` None stands for the current image."""
    chosen = current if image is None else image
    if chosen is None:
        raise NoImageError("there is no image yet: call set_image() first")
    if image is not None:
        pair.check_origin(image)
    if cleanup is not None and not isinstance(cleanup, Cleanup):
        raise InputError(f"cleanup must be a Cleanup, for example Cleanup(keep_clicked=True), not {cleanup!r:.60}")
    if mask_input is not None and not pair.family.takes_mask:
        raise PromptError(f"{pair.family.name} does not accept mask_input: give points or a box")
    if not isinstance(multimask_output, (bool, np.bool_, int)):
        raise PromptError(f"multimask_output must be True or False, not {multimask_output!r}")
    multimask_output = bool(multimask_output)
    size, side = chosen.image_size, pair.family.mask_size
    prompts = check_prompts(point_coords, point_labels, box, mask_input, image_size=size, mask_size=side)
    if isinstance(chosen, SessionImage):
        parts = fitting_parts(prompts)
        return SessionClick(pair, chosen, prompts, multimask_output, logits, cleanup, parts=parts)
    return EmbeddingsClick(pair, chosen, prompts, multimask_output, logits, cleanup)


def fitting_parts(prompts: Prompts) -> list[Prompts]:
    """Split prompts into parts that each fit into one request to a session model."""
    objects, points = prompts.coords.shape[:2]
    points += 0 if prompts.boxes is None else 2
    if objects <= contract.MAX_OBJECTS and objects * points <= contract.MAX_POINTS:
        return [prompts]
    if points > contract.MAX_POINTS:
        raise PromptError(
            f"an object has {points} points, and the session model accepts {contract.MAX_POINTS} (a box counts as "
            "two): give fewer points, or image=client.encode_here(...), which sends the embeddings to the decoder: it "
            f"accepts {MAX_PROMPT_POINTS}"
        )
    return prompts.parts(min(contract.MAX_OBJECTS, contract.MAX_POINTS // max(1, points)))
