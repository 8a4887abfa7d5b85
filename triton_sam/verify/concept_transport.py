"""A transport with a session model for concepts in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..concepts.tokenizer import TOKENIZER_NAME, Tokenizer
from ..errors import InferenceError, ModelNotReadyError
from ..families.base import Family
from ..families.concepts import TEXT_ENCODER
from ..sessions.concepts import Concepts
from ..sessions.image.session import SessionModel
from ..transport.base import Tensors
from ..transport.onnx import OnnxTransport
from ..wire import contract
from ..wire.pair import ModelPair

_CACHE_BYTES = 1 << 30


def concepts_of(family: Family, files: Mapping[str, Path]) -> Concepts:
    """Return the settings of searches with models in this process.

    Args:
        files: ONNX files by role; the tokenizer is beside the text encoder.

    Raises:
        MissingDependencyError: tokenizers is not installed.
    """
    length = family.concepts[TEXT_ENCODER].inputs[0].shape[1]
    tokenizer = Tokenizer(files[TEXT_ENCODER].with_name(TOKENIZER_NAME), int(length))
    return Concepts(1, lambda: "concepts", tokenizer.tokens)


class ConceptTransport:
    """A BaseTransport with a session model in this process, and no other model.

    Args:
        family: a family with models of concepts.
        files: ONNX files by role; the tokenizer is beside the text encoder.

    Raises:
        MissingDependencyError: onnxruntime or tokenizers is not installed.
        ExportError: ONNX Runtime cannot load a file.
    """

    def __init__(self, family: Family, files: Mapping[str, Path]) -> None:
        self._family = family
        self._models = OnnxTransport(files)
        pair = ModelPair(family)
        self._name = pair.session_model
        self._session = SessionModel(pair, self._run, 1, _CACHE_BYTES, "this process", concepts_of(family, files))
        self.counts: dict[str, float] = {}

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer a request to the session model; see BaseTransport.infer.

        Raises:
            ModelNotReadyError: the request is to another model.
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

    def _run(
        self,
        role: str,
        held: Tensors,
        arrays: Tensors,
        outputs: tuple[str, ...],
        is_kept: bool,  # noqa: ARG002 - kept outputs are arrays here
    ) -> Tensors:
        return self._models.infer(role, {**held, **arrays}, outputs)

    def is_ready(self) -> bool:
        return self._models.is_ready()

    def ready_models(self) -> Mapping[str, str]:
        return {self._name: "1"}

    def model_config(self, model: str) -> Mapping[str, Any]:  # noqa: ARG002 - there is only one model
        return {"input": [{"name": tensor.name} for tensor in contract.inputs(self._family)]}

    def close(self) -> None:
        self._models.close()
