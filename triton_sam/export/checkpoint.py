"""Read the weights of an official checkpoint without torch: torch.save() files, safetensors, and folders of them.

A safetensors file has the length of the header (8 bytes), the header (JSON), and the tensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from .._common.text import one_line
from ..errors import CheckpointError
from .stored import DTYPES, Stored, UnsupportedError, part
from .torch_file import Foreign, Name, read_torch_file

MAX_HEADER = 100_000_000
"""The format's maximum size of the header, in bytes."""

_LENGTH = 8
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def read_safetensors(mapped: mmap.mmap) -> dict[str, Stored]:
    length = int.from_bytes(mapped[:_LENGTH], "little")
    first = _LENGTH + length
    if length > MAX_HEADER or first > len(mapped):
        raise ValueError("the header of safetensors is cut off or too long")
    header: dict[str, Any] = json.loads(mapped[_LENGTH:first].decode())
    header.pop("__metadata__", None)
    tensors, parts = {}, []
    for name, entry in header.items():
        start, stop = _offsets(name, entry, len(mapped) - first)
        tensors[name] = _tensor(mapped, name, entry, first + start, first + stop)
        parts.append((start, stop))
    # The format forbids gaps and overlaps, so a gap or overlap means that the header or the file is damaged.
    end = 0
    for start, stop in sorted(parts):
        if start != end:
            raise ValueError("the tensors of safetensors overlap or leave a gap")
        end = stop
    if first + end != len(mapped):
        raise ValueError("the file ends at another byte than the last tensor")
    return tensors


def _offsets(name: str, entry: Any, size: int) -> tuple[int, int]:
    start, stop = entry["data_offsets"]
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop <= size:
        raise ValueError(f"the tensor {name!r} does not lie inside the file")
    return start, stop


def _tensor(mapped: mmap.mmap, name: str, entry: Mapping[str, Any], start: int, stop: int) -> Stored:
    if entry["dtype"] not in _NAMES:
        raise UnsupportedError(f"has the tensor {name!r} of the unsupported type {entry['dtype']!r}")
    dtype = DTYPES[_NAMES[entry["dtype"]]]
    count, rest = divmod(stop - start, dtype.itemsize)
    tensor = Stored(lambda: part(mapped, start, stop), count, dtype, entry["shape"])
    if rest or math.prod(tensor.shape) != count:
        raise ValueError(f"the tensor {name!r} has a shape of another size than its data")
    return tensor


SINGLE_NAME = "model.safetensors"
"""The file with the weights in a folder in transformers' layout."""

INDEX_NAME = f"{SINGLE_NAME}.index.json"
"""The file that lists the shards of the weights in such a folder, instead of SINGLE_NAME."""

MAX_INDEX = 100_000_000
"""Maximum size of the list of shards, in bytes."""

_LAYOUTS = {"model": "", "model_state": "sam.", "model_state_dict": "", "state_dict": ""}
"""The keys of the state dict in checkpoints of Meta, torch_em, PyTorch's tutorial and Lightning, with the prefixes of
its names."""

_WRAPPERS = ("module.", "_orig_mod.", "model.", "sam.")
"""Prefixes of all names that DistributedDataParallel, torch.compile() and training programs add."""

_DECODER = "decoder_state"
"""micro-sam's key for the weights of its segmentation of all instances without a prompt."""

_ZIP = b"PK\x03\x04"
# Files of torch.save() before 1.6 begin with a pickle of the number 0x1950A86A20F9469CFC6C, in binary or decimal form.
_OLD_MAGIC = (0x1950A86A20F9469CFC6C.to_bytes(10, "little"), str(0x1950A86A20F9469CFC6C).encode())
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257


Tensor = TypeVar("Tensor")


class OldFormatError(CheckpointError):
    """Only PyTorch can read the format of the file."""


@contextlib.contextmanager
def open_checkpoint(
    path: str | Path, download_hint: str, note: Callable[[str], None] = lambda _: None
) -> Iterator[Mapping[str, Stored]]:
    """Open a checkpoint and describe its tensors, which are read one by one when they are needed.

    The content of a file determines its format, not its suffix: torch.save() since PyTorch 1.6, or safetensors. The
    former contains a state dict, either bare, under the key ``model``, ``model_state_dict`` or ``state_dict``, or in
    micro-sam's layouts: ``{"model_state": state dict}``, whose names may begin with ``sam.``, with or without
    ``decoder_state``. Prefixes that training programs add to all names are removed. A folder in
    transformers' layout has model.safetensors, or model.safetensors.index.json and its shards. No code in a file is
    executed.
    """
    path = Path(path)
    with contextlib.ExitStack() as stack:
        with checkpoint_errors(path, download_hint):
            content = _folder(stack, path, download_hint) if path.is_dir() else _file(stack, path)
            state = state_dict(content, path, Stored)
        if _DECODER in content:
            note(f"{path} also has a decoder of instance segmentation, which is left out")
        yield state


def state_dict(content: Any, path: Path, tensor: type[Tensor]) -> dict[str, Tensor]:
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no state dict: save model.state_dict() and not the model")
    key = next((key for key in _LAYOUTS if isinstance(content.get(key), dict)), "")
    state = content.get(key, content)
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, tensor):
            kind = f", but {str(value)[:200]}" if isinstance(value, (Foreign, Name)) else ""
            raise CheckpointError(f"{path} holds no state dict: {repr(name)[:100]} is not a tensor{kind}")
    prefix = _LAYOUTS.get(key, "")
    state = {name.removeprefix(prefix): value for name, value in state.items()}
    while state and (wrapper := next((each for each in _WRAPPERS if all(n.startswith(each) for n in state)), "")):
        state = {name.removeprefix(wrapper): value for name, value in state.items()}
    return state


@contextlib.contextmanager
def checkpoint_errors(path: Path, download_hint: str) -> Iterator[None]:
    """Turn every error of the block into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except UnsupportedError as error:
        raise CheckpointError(f"{path} {one_line(error)}") from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CheckpointError(f"no checkpoint at {path}: get one with `{download_hint}`") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise CheckpointError(f"not enough memory to read {path}") from error
    except Exception as error:  # damaged bytes cause any error in zipfile, pickletools and json
        raise CheckpointError(
            f"{path} is not a readable PyTorch checkpoint (damaged or cut off?): {one_line(error)}"
        ) from error


def _folder(stack: contextlib.ExitStack, folder: Path, download_hint: str) -> Any:
    single, index = folder / SINGLE_NAME, folder / INDEX_NAME
    if single.exists() or not index.is_file():
        with checkpoint_errors(single, download_hint):
            return _file(stack, single)
    tensors = {}
    with checkpoint_errors(index, download_hint):
        shards = _shards(index)
    for shard, names in shards.items():
        with checkpoint_errors(folder / shard, download_hint):
            content = _file(stack, folder / shard)
        if not names <= content.keys():
            raise CheckpointError(f"{folder / shard} lacks {min(names - content.keys())!r}, which {index} lists")
        tensors.update({name: content[name] for name in names})
    return tensors


def _shards(index: Path) -> dict[str, set[str]]:
    """Return the names of the tensors in each shard. Each shard is a file in the folder of the index."""
    if index.stat().st_size > MAX_INDEX:
        raise ValueError(f"the list of shards has more than {MAX_INDEX} bytes")
    content = json.loads(index.read_bytes())
    shards: dict[str, set[str]] = {}
    for name, shard in content["weight_map"].items():
        # PureWindowsPath also splits at backslashes and colons, which point elsewhere on Windows.
        if shard in ("", ".", "..") or PureWindowsPath(shard).name != shard:
            raise ValueError(f"{shard!r} is not the name of a file in the folder")
        shards.setdefault(shard, set()).add(name)
    return shards


def _file(stack: contextlib.ExitStack, path: Path) -> Any:
    """Return the content of a file, with each tensor as a Stored."""
    if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe would wait for a writer
        raise CheckpointError(f"{path} is not a regular file")
    file = stack.enter_context(path.open("rb"))
    head = file.read(512)
    if not head:
        raise ValueError("the file is empty")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    stack.callback(_close, mapped)
    if head.startswith(_ZIP):
        return read_torch_file(mapped, stack.enter_context(zipfile.ZipFile(file)))
    if any(magic in head[:64] for magic in _OLD_MAGIC):
        raise OldFormatError(f"{path} has PyTorch's old format (before 1.6), which only PyTorch reads: use --trace")
    if head.startswith(_TAR_MAGIC, _TAR_PLACE):
        raise CheckpointError(
            f"{path} has PyTorch's oldest format (tar): load it with PyTorch, and save its state dict"
        )
    if head[8:9] == b"{":
        return read_safetensors(mapped)
    raise ValueError("it is neither a file of torch.save() nor safetensors")


def _close(mapped: mmap.mmap) -> None:
    """Close a mapped file. It stays mapped until all arrays of its content are gone."""
    with contextlib.suppress(BufferError):
        mapped.close()
