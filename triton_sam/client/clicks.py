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
from ..errors import InferenceError, UnknownImageError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.prompts import Prompts
from ..masks.cleanup import Cleanup
from ..masks.formats import FORMATS
from ..masks.segment import Segment
from ..transport.base import Tensors
from ..wire import contract
from ..wire.pair import ModelPair, Prediction, Request
from .lacks import Notice
from .session_image import RemoteImage, SessionImage, text
from .session_model import fitting_parts

FULL_SIZE = FORMATS["rle"]
"""The clients ask a session model for full-size masks in this format because it takes the fewest bytes."""
MANY_MISSES = 4
"""Number of misses in a row from which on a server is said to lose images. Two servers that take turns cause two."""
_LOSES_IMAGES = Notice()


def with_image(request: Request, remote: RemoteImage, error: InferenceError) -> tuple[Request, ...]:
    """Return the requests to send when the server has lost the image of a request: the same one with the image itself.

    Usually this is one request. If a proxy distributes requests over two servers in turn, one server can receive every
    id and the other every image, so that each click misses. After repeated misses this function therefore returns the
    request twice, so that both servers receive the image. It does so only at every doubling of the misses, because a
    cache that is too small causes repeated misses, too.

    Raises:
        InferenceError: the error has another cause than a lost image.
    """
    if not isinstance(contract.read_error(error), UnknownImageError):
        raise error
    remote.misses += 1
    if remote.misses == MANY_MISSES:
        _LOSES_IMAGES.log(
            f"{request.model} lost an image {MANY_MISSES} times in a row, so clicks on it carry the image file. Raise "
            "cache_bytes in the config.pbtxt of the session model if many images are in use; if several servers share "
            "the requests, let one server answer all requests of a client"
        )
    inputs = {name: array for name, array in request.inputs.items() if name != contract.IMAGE_ID}
    again = replace(request, inputs={contract.IMAGE: text(remote.content), **inputs})
    takes_turns = remote.misses > 1 and remote.misses & (remote.misses - 1) == 0  # a power of two: 2, 4, 8, ...
    return (again, again) if takes_turns else (again,)


@dataclass(eq=False)
class Click(ABC):
    """A checked prompt on an image.

    Args:
        pair: the models that answer.
        image: the embeddings of the image, or the handle of an image that the server keeps.
        prompts: the prompt.
        multimask_output: whether to return three candidate masks for each object instead of one.
        logits: whether the segments carry their logits.
        cleanup: changes of full-size masks; None for none.
    """

    pair: ModelPair
    image: ImageEmbeddings
    prompts: Prompts
    multimask_output: bool = False
    logits: bool = True
    cleanup: Cleanup | None = None
    parts: Sequence[Prompts] = field(init=False, repr=False)
    """The prompts of each request: usually one with all objects."""

    def __post_init__(self) -> None:
        self.parts = (self.prompts,)

    @abstractmethod
    def request(self, part: Prompts) -> Request:
        """Build the request for some objects."""

    def answered(self, outputs: Tensors, *, at_once: bool) -> None:  # noqa: B027 - nothing to record for embeddings
        """Record an answer. ``at_once`` is False if the image had to be sent again."""

    def again(self, request: Request, error: InferenceError) -> tuple[Request, ...]:  # noqa: ARG002 - for subclasses
        """Return the requests to send after a failure. Only the answer to the last one is used.

        Raises:
            InferenceError: no further request would help.
        """
        raise error

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Return the answers to all parts as one."""
        (outputs,) = answers
        return outputs

    def low_res(self, outputs: Tensors) -> tuple[FloatArray, FloatArray]:
        """Read the answer: float32 logits (P,M,h,w), clamped to the limit of the family, and float32 scores (P,M).

        Raises:
            InferenceError: the served model does not keep the wire contract.
        """
        return self.pair.low_res(self._read(outputs))

    def segments(self, outputs: Tensors) -> list[Segment]:
        """Read the answer as full-size masks, ordered by object. This is slow for large images.

        Raises:
            InferenceError: the served model does not keep the wire contract.
        """
        segments = list(self.each_segment(outputs))
        return segments if self.logits else [replace(segment, logits=None) for segment in segments]

    def each_segment(self, outputs: Tensors) -> Iterator[Segment]:
        """Read the answer as full-size masks with logits, each computed when it is asked for. See segments().

        Raises:
            InferenceError: the served model does not keep the wire contract.
        """
        return self.pair.segments(self._read(outputs), self.cleanup)

    @abstractmethod
    def _read(self, outputs: Tensors) -> Prediction: ...


@dataclass(eq=False)
class EmbeddingsClick(Click):
    """A click whose request carries the embeddings to the decoder."""

    def request(self, part: Prompts) -> Request:
        """Build the request for some objects."""
        return self.pair.decode(self.image, part, self.multimask_output)

    def _read(self, outputs: Tensors) -> Prediction:
        return self.pair.read_masks(outputs, self.prompts, self.multimask_output)


@dataclass(eq=False)
class SessionClick(Click):
    """A click whose request names an image that the session model keeps.

    Raises:
        PromptError: an object has more points than a request may have.
    """

    image: SessionImage

    def __post_init__(self) -> None:
        self.parts = fitting_parts(self.prompts)

    def answered(self, outputs: Tensors, *, at_once: bool) -> None:
        """Store the id of the image, which changes when the server restarts with other weights."""
        self.image.keep_id(outputs)
        if at_once:
            self.image.remote.misses = 0

    def again(self, request: Request, error: InferenceError) -> tuple[Request, ...]:
        """Return the requests to send when the server has lost the image: the same prompt with the image itself.

        Raises:
            InferenceError: the error has another cause than a lost image.
        """
        return with_image(request, self.image.remote, error)

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Return the answers to all parts as one.

        Raises:
            InferenceError: an answer has another number of objects or candidates than its part.
        """
        if len(answers) == 1:
            return answers[0]
        masks = contract.MASKS if self.logits else contract.ENCODED_MASKS
        for part, outputs in zip(self.parts, answers, strict=True):
            if len(outputs[masks]) != len(part) or outputs[masks].shape[1:] != answers[0][masks].shape[1:]:
                raise self._broken_contract(outputs[masks])
        names = (masks, contract.IOU_PREDICTIONS)
        return {name: np.concatenate([outputs[name] for outputs in answers]) for name in names}

    def segments(self, outputs: Tensors) -> list[Segment]:
        """Read the answer. Without logits, it holds encoded full-size masks that the server has made."""
        if self.logits:
            return super().segments(outputs)
        texts, scores = outputs[contract.ENCODED_MASKS], outputs[contract.IOU_PREDICTIONS]
        if texts.ndim != 2 or len(texts) != len(self.prompts) or texts.shape != scores.shape:
            raise self._broken_contract(texts)
        try:
            masks = [FULL_SIZE.to_mask(text) for text in texts.flat]
        except ValueError as error:
            raise InferenceError(
                f"{self.pair.session_model} sent a mask that is not valid {FULL_SIZE.name}: {error}"
            ) from error
        places = np.ndindex(texts.shape)
        return [Segment(mask, float(scores[place]), None, *place) for mask, place in zip(masks, places, strict=True)]

    def request(self, part: Prompts) -> Request:
        """Build the request for some objects."""
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

    def _read(self, outputs: Tensors) -> Prediction:
        logits, scores = outputs[contract.MASKS], outputs[contract.IOU_PREDICTIONS]
        if logits.ndim != 4 or len(logits) != len(self.prompts) or logits.shape[:2] != scores.shape:
            raise self._broken_contract(logits)
        return Prediction(logits, scores, self.prompts)

    def _broken_contract(self, masks: npt.NDArray[Any]) -> InferenceError:
        return InferenceError(
            f"{self.pair.session_model} sent masks of shape {masks.shape} for {len(self.prompts)} object(s)"
        )
