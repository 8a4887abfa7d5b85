"""Calls the models of concepts through Triton, and reads the tokenizer that lies beside one of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...concepts.tokenizer import TOKENIZER_NAME, Tokenizer
from ...families.base import Family, FloatArray
from ...families.concepts import CONCEPT_ENCODER, TEXT_ENCODER
from .. import bls

CONCEPTS_AT_A_TIME = 4
"""Maximum number of concepts in one call of the detector on a GPU: each takes some hundred MB of memory there. A CPU
gains nothing, because the tensors of several concepts do not stay in its caches."""


class BlsConcepts(bls.Caller):
    """Calls the models of concepts of one variant. Feature maps stay Triton tensors where the encoder put them.

    Args:
        family: a family with models of concepts.
        names: Triton names of these models by role.
        repository: folder of the model repository.
        memory: memory in which the encoder puts the feature maps.
        prompts_at_a_time: maximum number of concepts in one call of the detector.
    """

    def __init__(
        self, family: Family, names: Mapping[str, str], repository: Path, memory: Any, prompts_at_a_time: int
    ) -> None:
        super().__init__()
        self.prompts_at_a_time = prompts_at_a_time
        self._family = family
        self._names = names
        self._repository = repository
        self._memory = memory
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._identity = ""

    def identity(self) -> str:
        """See concepts.ConceptModels. The weights are read when they are first needed."""
        if not self._identity:
            self._identity = bls.weights_identity(self._repository / self._names[CONCEPT_ENCODER])[:8]
        return self._identity

    def encode(self, inputs: Mapping[str, FloatArray]) -> Mapping[str, Any]:
        """See images.Encoder. It takes the input of the family's encoder, under the name of that one."""
        spec = self._family.concepts[CONCEPT_ENCODER]
        (pixels,) = inputs.values()
        (name,) = spec.input_names
        return self.call(self._names[CONCEPT_ENCODER], bls.to_tensors({name: pixels}), spec.output_names, self._memory)

    def nbytes(self, embeddings: Mapping[str, Any]) -> int:
        """See images.Encoder."""
        return bls.float_bytes(embeddings)

    def tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """See concepts.ConceptModels.

        Raises:
            ModelNotReadyError: the server does not have the models of concepts.
            PromptError: a text is too long, or it is no valid text.
        """
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._open_tokenizer()
            return self._tokenizer.tokens(texts)

    def encode_text(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> FloatArray:
        """See concepts.ConceptModels."""
        spec = self._family.concepts[TEXT_ENCODER]
        inputs = bls.to_tensors(dict(zip(spec.input_names, (ids, mask), strict=True)))
        answer = self.call(self._names[TEXT_ENCODER], inputs, spec.output_names, bls.cpu())
        features: FloatArray = np.array(answer[spec.output_names[0]].as_numpy())
        return features

    def run(
        self, role: str, held: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]]
    ) -> Mapping[str, FloatArray]:
        """See concepts.ConceptModels."""
        spec = self._family.concepts[role]
        tensors = [bls.named(name, tensor) for name, tensor in held.items()]
        answer = self.call(self._names[role], tensors + bls.to_tensors(inputs), spec.output_names, bls.cpu())
        return {name: np.array(tensor.as_numpy()) for name, tensor in answer.items()}

    def _open_tokenizer(self) -> Tokenizer:
        remedy = f"run `triton-sam setup {self._family.name} --concepts`, and start it again"
        for name in self._names.values():
            bls.check_ready(name, remedy)
        folder = bls.newest_version(self._repository / self._names[TEXT_ENCODER])
        length = self._family.concepts[TEXT_ENCODER].inputs[0].shape[1]
        return Tokenizer((folder or self._repository) / TOKENIZER_NAME, int(length))
