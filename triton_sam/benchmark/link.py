"""What a click costs over a network: computed from what was measured here and the bytes that go over the wire."""

from __future__ import annotations

from dataclasses import dataclass

from ..families.base import Family

BITS_PER_SECOND = 1e9
DELAY = 0.001
"""Seconds for one way."""
ID_AND_PROMPT = 1000
"""Bytes of a click on an image that the server holds: measured, 773 over HTTP."""


@dataclass(frozen=True)
class Click:
    """A click over a link of 1 Gbit/s with 1 ms delay, milliseconds; computed, not measured."""

    session: float
    naive: float

    @property
    def factor(self) -> float:
        """How many times as long the naive client takes."""
        return self.naive / self.session


def embedding_bytes(family: Family) -> int:
    """Return the bytes of one image's embeddings."""
    total = 0
    for tensor in family.encoder.outputs:
        size = 4
        for side in tensor.shape:
            size *= side if isinstance(side, int) else 1
        total += size
    return total


def click_over_link(family: Family, session_ms: float, naive_ms: float) -> Click:
    """Add to two clicks on localhost what the bytes take: prompt or embeddings there, one mask of logits back."""
    answer = 4 * family.mask_size**2
    there = {"session": ID_AND_PROMPT, "naive": embedding_bytes(family)}
    added = {name: 1000 * (8 * (request + answer) / BITS_PER_SECOND + 2 * DELAY) for name, request in there.items()}
    return Click(session_ms + added["session"], naive_ms + added["naive"])
