"""Texts that programs print and write: tables, any characters, and JSON that strict parsers accept."""

import io
import json
import math
import sys
from typing import Any

import numpy as np
import pytest

from triton_sam._common import strict_json
from triton_sam._common.process import print_every_text
from triton_sam._common.text import aligned

HEAD = ("name", "rate", "n", "limit")
ROWS = [("a", "", "3", "-"), ("longer", "", "12", "")]


def test_columns_without_a_value_in_any_row_are_left_out():
    assert aligned(HEAD, ROWS, right=(1, 2, 3)).splitlines() == ["name     n", "a        3", "longer  12"]
    assert aligned(HEAD, [*ROWS, ("b", "", "", "0.5")], right=(2,)).splitlines() == [
        "name     n  limit",
        "a        3  -",
        "longer  12",
        "b           0.5",
    ]
    assert aligned(HEAD, []) == "name  rate  n  limit"


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "caf\udce9 ż ≈".encode("utf-8", "surrogateescape")), ("ascii", rb"caf" + b"\xe9" + rb" \u017c \u2248")],
)
def test_every_text_is_printed(encoding, written, monkeypatch):
    """The name of a file with a byte that is not UTF-8, a letter and a sign, in a locale with UTF-8 and in C."""
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    print_every_text()
    print("caf\udce9 ż ≈", end="", flush=True)
    assert output.getvalue() == written


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_become_null_and_the_rest_is_as_in_the_standard_library():
    value = {"é": [1, 2.5, True], "n": {"x": ()}}
    for options in ({}, {"indent": 1}, {"separators": (",", ":")}, {"sort_keys": True}):
        assert strict_json.dumps(value, **options) == json.dumps(value, **options)
    assert strict_json.dumps(np.float64(3.5), default=np.generic.item) == "3.5"
    with pytest.raises(TypeError):
        strict_json.dumps(object())
    loop: list = []
    loop.append(loop)
    with pytest.raises((ValueError, RecursionError)):
        strict_json.dumps(loop)
    value = {"a": [1.5, math.nan, (math.inf, {"b": -math.inf})], "c": "NaN", "d": None}
    assert strict(strict_json.dumps(value)) == {"a": [1.5, None, [None, {"b": None}]], "c": "NaN", "d": None}
