"""Builds the requests to a model pair and reads its answers, for both clients. It does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError, InferenceError, InputError
from ..families.base import Family, FloatArray
from ..families.tables import DECODER, ENCODER
from ..inputs.embeddings import ImageEmbeddings
from ..inputs.images import ImageSource, encoder_input, open_image
from ..inputs.prompts import Prompts
from ..masks.cleanup import Cleanup
from ..masks.resize import full_size_masks
from ..masks.rle import BoolArray
from ..masks.segment import FORMATS, Segment

FULL_SIZE = FORMATS["rle"]
"""The format in which clients request full-size masks from a server, because it takes the fewest bytes."""


@dataclass(frozen=True)
class Request:
    """One inference: the name of the Triton model, arrays by input name, and the names of the requested outputs."""

    model: str
    inputs: Mapping[str, npt.NDArray[Any]]
    outputs: tuple[str, ...]


class ConfigRequest(Request):
    """A request for the configuration of a model. The answer is the JSON of Triton's HTTP protocol."""

    def __init__(self, model: str) -> None:
        super().__init__(model, {}, ())


@dataclass(frozen=True)
class Prediction:
    """float32 logits (P,M,h,w) from the decoder, float32 scores (P,M), and the prompts that they answer."""

    logits: FloatArray
    scores: FloatArray
    prompts: Prompts


@dataclass(frozen=True)
class ModelPair:
    """Builds requests and reads answers for one model pair.

    Args:
        variant: name of the model pair, for example "sam2.1_large"; None for the family's default pair.
    """

    family: Family
    variant: str | None = None
    encoder: str = field(init=False)
    """Triton name of the encoder."""
    decoder: str = field(init=False)
    """Triton name of the decoder."""
    session_model: str = field(init=False)
    """Triton name of the session model: the family's name, for example ``sam2``, or the variant's name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", self.family.model_name(ENCODER, self.variant))
        object.__setattr__(self, "decoder", self.family.model_name(DECODER, self.variant))
        object.__setattr__(self, "session_model", self.variant or self.family.name)

    def encode(self, source: ImageSource) -> tuple[Request, tuple[int, int]]:
        """Build the encoder's request; also return width and height of the original image."""
        image = open_image(source)
        (spec,) = self.family.encoder.inputs
        request = Request(
            self.encoder, {spec.name: encoder_input(image, self.family)}, self.family.encoder.output_names
        )
        return request, image.size

    def read_embeddings(self, outputs: Mapping[str, npt.NDArray[Any]], size: tuple[int, int]) -> ImageEmbeddings:
        embeddings = ImageEmbeddings(self.family.name, self.encoder, size, dict(outputs))
        try:
            embeddings.check()
        except InputError as error:
            raise InferenceError(
                f"{self.encoder} is not a {self.family.name} encoder of this package: {error}"
            ) from error
        return embeddings

    def check_origin(self, embeddings: ImageEmbeddings) -> None:
        """Raise an error for embeddings of another encoder; otherwise their masks would be wrong without an error."""
        if not isinstance(embeddings, ImageEmbeddings):
            kind = type(embeddings).__name__
            raise InputError(f"image takes the embeddings that encode() returns, not {kind}: or call set_image() first")
        if (embeddings.family, embeddings.model) != (self.family.name, self.encoder):
            raise ConfigurationError(
                f"these embeddings were made by {embeddings.model} ({embeddings.family}), not by {self.encoder}"
            )

    def decode(self, embeddings: ImageEmbeddings, prompts: Prompts, multimask_output: bool) -> Request:
        inputs = {**self.family.embeddings(embeddings), **prompts.tensors(self.family)}
        return Request(self.decoder, inputs, tuple(self.family.requested_outputs(multimask_output)))

    def read_masks(
        self, outputs: Mapping[str, npt.NDArray[Any]], prompts: Prompts, multimask_output: bool
    ) -> Prediction:
        logits, scores = self.family.read_masks(outputs, multimask_output)
        if logits.ndim != 4 or len(logits) != len(prompts) or logits.shape[:2] != scores.shape:
            raise InferenceError(
                f"{self.decoder} sent masks of shape {logits.shape} and scores of shape {scores.shape} "
                f"for {len(prompts)} object(s)"
            )
        return Prediction(logits, scores, prompts)

    def low_res(self, prediction: Prediction) -> tuple[FloatArray, FloatArray]:
        """Return logits (P,M,h,w), clamped as in the official predictor, and scores (P,M), as writable arrays."""
        limit = self.family.logit_limit
        logits = prediction.logits if limit is None else np.clip(prediction.logits, -limit, limit)
        logits, scores = (each if each.flags.writeable else each.copy() for each in (logits, prediction.scores))
        return logits, scores

    def segments(self, prediction: Prediction, cleanup: Cleanup | None = None) -> Iterator[Segment]:
        """Yield full-size masks of P objects with M candidates each, ordered by object. Each is computed on demand.

        As in the official predictor, the mask is thresholded from the unclamped logits after the resize. ``cleanup``
        changes the masks, not the logits of the segments.
        """
        low_res, scores = self.low_res(prediction)
        prompts = prediction.prompts
        clean = cleanup or Cleanup()
        for index, candidate in np.ndindex(scores.shape):
            logits = clean.clean_logits(prediction.logits[index, candidate])
            (mask,) = full_size_masks(logits, prompts.image_size, self.family)
            yield Segment(
                mask=clean.clean_mask(mask, prompts.clicks(index), prompts.box(index)),
                score=float(scores[index, candidate]),
                logits=low_res[index, candidate],
                object_index=index,
                candidate=candidate,
            )


def read_full_size(content: bytes, model: str) -> BoolArray:
    """Read a mask that a model has sent in the format FULL_SIZE."""
    try:
        return FULL_SIZE.to_mask(content)
    except ValueError as error:
        raise InferenceError(f"{model} sent a mask that is not valid {FULL_SIZE.name}: {error}") from error
