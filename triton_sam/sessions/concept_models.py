"""The models of concepts of a variant in Triton, and their tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..concepts.tokenizer import TOKENIZER_NAME, Tokenizer
from ..families.base import Family
from ..families.concepts import CONCEPT_ENCODER, TEXT_ENCODER
from . import bls
from .concepts import Concepts

CONCEPTS_AT_A_TIME = 4
"""Maximum number of concepts in one call of the detector on a GPU, where each takes a few hundred MB of memory.

A CPU gains nothing, because the tensors of several concepts do not stay in its caches. The same applies to several
objects in the decoder."""


class ConceptModels:
    """The models of concepts that a session model calls.

    Args:
        names: their names by role.
    """

    def __init__(self, repository: Path, family: Family, names: Mapping[str, str]) -> None:
        self._repository = repository
        self._family = family
        self._names = names
        self._lock = threading.Lock()

    def settings(self, on_gpu: bool) -> Concepts:
        """Return what a search for concepts needs."""
        at_a_time = CONCEPTS_AT_A_TIME if on_gpu else 1
        return Concepts(at_a_time, lambda: self._identity, self._tokens, self._are_ready)

    def _are_ready(self) -> bool:
        return all(bls.is_ready(self._names[role]) for role in self._family.concepts)

    @cached_property
    def _identity(self) -> str:
        """A text that identifies the weights of the encoder of concepts. The weights are read on first use."""
        return bls.weights_identity(self._repository / self._names[CONCEPT_ENCODER])[:8]

    def _tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        with self._lock:
            return self.tokenizer.tokens(texts)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, opened on first use. Only one thread at a time may use it."""
        remedy = f"run `triton-sam setup {self._family.name} --concepts`, and start it again"
        for role in self._family.concepts:
            bls.check_ready(self._names[role], remedy)
        folder = bls.newest_version(self._repository / self._names[TEXT_ENCODER])
        length = self._family.concepts[TEXT_ENCODER].inputs[0].shape[1]
        return Tokenizer((folder or self._repository) / TOKENIZER_NAME, int(length))
