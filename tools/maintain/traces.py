"""Traces the models of a family with random weights, each seed in a separate process.

The results are written to memory-mapped files, because three seeds need more than 24 GB of memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import multiprocessing
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper

from tools.maintain.recipes import Recorder, key
from triton_sam._common.progress import quiet
from triton_sam.export import onnx_tools, pipeline, rewrites, tracing
from triton_sam.export.registry import exporter
from triton_sam.export.settings import Settings

Array = npt.NDArray[Any]
_ALIGNMENT = 64


@dataclass(frozen=True)
class Traced:
    """One role of a model with random weights."""

    state: Mapping[str, Array]
    raw: bytes
    leaves: Mapping[str, Array]
    graph: bytes
    weights: Mapping[str, Array]
    made: Mapping[bytes, tuple[str, tuple[Any, ...], bool, int, Array]]


def traced(family: str, settings: Settings, folder: Path) -> dict[str, Traced]:
    """Trace all models of a family with the random weights of the settings into a folder; return them by role."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as pool:
        roles = pool.submit(_trace, family, settings, folder).result()
    return {role: _load(folder / role) for role in roles}


def _trace(family: str, settings: Settings, folder: Path) -> list[str]:
    chosen = exporter(family)
    settings = chosen.prepare(settings.complete(chosen.family))
    model = pipeline.build(chosen, settings)
    state = {name: tensor.detach().numpy() for name, tensor in chosen.state(model).items()}
    specs = chosen.family.at(settings.side).models_for(video=settings.video, concepts=settings.concepts)
    known = {key(array): array for array in state.values()}
    folder.mkdir(parents=True, exist_ok=True)
    for role, spec in specs.items():
        with _raw_graphs(known) as raw, Recorder(state) as recorder:
            graph = chosen.trace(model, spec, settings.options)
        onnx_tools.strip(graph)
        rewrites.reorder_gelu(graph)
        onnx_tools.label_dimensions(graph, spec)
        weights = _take_weights(graph, known)
        _dump(Traced(state, *raw[-1], graph.SerializeToString(), weights, recorder.made), folder / role)
    return list(specs)


@contextlib.contextmanager
def _raw_graphs(known: Mapping[bytes, Array]) -> Iterator[list[tuple[bytes, dict[str, Array]]]]:
    """Store each graph before the exporter's optimiser changes it; triton_sam then receives the optimised graph."""
    raw: list[tuple[bytes, dict[str, Array]]] = []
    original = tracing.export_program

    def both(*args: Any, **options: Any) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():  # noqa: SLF001 - the recorder would end the trace
            program = original(*args, **options, optimize=False)
        graph = program.model_proto
        weights = _take_weights(graph, known)
        raw.append((graph.SerializeToString(), weights))
        del graph
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            program.optimize()
        return program

    tracing.export_program = both
    try:
        yield raw
    finally:
        tracing.export_program = original


def _take_weights(graph: onnx.ModelProto, known: Mapping[bytes, Array]) -> dict[str, Array]:
    """Return the weights of a graph and remove their content from it, except small weights that are not raw data.

    Args:
        known: arrays by key(), which replace equal weights, so that they are in memory once.
    """
    weights = {}
    for item in graph.graph.initializer:
        array = numpy_helper.to_array(item)
        same = known.get(key(array))
        weights[item.name] = array if same is None else same.reshape(array.shape)
        item.ClearField("raw_data")
    return weights


def _dump(thing: Any, path: Path) -> None:
    """Write an object to a file and its arrays to another file; equal arrays are written once."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    places: dict[bytes, tuple[int, int]] = {}
    index = []
    with path.with_suffix(".arrays").open("wb") as stream:
        for buffer in buffers:
            raw = buffer.raw()
            name = hashlib.blake2b(raw, digest_size=16).digest()
            if name not in places:
                stream.seek(-(-stream.tell() // _ALIGNMENT) * _ALIGNMENT)
                places[name] = stream.tell(), raw.nbytes
                stream.write(raw)
            index.append(places[name])
    path.with_suffix(".pickle").write_bytes(pickle.dumps((content, index)))


def _load(path: Path) -> Any:
    content, index = pickle.loads(path.with_suffix(".pickle").read_bytes())
    with path.with_suffix(".arrays").open("rb") as stream:
        mapped = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(content, buffers=[mapped[start : start + size] for start, size in index])
