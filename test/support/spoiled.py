"""Valid requests with a few invalid members. Each seed gives the same sequence, of any length.

hypothesis prefers small and repeated examples, few of which pass the first checks of a request with many members.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBERS = (0, 1, -1, 2, 3, 5, 10**9, -(10**30), 0.5, -0.5, 1.5, float("nan"), float("inf"), -float("inf"), 1e308)
_TEXTS = ("", "a", "cat", "\x00", "é", "null", "[1]", "x" * 300)


def junk(rng: random.Random, depth: int = 3) -> Any:
    """Return any JSON value, including NaN and infinity, which Python's parser accepts."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(_NUMBERS)
    if kind in (3, 4):
        return rng.choice(_TEXTS)
    values = [junk(rng, depth - 1) for _ in range(rng.randrange(5))]
    return values if kind == 5 else {rng.choice(_TEXTS): value for value in values}


def spoil(rng: random.Random, request: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the request, in half of the cases with up to three wrong, missing or unknown members.

    Args:
        rng: random generator.
        request: a valid request.
        names: names of further possible members.
    """
    spoiled = dict(request)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 3))):
        name = rng.choice((*request, *request, *names, "other"))
        if name in spoiled and rng.random() < 0.2:
            del spoiled[name]
        elif isinstance(spoiled.get(name), list) and rng.random() < 0.5:
            spoiled[name] = [junk(rng, 1) if rng.random() < 0.4 else each for each in spoiled[name]]
        else:
            spoiled[name] = junk(rng)
    return spoiled
