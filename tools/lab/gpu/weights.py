"""Graphs that travel without their weights, and random weights that both machines can draw alike.

The weights of a model are most of its ONNX files, and random numbers do not compress. So a graph travels with a recipe,
which says which of its constants are a tensor of the checkpoint, transposed or not. The checkpoint is either small
enough to travel, or is drawn from a layout (name, shape, mean and standard deviation of each tensor) by NumPy.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

State = Mapping[str, npt.NDArray[np.float32]]
SMALL = 4096
"""Constants of fewer bytes always travel with the graph."""


def layout_of(state: State) -> dict[str, list[object]]:
    """Return the layout of a state dict: shape, mean and standard deviation of each tensor, by name."""
    return {name: [list(value.shape), float(value.mean()), float(value.std())] for name, value in state.items()}


def draw(layout: Mapping[str, list[object]]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a layout: normal numbers whose seed is the name of the tensor."""
    state = {}
    for name, (shape, mean, deviation) in layout.items():
        numbers = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(shape, np.float32)
        state[name] = (numbers * np.float32(deviation) + np.float32(mean)).astype(np.float32)
    return state


def lighten(source: Path, target: Path, state: State) -> tuple[int, int]:
    """Write a graph without the constants that a checkpoint holds, and its recipe as JSON beside it.

    Returns:
        Bytes of constants that were left out, and bytes of those that travel.
    """
    model = onnx.load(source)
    known = {}
    for name, value in state.items():
        for turned in (False, True) if value.ndim == 2 else (False,):
            for dtype in (np.float32, np.float16):
                array = variant(value, turned, dtype)
                known.setdefault(_key(array), (name, turned, np.dtype(dtype).name))
    recipe, left_out, kept = {}, 0, 0
    for constant in model.graph.initializer:
        array = numpy_helper.to_array(constant)
        found = known.get(_key(array)) if array.nbytes > SMALL else None
        if found is None:
            kept += array.nbytes
            continue
        recipe[constant.name] = found
        left_out += array.nbytes
        constant.ClearField("raw_data")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(model.SerializeToString())
    target.with_suffix(".json").write_text(json.dumps(recipe))
    return left_out, kept


def fill(source: Path, target: Path, state: State) -> None:
    """Write a whole graph from a light one, its recipe and a checkpoint."""
    model = onnx.load(source)
    recipe = json.loads(source.with_suffix(".json").read_text())
    for constant in model.graph.initializer:
        if constant.name in recipe:
            name, turned, dtype = recipe[constant.name]
            constant.raw_data = variant(state[name], turned, dtype).tobytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, target)


def variant(value: npt.NDArray[np.float32], turned: bool, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """Return a tensor as a graph holds it: transposed or not, in FP32 or, clipped, in FP16."""
    array = value.T if turned else value
    if np.dtype(dtype) == np.float16:
        limit = np.finfo(np.float16).max
        array = np.clip(array, -limit, limit)
    return np.ascontiguousarray(array, dtype)


def _key(array: npt.NDArray[np.generic]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
