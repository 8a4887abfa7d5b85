"""Almost valid requests of tools: parts are left out, replaced or repeated."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import strategies as st

NUMBERS = st.one_of(st.integers(-10, 900), st.floats(), st.booleans())
LEAVES = st.one_of(st.none(), NUMBERS, st.text(max_size=8), st.sampled_from(["%", "AAAA", "nothing"]))
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
)
LONG = 8
"""Length from which a list is treated as encoded data, whose parts are meaningless."""


def mostly(kind: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return mostly values of a kind, sometimes others."""
    return st.integers(0, 19).flatmap(lambda number: other if number == 19 else kind)


def almost(value: Any) -> st.SearchStrategy[Any]:
    """Return JSON values similar to a value; most equal it if it is small."""
    other = ANYTHING
    if isinstance(value, dict):
        members = {name: almost(each) for name, each in value.items()}
        kind = mostly(st.fixed_dictionaries(members), st.fixed_dictionaries({}, optional=members))
    elif isinstance(value, list) and len(value) < LONG:
        kind = mostly(
            st.tuples(*map(almost, value)).map(list), st.lists(st.one_of(*map(almost, value), ANYTHING), max_size=4)
        )
    else:
        kind = st.just(value)
        if isinstance(value, list):
            other = st.one_of(ANYTHING, st.integers(0, len(value)).map(lambda end: value[:end]))
        elif isinstance(value, (int, float)):
            other = st.one_of(ANYTHING, NUMBERS)
    return mostly(kind, other)


def settings(examples: int) -> hypothesis.settings:
    """Return settings for a number of requests, the same in each run."""
    health = list(hypothesis.HealthCheck)
    return hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=health
    )
