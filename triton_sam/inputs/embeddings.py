"""The embeddings of one image: encoder outputs that a caller can keep, pass to other calls, save and load."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .._common.files import atomic_path
from ..errors import InputError
from ..families import get_family
from ..families.base import FloatArray, Size


@dataclass(frozen=True, eq=False)
class ImageEmbeddings(Mapping[str, FloatArray]):
    """The encoder outputs of one image, with the family, model and image size for the decoder.

    This is a mapping from tensor names to arrays: ``embeddings["image_embeddings"]`` is float32 (1,256,64,64) for SAM1
    and SAM2. Objects are compared by identity, so they can be dictionary keys.

    Args:
        family: name of the family, for example "sam2".
        model: Triton name of the encoder that computed the tensors. A decoder with other weights gives wrong masks.
        image_size: width and height of the original image in pixels.
        tensors: float32 arrays by tensor name; families/ lists their shapes.
    """

    family: str
    model: str
    image_size: Size
    tensors: Mapping[str, FloatArray]

    __eq__ = object.__eq__  # Mapping would compare the items
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        width, height = self.image_size
        return f"{type(self).__name__}({self.model}, {width}x{height})"

    def __getitem__(self, name: str) -> FloatArray:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        """Total size of all tensors in bytes."""
        return sum(array.nbytes for array in self.tensors.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the embeddings to a NumPy .npz file, atomically.

        Raises:
            OSError: the file cannot be written.
        """
        labels = {
            "family": np.array(self.family),
            "model": np.array(self.model),
            "image_size": np.array(self.image_size),
        }
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as stream:
            write_npz(stream, labels | {f"tensor:{name}": array for name, array in self.tensors.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ImageEmbeddings:
        """Read a file that save() wrote. Loading does not unpickle objects, so an untrusted file cannot run code.

        Raises:
            InputError: the file is missing or damaged, or does not contain image embeddings.
        """
        try:
            # Opened here because np.load() does not close a damaged file that it opened itself.
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                tensors = {
                    key.removeprefix("tensor:"): archive[key] for key in archive.files if key.startswith("tensor:")
                }
                width, height = (int(side) for side in archive["image_size"])
                loaded = cls(str(archive["family"]), str(archive["model"]), (width, height), tensors)
        except FileNotFoundError as error:
            raise InputError(f"there is no file {os.fspath(path)}") from error
        except (PermissionError, IsADirectoryError) as error:
            raise InputError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
        except Exception as error:  # for damaged files, zipfile and NumPy raise almost any type
            raise InputError(
                f"{os.fspath(path)} holds no image embeddings: give a file that ImageEmbeddings.save() wrote"
            ) from error
        loaded.check()
        return loaded

    def check(self) -> None:
        """Check that the tensors have the names, shapes and dtypes of the family.

        Raises:
            InputError: a tensor is missing, or it has the wrong shape or dtype.
        """
        for spec in get_family(self.family).encoder.outputs:
            array = self.tensors.get(spec.name)
            if array is None or array.dtype != np.float32 or array.shape[1:] != spec.shape[1:]:
                found = "missing" if array is None else f"{array.dtype}{array.shape}"
                raise InputError(f"image embeddings of {self.family}: {spec.name} is {found}, expected {spec.shape}")


def write_npz(stream: BinaryIO, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays without compression, as np.savez() does.

    After an error, np.savez() leaves its archive open. Python later tries to complete the file, and reports the error
    of that attempt where no caller can handle it.

    Args:
        arrays: arrays by name, without Python objects.
    """
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.save(entry, array, allow_pickle=False)
