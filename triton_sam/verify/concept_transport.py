"""A transport that answers the requests to a session model in this process, with searches for concepts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..concepts.tokenizer import TOKENIZER_NAME, Tokenizer
from ..errors import InferenceError, ModelNotReadyError
from ..families.base import Family, FloatArray
from ..families.concepts import CONCEPT_ENCODER, TEXT_ENCODER
from ..families.tables import DECODER, ENCODER
from ..sessions.image.session import SessionModel
from ..transport.base import Tensors
from ..transport.onnx import OnnxTransport
from ..wire import contract
from ..wire.pair import ModelPair

_CACHE_BYTES = 1 << 30


class OnnxModels:
    """Calls all models of a family with ONNX Runtime: session.Models and concepts.ConceptModels.

    Args:
        family: a family with models of concepts.
        files: ONNX files by role; the tokenizer lies beside the text encoder.

    Raises:
        MissingDependencyError: onnxruntime or tokenizers is not installed.
        ExportError: ONNX Runtime cannot load a file.
    """

    objects_at_a_time = 1
    prompts_at_a_time = 1

    def __init__(self, family: Family, files: Mapping[str, Path]) -> None:
        self.transport = OnnxTransport(files)
        self._specs = family.models_for(video=False, concepts=True)
        length = self._specs[TEXT_ENCODER].inputs[0].shape[1]
        self._tokenizer = Tokenizer(files[TEXT_ENCODER].with_name(TOKENIZER_NAME), int(length))

    def encode(self, inputs: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        """See session.Models."""
        return self.run(ENCODER, {}, inputs)

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> Mapping[str, FloatArray]:
        """See session.Models."""
        return self.transport.infer(DECODER, {**embeddings, **inputs}, outputs)

    def nbytes(self, embeddings: Mapping[str, Any]) -> int:
        """See session.Models."""
        return sum(array.nbytes for array in embeddings.values())

    def identity(self) -> str:
        """See concepts.ConceptModels."""
        return "concepts"

    def tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """See concepts.ConceptModels."""
        return self._tokenizer.tokens(texts)

    def encode_text(self, ids: npt.NDArray[Any], mask: npt.NDArray[Any]) -> FloatArray:
        """See concepts.ConceptModels."""
        names = self._specs[TEXT_ENCODER].input_names
        (features,) = self.run(TEXT_ENCODER, {}, dict(zip(names, (ids, mask), strict=True))).values()
        return features

    def run(
        self, role: str, held: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]]
    ) -> Mapping[str, FloatArray]:
        """See concepts.ConceptModels."""
        return self.transport.infer(role, {**held, **inputs}, self._specs[role].output_names)


class _Concepts(OnnxModels):
    """The models of concepts beside those of clicks, which have another encode()."""

    def __init__(self, models: OnnxModels) -> None:
        self.__dict__ = models.__dict__

    def encode(self, inputs: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        """See concepts.ConceptModels."""
        (pixels,), (name,) = inputs.values(), self._specs[CONCEPT_ENCODER].input_names
        return self.run(CONCEPT_ENCODER, {}, {name: pixels})


class ConceptTransport:
    """A BaseTransport with a session model in this process, and no other model.

    Args:
        family: a family with models of concepts.
        files: see OnnxModels.
    """

    def __init__(self, family: Family, files: Mapping[str, Path]) -> None:
        self._family = family
        self._models = OnnxModels(family, files)
        pair = ModelPair(family)
        self._name = pair.session_model
        concepts = _Concepts(self._models)
        self._session = SessionModel(pair, self._models, _CACHE_BYTES, "this process", concepts)
        self.counts: dict[str, float] = {}

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """See BaseTransport."""
        return contextlib.nullcontext()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer a request to the session model; see BaseTransport.infer.

        Raises:
            ModelNotReadyError: it is another model.
            InferenceError: the request was refused.
        """
        if model != self._name:
            raise ModelNotReadyError(f"there is no model {model} in this process")
        if contract.FIND in inputs:
            reply = self._session.find_concepts(inputs, lambda: False)
        else:
            reply = self._session.answer(inputs)
        for name, count in reply.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        if reply.error is not None:
            raise InferenceError(f"{contract.code_of(reply.error)}: {reply.error}")
        return {name: reply.tensors[name] for name in outputs if name in reply.tensors}

    def is_ready(self) -> bool:
        """See BaseTransport."""
        return self._models.transport.is_ready()

    def ready_models(self) -> Mapping[str, str]:
        """See BaseTransport."""
        return {self._name: "1"}

    def model_config(self, model: str) -> Mapping[str, Any]:  # noqa: ARG002 - there is only one model
        """See BaseTransport."""
        return {"input": [{"name": tensor.name} for tensor in contract.inputs(self._family)]}

    def close(self) -> None:
        """See BaseTransport."""
        self._models.transport.close()
