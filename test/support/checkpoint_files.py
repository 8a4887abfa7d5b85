"""Checkpoint files for tests: those of torch, of other programs, and damaged ones."""

from __future__ import annotations

import collections
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triton_sam.export.checkpoint import open_checkpoint

HINT = "triton-sam download sam2 tiny"
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read(path: Path) -> dict[str, np.ndarray]:
    with open_checkpoint(path, HINT) as tensors:
        return {name: tensor.read() for name, tensor in tensors.items()}


def expected(tensor: Any) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def assert_equal(found: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        wanted = expected(tensor)
        assert found[name].shape == wanted.shape, name
        assert found[name].dtype == wanted.dtype, name
        assert found[name].flags.c_contiguous, name
        assert found[name].flags.aligned, name
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def example() -> dict[str, Any]:
    """Return a state dict with all possible types, views and sizes."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    state = {str(dtype): (base * 50).to(dtype) for dtype in (*FLOATS, *INTEGERS)}
    shared = torch.arange(24.0)
    return {
        **state,
        "transposed": base.T,
        "sliced": base[1:5:2, 3:7],
        "expanded": base[:, :1].expand(6, 5),
        "narrowed half": base.half()[2:, 1],
        "permuted": torch.randn(2, 3, 4, 5, generator=generator).permute(2, 0, 3, 1),
        "channels last": torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "shared first": shared[:12].view(3, 4),
        "shared second": shared[12:].view(4, 3),
        "parameter": torch.nn.Parameter(base[:2]),
        "scalar": torch.tensor(3),
        "scalar float": torch.tensor(0.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 4),
        "not finite": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-42]),
        "not finite bf16": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]).bfloat16(),
        "beyond FP32": torch.tensor([1e300, -1e300, 1e-300], dtype=torch.float64),
    }


def recompress(path: Path) -> None:
    """Rewrite the records of a zip archive without the alignment of torch.save()."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def write_records(path: Path, content: bytes, method: int = zipfile.ZIP_STORED, **records: bytes) -> Path:
    """Write an archive like that of torch.save() with a pickle and storages."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", content)
        for name, data in records.items():
            archive.writestr(f"archive/data/{name.removeprefix('s')}", data)
    return path


class Reduced:
    """An object that is pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


class Pickler(pickle.Pickler):
    """Pickles tensors given as dicts of arguments, including tensors that torch would not create."""

    def persistent_id(self, thing: Any) -> Any:
        return thing.identifier if isinstance(thing, Identifier) else None


class Identifier:
    """An object that is pickled as a persistent id."""

    def __init__(self, *identifier: Any) -> None:
        self.identifier = identifier


def pickled(content: Any, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(content)
    return buffer.getvalue()


def tensor_of(offset: Any = 0, size: Any = (4,), stride: Any = (1,), elements: Any = 4, key: Any = "0") -> Reduced:
    storage = Identifier("storage", torch.FloatStorage, key, "cpu", elements)
    arguments: tuple[Any, ...] = (storage, offset, size, stride, False, collections.OrderedDict())
    return Reduced(torch._utils._rebuild_tensor_v2, *arguments)


def header_of(content: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}
