"""What the encoder makes of one image: kept, handed around, saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .._common.files import atomic_path
from ..errors import InputError
from ..families import get_family
from ..families.base import FloatArray, Size


@dataclass(frozen=True, eq=False)
class ImageEmbeddings(Mapping[str, FloatArray]):
    """Encoder outputs of one image, by tensor name, with what is needed to use them.

    A mapping: ``embeddings["image_embeddings"]`` is float32 (1,256,64,64) for SAM1 and SAM2. Compared by
    identity, so that it can be a key: comparing the tensors would fetch those that a server keeps.

    Args:
        family: model type, for example "sam2".
        model: Triton name of the encoder that made them; a decoder of other weights would give wrong masks.
        image_size: width and height of the original image, pixels.
        tensors: arrays by tensor name.
    """

    family: str
    model: str
    image_size: Size
    tensors: Mapping[str, FloatArray]

    __eq__ = object.__eq__  # Mapping compares what it holds
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> FloatArray:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def nbytes(self) -> int:
        """Size of all tensors, bytes."""
        return sum(array.nbytes for array in self.tensors.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a NumPy .npz file; the file appears whole or not at all."""
        labels = {
            "family": np.array(self.family),
            "model": np.array(self.model),
            "image_size": np.array(self.image_size),
        }
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **labels, **{f"tensor:{name}": array for name, array in self.tensors.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ImageEmbeddings:
        """Read what save() wrote. Nothing in the file is executed.

        Raises:
            InputError: the file is missing, damaged or something else.
        """
        try:
            # Opened here: NumPy leaves a damaged file open.
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                tensors = {
                    key.removeprefix("tensor:"): archive[key] for key in archive.files if key.startswith("tensor:")
                }
                width, height = (int(side) for side in archive["image_size"])
                loaded = cls(str(archive["family"]), str(archive["model"]), (width, height), tensors)
        except Exception as error:  # zipfile and NumPy let almost any one through for damaged files
            raise InputError(f"{os.fspath(path)} holds no image embeddings: {error}") from error
        loaded.check()
        return loaded

    def check(self) -> None:
        """Check names and shapes against the family.

        Raises:
            InputError: a tensor is missing or has another shape or type.
        """
        for spec in get_family(self.family).encoder.outputs:
            array = self.tensors.get(spec.name)
            if array is None or array.dtype != np.float32 or array.shape[1:] != spec.shape[1:]:
                found = "missing" if array is None else f"{array.dtype}{array.shape}"
                raise InputError(f"image embeddings of {self.family}: {spec.name} is {found}, expected {spec.shape}")
