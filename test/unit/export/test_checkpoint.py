"""Checkpoints read without torch: the same tensors as with it, and one error for all other files."""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")

from safetensors import numpy as safetensors_numpy  # noqa: E402
from safetensors import torch as safetensors_torch  # noqa: E402

from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export import checkpoint as checkpoint_module  # noqa: E402
from triton_sam.export import torch_file  # noqa: E402
from triton_sam.export.checkpoint import open_checkpoint  # noqa: E402
from triton_sam.export.stored import Stored  # noqa: E402

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
    """All types, views and sizes that a state dict may have."""
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


def recompress(path: Path, method: int = zipfile.ZIP_DEFLATED) -> None:
    """Write the records of a zip archive again, without the alignment of torch.save()."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", method) as archive:
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
    """Is pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


class Pickler(pickle.Pickler):
    """Pickles tensors that are given as dicts of arguments, also those that torch itself would not make."""

    def persistent_id(self, thing: Any) -> Any:
        return thing.identifier if isinstance(thing, Identifier) else None


class Identifier:
    """Is pickled as a persistent id."""

    def __init__(self, *identifier: Any) -> None:
        self.identifier = identifier


def pickled(content: Any, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(content)
    return buffer.getvalue()


def tensor_of(offset: Any = 0, size: Any = (4,), stride: Any = (1,), elements: Any = 4, key: Any = "0") -> Reduced:
    storage = Identifier("storage", torch.FloatStorage, key, "cpu", elements)
    arguments = (storage, offset, size, stride, False, collections.OrderedDict())
    return Reduced(torch._utils._rebuild_tensor_v2, *arguments)


# --- files that torch wrote


@pytest.mark.parametrize(
    "wrap", [dict, lambda state: {"model": state}, collections.OrderedDict], ids=["bare", "model", "ordered"]
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_saves(tmp_path: Path, wrap: Callable[[Any], Any], protocol: int) -> None:
    torch.save(wrap(example()), tmp_path / "x.pth", pickle_protocol=protocol)
    assert_equal(read(tmp_path / "x.pth"), example())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_that_another_program_packed(tmp_path: Path, method: int) -> None:
    torch.save(example(), tmp_path / "x.pt")
    recompress(tmp_path / "x.pt", method)
    assert_equal(read(tmp_path / "x.pt"), torch.load(tmp_path / "x.pt", weights_only=True) if not method else example())


def test_the_state_dict_of_a_module(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(2, 2))
    state = module.state_dict()
    assert state._metadata
    torch.save(state, tmp_path / "x.pt")
    found = read(tmp_path / "x.pt")
    assert_equal(found, state)
    assert found["1.num_batches_tracked"].dtype == np.int64


def test_what_a_training_saves_beside_the_weights(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    layer.weight.note = "an attribute"
    group = {"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "maximize": False, "params": [0, 1]}
    optimizer = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, 3)}}, "param_groups": [group]}
    state = layer.state_dict(keep_vars=True)
    content = {
        "model": state, "optimizer": optimizer, "schedule": {"milestones": collections.Counter([1, 2])}, "epoch": 2**40,
        "best": 0.5, "notes": ["text", None, True, (1, 2), {3}, b"bytes", bytearray(b"x"), 1 + 2j, -(10**20)],
        "random": torch.get_rng_state(), "size": torch.Size([1, 2]), "device": torch.device("cpu"),
        "dtype": torch.float16, ("a", 1): "a tuple as key",
    }  # fmt: skip
    torch.save(content, tmp_path / "x.pt")
    torch.load(tmp_path / "x.pt", weights_only=True)
    assert_equal(read(tmp_path / "x.pt"), state)


def test_description_before_reading(tmp_path: Path) -> None:
    torch.save(example(), tmp_path / "x.pt")
    with open_checkpoint(tmp_path / "x.pt", HINT) as tensors:
        for name, tensor in example().items():
            assert tensors[name].shape == tuple(tensor.shape)
            assert str(tensor.dtype) == f"torch.{tensors[name].dtype.name}"


def test_fp32_is_a_view_of_the_file_that_outlives_the_context(tmp_path: Path) -> None:
    state = {"a": torch.arange(1000.0), "b": torch.ones(4).half()}
    torch.save(state, tmp_path / "x.pt")
    with open_checkpoint(tmp_path / "x.pt", HINT) as tensors:
        array = tensors["a"].read()
        assert not array.flags.owndata
        assert not array.flags.writeable
    np.testing.assert_array_equal(array, np.arange(1000.0))


def test_a_file_is_closed_after_the_context_and_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped, closed = [], []
    real = checkpoint_module._close
    monkeypatch.setattr(checkpoint_module, "_close", lambda each: (real(each), mapped.append(each)))
    torch.save({"a": torch.ones(4)}, tmp_path / "x.pt")
    with contextlib.suppress(ZeroDivisionError), open_checkpoint(tmp_path / "x.pt", HINT) as tensors:
        tensors["a"].read()
        closed.append(len(mapped))
        raise ZeroDivisionError
    (tmp_path / "x.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:-20])
    with pytest.raises(CheckpointError):
        read(tmp_path / "x.pt")
    assert closed == [0]
    assert [each.closed for each in mapped] == [True, True]


def test_torch_is_not_imported(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2, 2), "b": torch.ones(2).bfloat16()}, tmp_path / "x.pt")
    safetensors_torch.save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    program = """
import sys
from triton_sam.export.checkpoint import open_checkpoint
for path in sys.argv[1:]:
    with open_checkpoint(path, "") as tensors:
        assert all((tensor.read() == 1).all() for tensor in tensors.values())
heavy = {"torch", "safetensors", "onnx", "transformers", "pickle5"} & set(sys.modules)
assert not heavy, heavy
"""
    command = [sys.executable, "-c", program, str(tmp_path / "x.pt"), str(tmp_path / "x.safetensors")]
    subprocess.run(command, check=True, timeout=120)


# --- safetensors


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt"])
def test_safetensors(tmp_path: Path, name: str) -> None:
    state = {name: tensor.detach().clone().contiguous() for name, tensor in example().items()}
    safetensors_torch.save_file(state, tmp_path / name, {"format": "pt"})
    assert_equal(read(tmp_path / name), state)


def test_safetensors_without_torch(tmp_path: Path) -> None:
    state = {"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": np.arange(3)}
    safetensors_numpy.save_file(state, tmp_path / "x.safetensors")
    found = read(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(found["a"], state["a"].astype(np.float32))
    np.testing.assert_array_equal(found["b"], state["b"])


def shards(folder: Path, weight_map: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    safetensors_torch.save_file({"a": torch.ones(3), "unlisted": torch.ones(1)}, folder / "model-1-of-2.safetensors")
    safetensors_torch.save_file({"b": torch.zeros(2).half()}, folder / "model-2-of-2.safetensors")
    weight_map = weight_map or {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_folders_of_transformers(tmp_path: Path) -> None:
    folder = shards(tmp_path / "sharded")
    assert_equal(read(folder), {"a": torch.ones(3), "b": torch.zeros(2)})
    safetensors_torch.save_file({"c": torch.ones(1)}, folder / "model.safetensors")
    assert_equal(read(folder), {"c": torch.ones(1)})  # transformers prefers it, too


def test_a_folder_of_links(tmp_path: Path) -> None:
    """The cache of huggingface_hub has links to files elsewhere."""
    safetensors_torch.save_file({"c": torch.ones(1)}, tmp_path / "blob")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blob")
    assert_equal(read(tmp_path / "snapshot"), {"c": torch.ones(1)})


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/passwd", "..", ".", "", "a/b", "..\\x", "C:x", "a\x00b", 3, None, ["x"]]
)
def test_shards_are_files_in_the_folder(tmp_path: Path, shard: Any) -> None:
    safetensors_torch.save_file({"a": torch.ones(3)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="not a readable"):
        read(shards(tmp_path / "folder", {"a": shard}))


def test_indexes_that_fit_no_shards(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model-1-of-2.safetensors lacks 'z', which .*index.json lists$"):
        read(shards(tmp_path / "1", {"z": "model-1-of-2.safetensors"}))
    with pytest.raises(CheckpointError, match=r"^no checkpoint at .*gone.safetensors: get one with"):
        read(shards(tmp_path / "2", {"a": "gone.safetensors"}))
    for number, text in enumerate(("", "{}", "[]", "[" * 100_000, '{"weight_map": 3}', "\xff")):
        folder = shards(tmp_path / f"damaged {number}")
        (folder / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckpointError, match=r"index.json is not a readable"):
            read(folder)


def test_an_index_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "MAX_INDEX", 10)
    with pytest.raises(CheckpointError, match="the list of shards has more than 10 bytes"):
        read(shards(tmp_path / "folder"))


def header_of(content: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


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
        header_of({"a": entry(shape=(2.0,))}, bytes(8)),
        header_of({"a": entry(shape=(2, True))}, bytes(8)),
        header_of({"a": entry(shape="2")}, bytes(8)),
        header_of({"a": entry(shape=None)}, bytes(8)),
        header_of({"a": entry(shape=[1] * 100_000)}, bytes(8)),
        header_of({"a": entry(shape=[2**70, 0], offsets=(0, 0))}),
        header_of({"a": entry("F32", (2,), (0, 7))}, bytes(7)),
        header_of({"a": entry(), "b": entry()}, bytes(8)),
        header_of({"a": entry(), "b": entry(offsets=(9, 17))}, bytes(17)),
        header_of({"a": {"dtype": "F32"}}, bytes(8)),
        header_of({"a": 3}, bytes(8)),
        header_of(b"{"),
        header_of(b'{"a"' + b"[" * 100_000),
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
    with pytest.raises(CheckpointError, match="refers to"):
        read(tmp_path / "script.pt")


def test_old_formats(tmp_path: Path) -> None:
    for protocol in (0, 2):
        torch.save(
            {"a": torch.ones(3)}, tmp_path / "x.pth", _use_new_zipfile_serialization=False, pickle_protocol=protocol
        )
        with pytest.raises(CheckpointError, match=r"x.pth has PyTorch's old format \(before 1.6\), .*: use --trace$"):
            read(tmp_path / "x.pth")
    (tmp_path / "storages").touch()
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "storages", "storages")
    with pytest.raises(CheckpointError, match=r"x.tar has PyTorch's oldest format"):
        read(tmp_path / "x.tar")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "$"),
        ({"model": 3}, "$"),
        ({"model": torch.ones(1)}, "$"),
        ({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, ": 'state_dict' is not a tensor$"),
        ({"a": torch.ones(1), 3: torch.ones(1)}, ": 3 is not a tensor$"),
        (torch.ones(1), "$"),
    ],
)
def test_files_without_a_state_dict(tmp_path: Path, content: Any, reason: str) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=f"x.pt holds no state dict{reason}"):
        read(tmp_path / "x.pt")


@pytest.mark.parametrize("method", ["torch", "deflated", "safetensors"])
@pytest.mark.parametrize(
    "part", [0, 3, 4, 8, 9, 40, *np.linspace(0.02, 0.98, 20).round(2).tolist(), *range(-60, 0, 7), -1]
)
def test_a_file_that_is_cut_off(tmp_path: Path, method: str, part: float) -> None:
    state = {"a": torch.arange(300.0).view(20, 15), "b": torch.ones(7).half(), "c": torch.tensor(3)}
    path = tmp_path / "x"
    if method == "safetensors":
        safetensors_torch.save_file(state, path)
    else:
        torch.save(state, path)
    if method == "deflated":
        recompress(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content)) if type(part) is float else int(part)])
    with pytest.raises(CheckpointError):
        read(path)


@pytest.mark.parametrize("method", ["torch", "deflated", "safetensors"])
def test_damaged_bytes_never_raise_another_error(tmp_path: Path, method: str) -> None:
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


def test_archives_of_earlier_versions_have_no_byte_order(tmp_path: Path) -> None:
    data = np.arange(4, dtype="<f4")
    path = write_records(tmp_path / "x.pt", pickled({"a": tensor_of()}), s0=data.tobytes())
    np.testing.assert_array_equal(read(path)["a"], data)


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
        tensor_of(size="4"),
        tensor_of(size=None),
        tensor_of(offset=None),
        tensor_of(elements=5),
        tensor_of(elements=3),
        tensor_of(elements=-4),
        tensor_of(elements="4"),
        tensor_of(key="1"),
        tensor_of(key="../data.pkl"),
        tensor_of(key=0),
        tensor_of(size=[[4]]),
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
        (torch.ones(3, dtype=torch.complex64), "refers to 'torch.ComplexFloatStorage'"),
        (torch.ones(3, dtype=torch.complex64).conj().imag, "refers to 'torch.|negated or conjugated"),
        (torch.ones(3, 3).to_sparse(), "refers to 'torch._utils._rebuild_sparse_tensor'"),
        (torch.ones(3, device="meta"), "refers to 'torch._utils._rebuild_meta_tensor_no_storage'"),
        (np.float64(3), "refers to 'numpy"),
        (argparse.Namespace(a=1), "refers to 'argparse.Namespace'"),
        (torch.nn.Linear(2, 2), "refers to 'torch.nn.modules.linear.Linear'"),
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


# --- files that attack


class Chain:
    """getattr(getattr(os, ...), ...): the way to functions that have no name of their own."""

    def __reduce__(self) -> tuple:
        return getattr, (Reduced(__import__, "os"), "system")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (Reduced(os.system, "touch caught"), rf"'{os.system.__module__}.system'"),
        (Reduced(eval, "1"), "'builtins.eval'"),
        (Reduced(Path.write_text, Path("caught"), ""), "'(builtins.getattr|pathlib)"),
        (Chain(), "'builtins.getattr'"),
        (Reduced(torch.load, "x"), "'torch.serialization.load'"),
        (Reduced(torch._utils._rebuild_parameter, Reduced(eval, "1"), False, {}), "'builtins.eval'"),
        (Reduced(collections.OrderedDict, [("a", Reduced(os.system, "touch caught"))]), r"'\w+.system'"),
        (os.system, r"'\w+.system'"),
        (np.dtype("f4"), "'numpy.*dtype'"),
        (Reduced(collections.defaultdict, list), "'collections.defaultdict'"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_that_call_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_records(tmp_path / "x.pt", pickled({"model": {"a": content}}, protocol))
    with pytest.raises(
        CheckpointError, match=rf"x.pt refers to {name}.*, which a checkpoint of weights does not need: "
    ):
        read(path)
    assert not (tmp_path / "caught").exists()


@pytest.mark.parametrize(
    "program",
    [
        b"ctorch\nFloatStorage\n)R.",  # a name that is no function
        b"X\x01\x00\x00\x00a)R.",
        b"ccollections\nOrderedDict\n}R.",  # arguments that are no tuple
        b"ccollections\nOrderedDict\nK\x01\x85R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(X\x04\x00\x00\x00evalN)NtR.",
        b"NQ.",
        b"(lp0\nQ.",
        b"ios\nsystem\n.",
        b"(cos\nsystem\no.",
        b"}(]K\x01u.",  # keys that cannot be hashed, or only with a deep stack
        b"}(" + b")" + b"\x85" * 100_000 + b"K\x01u.",
        b"}(((K\x01ttK\x01u.",
        b"K\x01K\x02a.",
        b"K\x01(K\x02e.",
        b"](K\x01K\x02u.",
        b"}(K\x01u.",
        b"h\x05.",
        b"j\xff\xff\xff\xff.",
        b"t.",
        b"a.",
        b"0.",
        b"\x82\x01.",  # an extension
        b"\x97.",  # an out-of-band buffer
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes beyond the end
        b"X\xff\xff\xff\xff.",
        b"\x8a\xffa.",
        b"\xff.",
        b"",
    ],
    ids=itertools.count(),
)
def test_programs_that_are_no_state_dicts(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"not a readable PyTorch checkpoint|refers to"):
        read(write_records(tmp_path / "x.pt", b"\x80\x02" + program))


def test_a_large_index_of_the_memo_takes_no_memory(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.pt", b"\x80\x02}r\xff\xff\xff\x7fj\xff\xff\xff\x7f.")
    assert read(path) == {}


def test_deep_values_take_no_stack(tmp_path: Path) -> None:
    deep = b"}(X\x05\x00\x00\x00model}X\x01\x00\x00\x00x" + b"]" * 50_000 + b"a" * 49_999 + b"u."
    assert read(write_records(tmp_path / "x.pt", b"\x80\x02" + deep)) == {}


def test_the_state_of_an_object_changes_nothing(tmp_path: Path) -> None:
    """BUILD would set the defaults of a function in an ordinary unpickler."""
    build = b"ctorch._utils\n_rebuild_parameter\nN}X\x0c\x00\x00\x00__defaults__)s\x86b"
    with pytest.raises(CheckpointError, match="'x' is not a tensor"):
        read(write_records(tmp_path / "x.pt", b"\x80\x02}X\x01\x00\x00\x00x" + build + b"s."))
    assert torch_file._parameter.__defaults__ is None


def test_a_pickle_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_file, "MAX_PICKLE", 10)
    with pytest.raises(CheckpointError, match=r"its pickle has \d+ bytes, more than 10"):
        read(write_records(tmp_path / "x.pt", pickled({"a": tensor_of()}), s0=bytes(16)))
