"""Images whose objects are known, and data sets of such images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True, eq=False)
class Sample:
    """One image and its objects.

    Args:
        name: name of the image, for people.
        image: RGB image.
        labels: integers (H,W), as large as the image: 0 is background, and every other value is one object.
    """

    name: str
    image: Image.Image
    labels: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Dataset:
    """A data set. Iterating over it loads the samples one at a time.

    Args:
        name: short name.
        about: one line that describes the images and the origin of the labels.
        loaders: one function for each image, which loads its sample.
        unused: names of the files that are not used because their partner (image or label mask) is missing.
    """

    name: str
    about: str
    loaders: tuple[Callable[[], Sample], ...]
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.loaders)

    def __iter__(self) -> Iterator[Sample]:
        return (load() for load in self.loaders)
