"""Checkpoints read without torch: one error for damaged files, and for files of other kinds."""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")

from safetensors import torch as safetensors_torch  # noqa: E402
from support.checkpoint_files import (  # noqa: E402
    HINT,
    Reduced,
    entry,
    example,
    header_of,
    pickled,
    read,
    recompress,
    tensor_of,
    write_records,
)

from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export import checkpoint as checkpoint_module  # noqa: E402
from triton_sam.export.stored import Stored  # noqa: E402
from triton_sam.export.weights import read_state_dict  # noqa: E402


@pytest.mark.parametrize(
    "content",
    [
        header_of({"a": entry()}, bytes(7)),
        header_of({"a": entry()}, bytes(9)),
        header_of({"a": entry(offsets=(0, 12))}, bytes(8)),
        header_of({"a": entry(offsets=(8, 0))}, bytes(8)),
        header_of({"a": entry(offsets=(-8, 0))}, bytes(8)),
        header_of({"a": entry(offsets=(0.0, 8.0))}, bytes(8)),
        header_of({"a": entry(offsets=(False, 8))}, bytes(8)),
        header_of({"a": entry(offsets=[0])}, bytes(8)),
        header_of({"a": entry(shape=(3,))}, bytes(8)),
        header_of({"a": entry(shape=(1,))}, bytes(8)),
        header_of({"a": entry(shape=(-2, -1))}, bytes(8)),
        header_of({"a": entry(shape=[1] * 100_000)}, bytes(8)),
        header_of({"a": entry("F32", (1,), (0, 7))}, bytes(7)),
        header_of({"a": entry(), "b": entry()}, bytes(8)),
        header_of({"a": entry(), "b": entry(offsets=(9, 17))}, bytes(17)),
        header_of({"a": {"dtype": "F32"}}, bytes(8)),
        header_of({"a": 3}, bytes(8)),
        header_of(b"{"),
        header_of(b"{\xff}"),
        header_of({}, length=2**63),
        header_of({}, length=100),
    ],
    ids=itertools.count(),
)
def test_damaged_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^.*x.safetensors is not a readable PyTorch checkpoint \(damaged"):
        read(tmp_path / "x.safetensors")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "U16", "C64", "f32", None])
def test_types_of_safetensors_that_are_not_supported(tmp_path: Path, dtype: Any) -> None:
    (tmp_path / "x.safetensors").write_bytes(header_of({"a": entry(dtype)}, bytes(8)))
    with pytest.raises(CheckpointError, match=f"x.safetensors has the tensor 'a' of the unsupported type {dtype!r}$"):
        read(tmp_path / "x.safetensors")


# --- files that are not checkpoints, or damaged


def test_checkpoints_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    for name in ("none.pt", ".", "file/x.pt", "broken"):
        with pytest.raises(CheckpointError, match=rf"^no checkpoint at .*: get one with `{HINT}`$"):
            read(tmp_path / name)


def test_the_errors_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(example(), tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"^cannot read .*: File name too long$"):
        read(tmp_path / ("x" * 1000))
    with pytest.raises(CheckpointError, match="not a regular file"):
        read(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read(tmp_path / "pipe")
    monkeypatch.setattr(checkpoint_module, "read_torch_file", failing(MemoryError()))
    with pytest.raises(CheckpointError, match=r"^not enough memory to read .*x.pt$"):
        read(tmp_path / "x.pt")


def failing(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_too_little_memory_for_a_tensor() -> None:
    with pytest.raises(CheckpointError, match="not enough memory to read a tensor"):
        Stored(failing(MemoryError()), 4, np.dtype(np.float32), (4,)).read()


@pytest.mark.parametrize(
    "content",
    [b"", b".", b"\x80\x02.", b"text", b"PK\x03\x04", pickle.dumps({"a": 1}), b"\x80\x02}q\x00." * 99, b"\0" * 99],
    ids=itertools.count(),
)
def test_files_of_other_kinds(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x.pt is not a readable PyTorch checkpoint \(damaged or cut off\?\): "):
        read(tmp_path / "x.pt")


def test_other_archives(tmp_path: Path) -> None:
    for name, records in {"empty": (), "letter": ("word/document.xml",), "flat": ("data.pkl",)}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for record in records:
                archive.writestr(record, b"")
        with pytest.raises(CheckpointError, match="not a readable PyTorch checkpoint"):
            read(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    with pytest.raises(CheckpointError, match="holds no state dict"):
        read(tmp_path / "script.pt")


def test_old_formats(tmp_path: Path) -> None:
    for protocol in (0, 2):
        torch.save(
            {"a": torch.ones(3)}, tmp_path / "x.pth", _use_new_zipfile_serialization=False, pickle_protocol=protocol
        )
        with pytest.raises(CheckpointError, match=r"x.pth has PyTorch's old format \(before 1.6\), .*: use --trace$"):
            read(tmp_path / "x.pth")
    content = {"model": {"weight": torch.zeros(100)}, "more": argparse.Namespace()}
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"not a readable PyTorch checkpoint[^\n\033]*\Z") as caught:
        read_state_dict(tmp_path / "x.pth", HINT)
    assert "weights_only" not in str(caught.value)  # torch's error advises to run the code in the file
    (tmp_path / "storages").touch()
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "storages", "storages")
    with pytest.raises(CheckpointError, match=r"x.tar has PyTorch's oldest format"):
        read(tmp_path / "x.tar")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], ": save "),
        ({"model": 3}, ": 'model' is not a tensor$"),
        ({"model_state": {"a": torch.ones(1), "b": None}}, ": 'b' is not a tensor$"),
        ({"weights": {"a": torch.ones(1)}, "epoch": 3}, ": 'weights' is not a tensor$"),
        ({"a": torch.ones(1), 3: torch.ones(1)}, ": 3 is not a tensor$"),
        (torch.ones(1), ": save "),
    ],
)
def test_files_without_a_state_dict(tmp_path: Path, content: Any, reason: str) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=f"x.pt holds no state dict{reason}"):
        read(tmp_path / "x.pt")


@pytest.mark.parametrize("method", ["torch", "deflated", "safetensors"])
def test_a_file_that_is_damaged_or_cut_off_never_raises_another_error(tmp_path: Path, method: str) -> None:
    path = tmp_path / "x"
    state = {"a": torch.arange(30.0).view(6, 5), "b": torch.ones(7).half(), "c": torch.tensor(3)}
    if method == "safetensors":
        safetensors_torch.save_file(state, path)
    else:
        torch.save({"model": state, "more": [torch.Size([1]), {"x": (1, 2)}]}, path)
    if method == "deflated":
        recompress(path)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for length in [*range(10), *range(len(content) - 60, len(content), 7), *generator.integers(len(content), size=40)]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            read(path)
    outcomes, texts = collections.Counter(), []
    for _ in range(400):
        damaged = bytearray(content)
        for place in generator.integers(len(content), size=generator.integers(1, 4)):
            damaged[place] = generator.integers(256)
        path.write_bytes(damaged)
        try:
            outcomes["read"] += bool(read(path))
        except CheckpointError as error:
            outcomes["refused"] += 1
            texts.append(str(error))
    assert len(outcomes) == 2
    assert not [text for text in texts if "\n" in text or "\033" in text]


def test_another_file_in_place_of_a_record(tmp_path: Path) -> None:
    """The directory of the archive leads to the record of another storage, which has the same size."""
    torch.save({"a": torch.ones(4), "b": torch.zeros(4)}, tmp_path / "x.pt")
    content = (tmp_path / "x.pt").read_bytes()
    start = content.index(b"PK\x01\x02")
    directory = content[start:].replace(b"x/data/0", b"x/data/#").replace(b"x/data/1", b"x/data/0")
    (tmp_path / "x.pt").write_bytes(content[:start] + directory.replace(b"x/data/#", b"x/data/1"))
    with pytest.raises(CheckpointError, match=r"'data/[01]' is not at its place"):
        read(tmp_path / "x.pt")


def test_big_endian_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_records(tmp_path / "x.pt", pickled({"a": tensor_of()}), s0=bytes(16)), "a") as archive:
        archive.writestr("archive/byteorder", "big")
    with pytest.raises(CheckpointError, match=r"x.pt is not little-endian"):
        read(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "tensor",
    [
        tensor_of(offset=1),
        tensor_of(offset=-1),
        tensor_of(size=(5,)),
        tensor_of(size=(-1,)),
        tensor_of(size=(2, 2), stride=(1, 3)),
        tensor_of(size=(2, 2), stride=(1,)),
        tensor_of(stride=(-1,)),
        tensor_of(size=(2,), stride=(2**70,)),
        tensor_of(size=(2**70,), stride=(0,)),
        tensor_of(size=(2**59, 2**59, 0), stride=(1, 1, 1)),
        tensor_of(size=(1,) * 33, stride=(1,) * 33),
        tensor_of(size=(4.0,)),
        tensor_of(size=(True,)),
        tensor_of(size=None),
        tensor_of(offset=None),
        tensor_of(elements=5),
        tensor_of(elements=3),
        tensor_of(elements="4"),
        tensor_of(key="1"),
        tensor_of(key="../data.pkl"),
        tensor_of(key=0),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_tensors_that_do_not_fit_their_storage(tmp_path: Path, tensor: Reduced, method: int) -> None:
    path = write_records(tmp_path / "x.pt", pickled({"a": tensor}), method, s0=bytes(16))
    with pytest.raises(CheckpointError, match="not a readable PyTorch checkpoint"):
        read(path)


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (tensor_of(size=(1,), stride=(2**70,)), [0]),
        (tensor_of(offset=9, size=(0, 3), stride=(3, 1)), np.empty((0, 3))),
        (tensor_of(offset=3, size=(2, 2), stride=(0, 0)), [[3, 3], [3, 3]]),
        (tensor_of(offset=1, size=(2, 2), stride=(1, 1)), [[1, 2], [2, 3]]),
        (tensor_of(size=[4], stride=[1]), [0, 1, 2, 3]),
        (tensor_of(offset=2, size=(), stride=()), 2),
    ],
)
def test_unusual_tensors(tmp_path: Path, tensor: Reduced, wanted: Any) -> None:
    path = write_records(tmp_path / "x.pt", pickled({"a": tensor}), s0=np.arange(4, dtype="<f4").tobytes())
    np.testing.assert_array_equal(read(path)["a"], np.array(wanted, np.float32))


def test_a_compressed_record_that_is_shorter_than_it_says(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.pt", pickled({"a": tensor_of()}), zipfile.ZIP_DEFLATED, s0=bytes(12))
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02") + 24
    assert content[place : place + 4] == struct.pack("<I", 12)
    content[place : place + 4] = struct.pack("<I", 16)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"cannot decompress 'archive/data/0': it is cut off"):
        read(path)


def test_a_stored_record_that_says_another_size(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.pt", pickled({"a": tensor_of(elements=2**20)}), s0=bytes(16))
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02") + 20
    content[place : place + 8] = struct.pack("<II", 2**22, 2**22)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="the record 'data/0' is cut off"):
        read(path)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(3).to(torch.float8_e4m3fn), "has a tensor of the unsupported type 'torch.float8_e4m3fn'$"),
        (torch.ones(3, dtype=torch.uint16), "has a tensor of the unsupported type 'torch.uint16'$"),
        (torch.ones(3, dtype=torch.complex64), "unsupported type 'torch.ComplexFloatStorage'"),
        (torch.ones(3, dtype=torch.complex64).conj().imag, "unsupported type|negated or conjugated"),
        (torch.ones(3, 3).to_sparse(), "'a' is not a tensor, but torch._utils._rebuild_sparse_tensor"),
        (torch.ones(3, device="meta"), "is not a tensor, but torch._utils._rebuild_meta_tensor_no_storage"),
        (np.float64(3), "is not a tensor, but numpy"),
        (argparse.Namespace(a=1), "is not a tensor, but argparse.Namespace"),
        (torch.nn.Linear(2, 2), "is not a tensor, but torch.nn.modules.linear.Linear"),
    ],
)
def test_tensors_and_objects_that_are_not_supported(tmp_path: Path, tensor: Any, reason: str) -> None:
    torch.save({"a": tensor}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=f"x.pt .*{reason}"):
        read(tmp_path / "x.pt")


def test_a_negated_tensor(tmp_path: Path) -> None:
    negated = Reduced(torch._utils._rebuild_tensor_v2, *tensor_of().call[1], {"neg": True})
    with pytest.raises(CheckpointError, match="negated or conjugated lazily"):
        read(write_records(tmp_path / "x.pt", pickled({"a": negated}), s0=bytes(16)))
