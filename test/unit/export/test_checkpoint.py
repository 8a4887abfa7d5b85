"""Checkpoints read without torch: the same tensors as with it. A pickle that attacks executes nothing."""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
from collections.abc import Callable
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
    assert_equal,
    example,
    pickled,
    read,
    tensor_of,
    write_records,
)

from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export import checkpoint as checkpoint_module  # noqa: E402
from triton_sam.export import torch_file  # noqa: E402
from triton_sam.export.checkpoint import open_checkpoint  # noqa: E402
from triton_sam.export.weights import read_state_dict  # noqa: E402


@pytest.mark.parametrize(
    "wrap", [dict, lambda state: {"model": state}, collections.OrderedDict], ids=["bare", "model", "ordered"]
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_saves(tmp_path: Path, wrap: Callable[[Any], Any], protocol: int) -> None:
    torch.save(wrap(example()), tmp_path / "x.pth", pickle_protocol=protocol)
    assert_equal(read(tmp_path / "x.pth"), example())


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


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_micro_sam_saves(tmp_path: Path, protocol: int) -> None:
    """torch_em's training checkpoint, whose pickle names classes of the training, and micro-sam's own files."""
    state = example()
    prefixed = collections.OrderedDict((f"sam.{name}", tensor) for name, tensor in state.items())
    training = argparse.Namespace(loss=torch.nn.MSELoss(), sampler=collections.defaultdict(list, a=[1]))
    kept = {
        "model_state": prefixed, "init": {"trainer": training, torch.nn.Identity(): frozenset({1})},
        "epoch": np.int64(3), "best_metric": np.float32(0.5), "augmentations": np.arange(3), "list": UserList([1]),
    }  # fmt: skip
    decoder = {"decoder_state": collections.OrderedDict(a=torch.ones(1))}
    for content, notes in ((kept, 0), (kept | decoder, 1), ({"model_state": state} | decoder, 1)):
        said: list[str] = []
        torch.save(content, tmp_path / "x.pt", pickle_protocol=protocol)
        with open_checkpoint(tmp_path / "x.pt", HINT, said.append) as tensors:
            assert_equal({name: tensor.read() for name, tensor in tensors.items()}, state)
        assert len(said) == notes
        assert all("decoder of instance segmentation, which is left out" in line for line in said)
        assert read_state_dict(tmp_path / "x.pt", HINT).keys() == state.keys()


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.module.", "model.sam."])
@pytest.mark.parametrize("key", ["", "model", "model_state_dict", "state_dict"])
def test_prefixes_that_trainings_add_to_all_names(tmp_path: Path, prefix: str, key: str) -> None:
    state = example()
    prefixed = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    torch.save({key: prefixed, "epoch": 3} if key else prefixed, tmp_path / "x.pt")
    assert_equal(read(tmp_path / "x.pt"), state)
    torch.save(prefixed | {"other": torch.ones(1)}, tmp_path / "x.pt")
    assert read(tmp_path / "x.pt").keys() == {*prefixed, "other"}


class UserList(list):
    """Is pickled as an object whose items are appended."""


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


# --- safetensors


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt"])
def test_safetensors(tmp_path: Path, name: str) -> None:
    state = {name: tensor.detach().clone().contiguous() for name, tensor in example().items()}
    safetensors_torch.save_file(state, tmp_path / name, {"format": "pt"})
    assert_equal(read(tmp_path / name), state)


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


@pytest.mark.parametrize(
    ("size", "words"),
    [(33_554_432, "'x' is not a tensor"), (33_554_433, "its pickle has 33554433 bytes, more than 33554432")],
)
def test_a_pickle_may_have_32_mebibytes(tmp_path: Path, size: int, words: str) -> None:
    before, after = b"\x80\x02}X\x05\x00\x00\x00model}X\x01\x00\x00\x00xX", b"ss."
    filling = size - len(before) - 4 - len(after)
    with pytest.raises(CheckpointError, match=words):
        read(write_records(tmp_path / "x.pt", before + filling.to_bytes(4, "little") + bytes(filling) + after))
