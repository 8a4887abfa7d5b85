"""Tokenizes texts for the text encoder.

Reference: Sam3Processor in transformers 5, which pads to 32 tokens. The export writes the vocabulary beside the text
encoder, in the format of Hugging Face's tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.extras import missing
from ..errors import PromptError, RepositoryError

TOKENIZER_NAME = "tokenizer.json"
"""Name of the file in the version folder of the text encoder."""

LONGEST_TEXT = 2000
"""Maximum characters of a text. 30 tokens never stand for so many, and millions would take the tokenizer long."""

Tokens = npt.NDArray[np.int64]


class Tokenizer:
    """Turns texts into tokens.

    Args:
        length: number of tokens of each text, including start, end and padding.
    """

    def __init__(self, path: Path, length: int) -> None:
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as error:
            raise missing("words need", "concepts", error) from error
        try:
            self._backend: Any = Backend.from_file(str(path))
        except Exception as error:  # tokenizers raises Exception itself
            reason = "is not there" if not path.is_file() else f"is damaged: {error}"
            raise RepositoryError(f"{path} {reason}: export the model with --concepts again") from error
        self._backend.no_truncation()
        if self._backend.padding is None:
            end = self._backend.token_to_id("<|endoftext|>")
            self._backend.enable_padding(length=length, pad_id=end or 0)
        self._length = length

    def tokens(self, texts: Sequence[str]) -> tuple[Tokens, Tokens]:
        """Return the tokens of texts.

        Returns:
            input_ids (P,T) int64, and attention_mask (P,T) int64: 1 for a token, 0 for padding.
        """
        encoded = [self._encode(text) for text in texts]
        ids = np.array([each.ids for each in encoded], np.int64).reshape(-1, self._length)
        mask = np.array([each.attention_mask for each in encoded], np.int64).reshape(-1, self._length)
        return ids, mask

    def _encode(self, text: str) -> Any:
        if len(text) > LONGEST_TEXT:
            raise PromptError(f"a text has {len(text)} characters: describe the concept in a few words")
        try:
            found = self._backend.encode(text)
        except (TypeError, UnicodeEncodeError):  # half of a surrogate pair
            raise PromptError("a text contains invalid Unicode") from None
        if len(found.ids) > self._length:
            raise PromptError(
                f"{text[:40]!r} has {len(found.ids)} tokens with the start and the end, and the model takes "
                f"{self._length}: describe the concept in fewer words"
            )
        return found
