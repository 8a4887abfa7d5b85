"""A tensor of a checkpoint file that is read when it is needed, without torch."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.extras import missing
from ..errors import CheckpointError

try:
    import ml_dtypes
except ImportError as error:
    raise missing("reading checkpoints needs", "local", error) from error

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "float64": np.dtype("<f8"), "float32": np.dtype("<f4"), "float16": np.dtype("<f2"),
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "int64": np.dtype("<i8"), "int32": np.dtype("<i4"), "int16": np.dtype("<i2"), "int8": np.dtype("i1"),
        "uint8": np.dtype("u1"), "bool": np.dtype("?"),
    }
)  # fmt: skip
"""The supported types of tensors in checkpoints, by their names in PyTorch."""

MAX_DIMENSIONS = 32
"""The limit of NumPy 1."""


_MAX_ELEMENTS = 2**60


class UnsupportedError(Exception):
    """A file cannot be read without torch. The message begins with a verb whose subject is the file."""


class Stored:
    """One tensor of a checkpoint, which is read later.

    Attributes:
        shape: shape of the tensor, from the file. Compare it with the expected shape before calling read(), because an
            expanded tensor can be much larger than the file.
    """

    def __init__(
        self,
        source: Callable[[], memoryview | bytes],
        elements: int,
        dtype: np.dtype[Any],
        shape: Sequence[int],
        *,
        offset: int = 0,
        strides: Sequence[int] | None = None,
    ) -> None:
        """Describe a tensor in a buffer of a file; strides are in elements, None for a C-contiguous tensor."""
        if len(shape) > MAX_DIMENSIONS or (strides is not None and len(strides) != len(shape)):
            raise ValueError(f"a tensor has {len(shape)} sizes, or another number of strides")
        strides = contiguous(shape) if strides is None else strides
        if any(type(number) is not int or number < 0 for number in [offset, *shape, *strides]):
            raise ValueError("a tensor has a size, stride or offset that is not a natural number")
        if math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
            raise ValueError("a tensor has more elements than any memory")
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= elements:
            raise ValueError("a tensor reaches beyond the end of its storage")
        self.shape = tuple(shape)
        self.dtype = dtype
        self._source = source
        self._offset = offset
        self._strides = [
            stride * dtype.itemsize if size > 1 else 0 for size, stride in zip(shape, strides, strict=True)
        ]  # the stride of a single element can be any number

    def read(self) -> npt.NDArray[np.generic]:
        """Return the tensor as a C-contiguous array: floating-point numbers as FP32, all others in their stored type.

        Call it inside the context of open_checkpoint(). The array may be a read-only view of the file, which then stays
        mapped until the array is gone. If another program truncates the file in the meantime, this process crashes.
        """
        wanted = self.dtype if self.dtype.kind in "iub" else np.dtype(np.float32)
        try:
            if 0 in self.shape:
                return np.empty(self.shape, wanted)
            start = np.frombuffer(self._source(), self.dtype)[self._offset :]
            view = np.lib.stride_tricks.as_strided(start, self.shape, self._strides, writeable=False)
            with np.errstate(all="ignore"):  # a number beyond the range of FP32 becomes infinite, as in PyTorch
                return np.require(view, wanted, ["C_CONTIGUOUS", "ALIGNED"])
        except MemoryError as error:
            raise CheckpointError(f"not enough memory to read a tensor of the shape {list(self.shape)}") from error


class Derived(Stored):
    """A tensor that is computed from others when it is read."""

    def __init__(self, shape: Sequence[int], compute: Callable[[], npt.NDArray[np.generic]]) -> None:
        self.shape = tuple(shape)
        self._compute = compute

    def read(self) -> npt.NDArray[np.generic]:
        return self._compute()


def joined(tensors: Sequence[Stored]) -> Stored:
    """Return tensors concatenated by rows."""
    if len({(len(each.shape), each.shape[1:]) for each in tensors}) != 1 or not tensors[0].shape:
        raise ValueError("tensors that belong together have different shapes")
    rows = sum(each.shape[0] for each in tensors)
    return Derived((rows, *tensors[0].shape[1:]), lambda: np.concatenate([each.read() for each in tensors]))


def halves(tensor: Stored) -> tuple[Stored, Stored]:
    """Return the upper and the lower half of the rows of a tensor."""
    if not tensor.shape or tensor.shape[0] % 2:
        raise ValueError("a tensor with two halves has no even number of rows")
    middle = tensor.shape[0] // 2
    shape = (middle, *tensor.shape[1:])
    return Derived(shape, lambda: tensor.read()[:middle]), Derived(shape, lambda: tensor.read()[middle:])


def of_array(array: npt.NDArray[np.generic]) -> Stored:
    return Stored(array.tobytes, array.size, array.dtype, array.shape)


def part(mapped: mmap.mmap, start: int, stop: int) -> memoryview:
    """Return a part of a mapped file. Parts used earlier are released from memory until their next use."""
    if hasattr(mapped, "madvise"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)
    return memoryview(mapped)[start:stop]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous tensor of a shape, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
