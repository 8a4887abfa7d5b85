"""Requests to a session model and its answers, for both clients: an image goes out once, then an id and a prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InferenceError, SamError, UnknownImageError
from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, image_bytes
from ..inputs.prompts import Prompts
from ..masks.rle import rle_to_mask
from ..masks.segment import Segment
from ..wire import contract
from ..wire.pair import ModelPair, Prediction, Request

Arrays = Mapping[str, npt.NDArray[Any]]
Encode = Callable[[bytes], ImageEmbeddings]
"""Encodes on this side: preprocessing here, then the encoder model."""


@dataclass
class RemoteImage:
    """What a client knows of an image that a server holds.

    Args:
        content: encoded bytes, to send it again.
        image_id: the server's name for it.
        misses: clicks in a row that found the server without it.
    """

    content: bytes
    image_id: str
    misses: int = 0


class LazyTensors(Mapping[str, FloatArray]):
    """Embeddings that are fetched from the encoder when somebody looks at them, once."""

    def __init__(self, names: tuple[str, ...], fetch: Callable[[], ImageEmbeddings]) -> None:
        self._names = names
        self._fetch = fetch
        self._fetched: ImageEmbeddings | None = None
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        with self._lock:
            if self._fetched is None:
                self._fetched = self._fetch()
        return self._fetched[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, eq=False)
class SessionImage(ImageEmbeddings):
    """An image whose embeddings stay on the server. Looking at a tensor, or saving, fetches them from the encoder.

    Args:
        remote: the server's id of the image, and the bytes to send it again.
    """

    remote: RemoteImage

    def keep_id(self, outputs: Arrays) -> None:
        """Take over the id of an answer: another one after a restart with other weights."""
        self.remote.image_id = _image_id(outputs)


@dataclass(frozen=True)
class SessionClick(Request):
    """A prompt on an image that the server holds.

    Args:
        image: the image.
    """

    image: SessionImage

    def hit(self) -> None:
        """Note that the server had the image."""
        self.image.remote.misses = 0

    def again(self, error: SamError) -> tuple[Request, ...]:
        """Return the requests that follow a miss: the same prompt, with the image itself. The last answer counts.

        It is one request, but two when one did not help the click before: where servers behind a proxy take turns, one
        got every id and the other every image. Then both get it. Not at every miss, should the cache be too small.

        Raises:
            SamError: ``error`` in its proper type, when it says anything but that the server lacks the image.
        """
        meant = contract.read_error(error) if isinstance(error, InferenceError) else error
        if not isinstance(meant, UnknownImageError):
            raise meant from (None if meant is error else error)
        remote = self.image.remote
        remote.misses += 1
        inputs = {name: array for name, array in self.inputs.items() if name != contract.IMAGE_ID}
        request = Request(self.model, {contract.IMAGE: _text(remote.content), **inputs}, self.outputs)
        takes_turns = remote.misses > 1 and remote.misses & (remote.misses - 1) == 0  # 2, 4, 8, ...
        return (request, request) if takes_turns else (request,)


@dataclass(frozen=True)
class SessionCalls:
    """Builds requests to the session model of a pair of models and reads its answers.

    Args:
        pair: the pair.
    """

    pair: ModelPair

    @property
    def model(self) -> str:
        """Triton name of the session model: ``sam2``, or the variant's name."""
        return self.pair.variant or self.pair.family.name

    def upload(self, source: ImageSource) -> tuple[Request, bytes]:
        """Build the request that encodes an image; also return the bytes that go out.

        Raises:
            ImageError: no usable image, as far as can be told without decoding it.
        """
        content = image_bytes(source)
        return Request(self.model, {contract.IMAGE: _text(content)}, (contract.IMAGE_ID, contract.IMAGE_SIZE)), content

    def read_upload(self, outputs: Arrays, content: bytes, encode: Encode) -> SessionImage:
        """Read the answer to upload().

        Args:
            outputs: the answer.
            content: the bytes that went out.
            encode: fetches embeddings when somebody wants them on this side.
        """
        width, height = (int(side) for side in outputs[contract.IMAGE_SIZE])
        return SessionImage(
            family=self.pair.family.name,
            model=self.pair.encoder,
            image_size=(width, height),
            tensors=LazyTensors(self.pair.family.encoder.output_names, lambda: encode(content)),
            remote=RemoteImage(content, _image_id(outputs)),
        )

    def fits(self, prompts: Prompts) -> bool:
        """Whether the session model takes that many objects and points in one request."""
        points = prompts.coords.size // 2 + (0 if prompts.boxes is None else 2 * len(prompts.boxes))
        return len(prompts) <= contract.MAX_OBJECTS and points <= contract.MAX_POINTS

    def click(
        self, image: SessionImage, prompts: Prompts, multimask_output: bool, output_format: contract.OutputFormat
    ) -> SessionClick:
        """Build the request for masks: "logits" for read(), "rle" for read_segments()."""
        inputs: dict[str, npt.NDArray[Any]] = {
            contract.IMAGE_ID: _text(image.remote.image_id.encode()),
            contract.MULTIMASK_OUTPUT: np.array([multimask_output]),
        }
        if prompts.coords.size:
            inputs[contract.POINT_COORDS] = prompts.coords
            inputs[contract.POINT_LABELS] = prompts.labels.astype(np.float32)
        if prompts.boxes is not None:
            inputs[contract.BOXES] = prompts.boxes
        if prompts.mask is not None:
            inputs[contract.MASK_INPUT] = prompts.mask
        masks = contract.MASKS
        if output_format != "logits":
            masks = contract.ENCODED_MASKS
            inputs[contract.OUTPUT_FORMAT] = _text(output_format.encode())
        outputs = (masks, contract.IOU_PREDICTIONS, contract.IMAGE_ID)
        return SessionClick(self.model, inputs, outputs, image)

    def read(self, request: Request, outputs: Arrays, prompts: Prompts, multimask_output: bool) -> Prediction:
        """Read the answer to a request for logits, of click() or of ModelPair.decode().

        Raises:
            InferenceError: the served model does not keep the contract.
        """
        if not isinstance(request, SessionClick):
            return self.pair.read_masks(outputs, prompts, multimask_output)
        logits, scores = outputs[contract.MASKS], outputs[contract.IOU_PREDICTIONS]
        if logits.ndim != 4 or len(logits) != len(prompts) or logits.shape[:2] != scores.shape:
            raise InferenceError(f"{self.model} answered masks {logits.shape} for {len(prompts)} object(s)")
        request.image.keep_id(outputs)
        return Prediction(logits, scores, prompts)

    def read_segments(self, request: SessionClick, outputs: Arrays, prompts: Prompts) -> list[Segment]:
        """Read the answer to a request for full-size masks as COCO RLE.

        Raises:
            InferenceError: the served model does not keep the contract.
        """
        texts, scores = outputs[contract.ENCODED_MASKS], outputs[contract.IOU_PREDICTIONS]
        if texts.ndim != 2 or len(texts) != len(prompts) or texts.shape != scores.shape:
            raise InferenceError(f"{self.model} answered masks {texts.shape} for {len(prompts)} object(s)")
        request.image.keep_id(outputs)
        try:
            masks = [rle_to_mask(json.loads(text)) for text in texts.flat]
        except ValueError as error:
            raise InferenceError(f"{self.model} answered what is no COCO RLE: {error}") from error
        places = np.ndindex(texts.shape)
        return [Segment(mask, float(scores[place]), None, *place) for mask, place in zip(masks, places, strict=True)]


def _image_id(outputs: Arrays) -> str:
    return bytes(outputs[contract.IMAGE_ID][0]).decode()


def _text(content: bytes) -> npt.NDArray[np.object_]:
    return np.array([content], np.object_)
