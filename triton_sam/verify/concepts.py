"""Compare instances of concepts with the official detector: same weights, same image, same words and boxes.

A transport runs the session model for concepts in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..client.sync import SamTritonClient
from ..concepts.instances import Instance
from ..concepts.query import THRESHOLD
from ..concepts.tokenizer import TOKENIZER_NAME, Tokenizer
from ..errors import InferenceError, ModelNotReadyError
from ..export.reference import ConceptReference, FoundInstance
from ..families.base import Family
from ..families.concepts import BACKBONE_STATES, CONCEPT_ENCODER, TEXT_ENCODER
from ..families.tables import ENCODER
from ..masks.boxes import intersection_over_union
from ..sessions.concepts import Concepts
from ..sessions.image.session import SessionModel
from ..transport.base import Tensors
from ..transport.onnx import OnnxTransport
from ..wire import contract
from ..wire.pair import ModelPair

_CACHE_BYTES = 1 << 30


def concepts_of(family: Family, files: Mapping[str, Path], config: Callable[[str], Mapping[str, Any]]) -> Concepts:
    """Return the settings of searches with models in this process.

    Args:
        files: ONNX files by role; the tokenizer is beside the text encoder.
        config: returns the names of a model's tensors by role, see OnnxTransport.model_config().

    Raises:
        MissingDependencyError: tokenizers is not installed.
        ModelNotReadyError: the encoders are of different exports.
    """
    length = family.concepts[TEXT_ENCODER].inputs[0].shape[1]
    tokenizer = Tokenizer(files[TEXT_ENCODER].with_name(TOKENIZER_NAME), int(length))
    takes_states = BACKBONE_STATES in [each["name"] for each in config(CONCEPT_ENCODER)["input"]]
    if takes_states and BACKBONE_STATES not in [each["name"] for each in config(ENCODER)["output"]]:
        raise ModelNotReadyError(
            f"{files[ENCODER]} has no output {BACKBONE_STATES}, which {files[CONCEPT_ENCODER]} takes: run "
            f"`triton-sam setup {family.name} --concepts`, which writes both"
        )
    return Concepts(1, lambda: "concepts", tokenizer.tokens, one_pass=lambda: takes_states)


class ConceptTransport(OnnxTransport):
    """A BaseTransport with a session model in this process, and no other model.

    Args:
        family: a family with models of concepts.
        files: ONNX files by role; the tokenizer is beside the text encoder.

    Raises:
        MissingDependencyError: onnxruntime or tokenizers is not installed.
        ExportError: ONNX Runtime cannot load a file.
    """

    def __init__(self, family: Family, files: Mapping[str, Path]) -> None:
        super().__init__(files)
        self._family = family
        pair = ModelPair(family)
        self._name = pair.session_model
        concepts = concepts_of(family, files, super().model_config)
        self._model = SessionModel(pair, self._run, 1, _CACHE_BYTES, "this process", concepts)

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer a request to the session model; see BaseTransport.infer.

        Raises:
            ModelNotReadyError: the request is to another model.
            InferenceError: the request was refused.
        """
        if model != self._name:
            raise ModelNotReadyError(f"there is no model {model} in this process")
        if contract.FIND in inputs:
            reply = self._model.find_concepts(inputs, lambda: False)
        else:
            reply = self._model.answer(inputs)
        if reply.error is not None:
            raise InferenceError(f"{contract.code_of(reply.error)}: {reply.error}")
        return {name: reply.tensors[name] for name in outputs if name in reply.tensors}

    def _run(
        self,
        role: str,
        held: Tensors,
        arrays: Tensors,
        outputs: tuple[str, ...],
        is_kept: bool,  # noqa: ARG002 - kept outputs are arrays here
    ) -> Tensors:
        return super().infer(role, {**held, **arrays}, outputs)

    def ready_models(self) -> dict[str, str]:
        return {self._name: "1"}

    def model_config(self, model: str) -> dict[str, Any]:  # noqa: ARG002 - there is only one model
        return {"input": [{"name": tensor.name} for tensor in contract.inputs(self._family)]}


@dataclass(frozen=True)
class Limits:
    """The thresholds of one precision.

    Args:
        difference: largest difference of a score, and of a coordinate of a box as a share of the image's side.
        iou: smallest IoU of a mask with the official detector's mask, unless only one pixel differs.
    """

    difference: float
    iou: float

    def __str__(self) -> str:
        return f"scores and boxes within {self.difference:g}, IoU of masks > {self.iou:g} or one pixel"


LIMITS = {"fp32": Limits(1e-4, 0.9999), "fp16": Limits(1e-3, 0.98)}
"""The thresholds by precision. There are none for int8, where words read the states of a quantised backbone."""

WORDS = ("cup", "a spoon on a saucer", "table")
"""The words of the cases. They match the default image; with random weights, any words would do."""
_WANTED = 6
"""Number of instances above a case's threshold, if there are this many."""


@dataclass(frozen=True)
class Case:
    """One call of find(), and its official answer."""

    title: str
    arguments: Mapping[str, Any]
    expected: Sequence[FoundInstance]


@dataclass(frozen=True)
class ConceptRow:
    """One case, answered by one runner and by the official detector.

    Args:
        box: largest difference of a coordinate, as a share of the image's side.
        iou: smallest IoU of the masks; 1 without instances.
    """

    runner: str
    case: str
    instances: int
    official: int
    score: float
    box: float
    iou: float
    pixels: int

    HEAD: ClassVar[tuple[str, ...]] = ("runner", "case", "instances", "official", "score", "box", "IoU")

    def cells(self) -> tuple[str, ...]:
        numbers = f"{self.score:.1e}", f"{self.box:.1e}", f"{self.iou:.6f}"
        return (self.runner, self.case, str(self.instances), str(self.official), *numbers)

    def passes(self, limits: Limits) -> bool:
        """Return whether the instances meet the limits."""
        masks = self.iou > limits.iou or self.pixels <= 1
        return (
            self.instances == self.official
            and self.score < limits.difference
            and self.box < limits.difference
            and masks
        )


def cases(reference: ConceptReference, image: Image.Image) -> dict[str, Mapping[str, Any]]:
    """Return the arguments of find() by title of the case.

    Args:
        reference: the official detector with the image; its scores determine the threshold, so that there are instances
            with any weights.
    """
    width, height = image.size
    box = [round(width * 0.2), round(height * 0.3), round(width * 0.5), round(height * 0.7)]
    other = [round(width * 0.6), round(height * 0.1), round(width * 0.9), round(height * 0.4)]
    first, *_ = WORDS
    both = {"boxes": [box, other], "box_labels": [1, 0]}
    asked: dict[str, dict[str, Any]] = {
        "one word": {"text": [first]},
        "three words": {"text": list(WORDS)},
        "a positive box": {"text": None, "boxes": [box], "box_labels": [1]},
        "a positive and a negative box": {"text": None, **both},
        "two words with both boxes": {"text": list(WORDS[:2]), **both},
        "another threshold of masks": {"text": [first], "mask_threshold": 0.4},
    }
    found = {title: {**arguments, "threshold": _threshold(reference, arguments)} for title, arguments in asked.items()}
    return {**found, "no instance": {"text": list(WORDS), "threshold": 1.0}}


def answered_cases(reference: ConceptReference, image: Image.Image) -> list[Case]:
    """Return the cases with the instances of the official detector.

    The detector is not needed afterwards, so its weights can be freed before the clients' weights are loaded.
    """
    reference.set_image(image)
    return [Case(title, arguments, reference.find(**arguments)) for title, arguments in cases(reference, image).items()]


def verify_concepts(
    answered: Sequence[Case], name: str, client: SamTritonClient, image: Image.Image
) -> Iterator[ConceptRow]:
    """Compare a client with the official detector.

    Yields:
        One row for each case.
    """
    for case in answered:
        found = client.find(image=image, **case.arguments)
        yield _compare(name, case.title, found, case.expected, image.size)


def _threshold(reference: ConceptReference, arguments: Mapping[str, Any]) -> float:
    """Return a threshold that some instances pass, between two scores, so that rounding does not matter."""
    scores = sorted((each.score for each in reference.find(**arguments, threshold=0.0)), reverse=True)[: _WANTED + 1]
    return float(np.mean(scores[-2:])) if len(scores) > 1 else THRESHOLD


def _compare(
    name: str, title: str, found: Sequence[Instance], expected: Sequence[FoundInstance], size: tuple[int, int]
) -> ConceptRow:
    if len(found) != len(expected):
        return ConceptRow(name, title, len(found), len(expected), 1.0, 1.0, 0.0, size[0] * size[1])
    scale = np.tile(size, 2)
    scores, boxes, overlaps, pixels = [0.0], [0.0], [1.0], [0]
    for ours, theirs in zip(found, expected, strict=True):
        scores.append(abs(ours.score - theirs.score))
        boxes.append(float(np.abs((np.array(ours.found_box) - np.array(theirs.box)) / scale).max()))
        overlaps.append(intersection_over_union(ours.mask, theirs.mask))
        pixels.append(int((ours.mask ^ theirs.mask).sum()))
    score, box = float(np.max(scores)), float(np.max(boxes))  # unlike max(), NaN is the maximum
    return ConceptRow(name, title, len(found), len(expected), score, box, min(overlaps), max(pixels))
