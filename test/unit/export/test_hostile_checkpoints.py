"""Checkpoints read without torch: a pickle that attacks executes nothing, and takes no memory."""

from __future__ import annotations

import collections
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")

from support.checkpoint_files import (  # noqa: E402
    Reduced,
    pickled,
    read,
    tensor_of,
    write_records,
)

from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export import torch_file  # noqa: E402


class Chain:
    """getattr(getattr(os, ...), ...): the way to functions that have no name of their own."""

    def __reduce__(self) -> tuple:
        return getattr, (Reduced(__import__, "os"), "system")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (Reduced(os.system, "touch caught"), rf", but {os.system.__module__}.system"),
        (Reduced(eval, "1"), ", but builtins.eval"),
        (Reduced(Path.write_text, Path("caught"), ""), ", but (builtins.getattr|pathlib)"),
        (Chain(), ", but builtins.getattr"),
        (Reduced(torch.load, "x"), ", but torch.serialization.load"),
        (Reduced(torch._utils._rebuild_parameter, Reduced(eval, "1"), False, {}), ", but builtins.eval"),
        (Reduced(collections.OrderedDict, [("a", Reduced(os.system, "touch caught"))]), ""),
        (os.system, r", but \w+.system"),
        (np.dtype("f4"), ", but numpy.*dtype"),
        (Reduced(collections.defaultdict, list), ", but collections.defaultdict"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_that_call_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_records(tmp_path / "x.pt", pickled({"model": {"a": content}}, protocol))
    with pytest.raises(CheckpointError, match=rf"x.pt holds no state dict: 'a' is not a tensor{name}.*$"):
        read(path)
    beside = {"model": {"a": tensor_of()}, "init": {"object": content}}
    assert list(read(write_records(tmp_path / "y.pt", pickled(beside, protocol), s0=bytes(16)))) == ["a"]
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
    with pytest.raises(CheckpointError, match=r"not a readable PyTorch checkpoint|holds no state dict"):
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
