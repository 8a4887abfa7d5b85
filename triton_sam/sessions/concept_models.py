"""The models of concepts of a variant in Triton, and their tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..concepts.tokenizer import TOKENIZER_NAME, Tokenizer
from ..errors import ModelNotReadyError, RepositoryError
from ..families.base import Family
from ..families.concepts import BACKBONE_STATES, CONCEPT_ENCODER, TEXT_ENCODER
from ..families.tables import ENCODER
from ..repository.config import CONFIG_NAME, parse_config
from . import bls
from .concepts import Concepts

CONCEPTS_AT_A_TIME = 4
"""Maximum number of concepts in one call of the detector on a GPU, where each takes a few hundred MB of memory.

A CPU gains nothing, because the tensors of several concepts do not stay in its caches. The same applies to several
objects in the decoder."""


class ConceptModels:
    """The models of concepts that a session model calls.

    Args:
        names: their names by role, and that of the encoder.
    """

    def __init__(self, repository: Path, family: Family, names: Mapping[str, str]) -> None:
        self._repository = repository
        self._family = family
        self._names = names
        self._lock = threading.Lock()

    def settings(self, on_gpu: bool) -> Concepts:
        at_a_time = CONCEPTS_AT_A_TIME if on_gpu else 1
        return Concepts(at_a_time, lambda: self._identity, self._tokens, self._are_ready, lambda: self._takes_states)

    def _are_ready(self) -> bool:
        return all(bls.is_ready(self._names[role]) for role in self._family.concepts) and not self._lacks_states

    @cached_property
    def _takes_states(self) -> bool:
        """Whether the encoder of concepts takes the states of the backbone; it must be ready."""
        return _has_states(self._repository / self._names[CONCEPT_ENCODER])

    @cached_property
    def _lacks_states(self) -> bool:
        """Whether the encoder of concepts takes states that the encoder does not return; both must be ready."""
        return self._takes_states and not _has_states(self._repository / self._names[ENCODER])

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
        if self._lacks_states:
            encoder, concepts = self._names[ENCODER], self._names[CONCEPT_ENCODER]
            raise ModelNotReadyError(f"{encoder} has no output {BACKBONE_STATES} for {concepts}: {remedy}")
        folder = bls.newest_version(self._repository / self._names[TEXT_ENCODER])
        length = self._family.concepts[TEXT_ENCODER].inputs[0].shape[1]
        return Tokenizer((folder or self._repository) / TOKENIZER_NAME, int(length))


def _has_states(folder: Path) -> bool:
    """Return whether a model has the states of the backbone as input or output."""
    try:
        config = parse_config((folder / CONFIG_NAME).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, RepositoryError):
        return False
    return any(tensor.name == BACKBONE_STATES for tensor in (*config.input, *config.output))
