"""No writer of the project emits NaN or Infinity: `JSON.parse` and other strict parsers refuse them."""

import json
import math

import numpy as np
import pytest

from triton_sam._common import strict_json


def strict(text: str):
    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_become_null():
    value = {"a": [1.5, math.nan, (math.inf, {"b": -math.inf})], "c": "NaN", "d": None}
    assert strict(strict_json.dumps(value)) == {"a": [1.5, None, [None, {"b": None}]], "c": "NaN", "d": None}


def test_everything_else_is_as_in_the_standard_library():
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
