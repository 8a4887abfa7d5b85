"""Images whose objects are known, and sets of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True, eq=False)
class Sample:
    """One picture and its objects.

    Args:
        name: of the picture, for people.
        image: RGB.
        labels: integers (H,W) of the picture's size: 0 background, any other value an object.
    """

    name: str
    image: Image.Image
    labels: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Dataset:
    """Samples, loaded one at a time when they are iterated over.

    Args:
        name: short name.
        about: one line on what it is and where the labels come from.
        loaders: one a picture.
        unused: names of files that were not used because their partner is missing.
    """

    name: str
    about: str
    loaders: tuple[Callable[[], Sample], ...]
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.loaders)

    def __iter__(self) -> Iterator[Sample]:
        return (load() for load in self.loaders)
