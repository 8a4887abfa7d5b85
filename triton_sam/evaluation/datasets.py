"""Images whose objects are known: generated scenes, photographs of Python packages, or a folder of your own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._common.extras import missing
from ..errors import ConfigurationError
from .samples import Dataset, Sample

SCENE_SIZE = 512
"""Side of a synthetic scene in pixels."""

_DEFAULT_SCENES = 50
_SCENES_PER_SEED = 10_000
_GOLDEN_RATIO = 0.6180339887  # its multiples modulo 1 are spread evenly over 0..1 for every range of numbers
_MIN_COIN_AREA = 100  # pixels; the smallest of the 24 coins has 1077, a speck of dust as bright as a coin has 2


def open_dataset(name: str, count: int | None = None, seed: int = 0) -> Dataset:
    """Open a data set without loading its images.

    Args:
        name: "synthetic" (generated scenes that are never used for training), "coins" (24 coins in one photograph),
            "cells" (one cell in one micrograph), or a folder of images with label masks, see folder.open_folder.
        count: maximum number of images. None takes 50 generated scenes, or all images of another data set.
        seed: selects the generated scenes, or the ``count`` images of a folder. At least 0.

    Raises:
        ConfigurationError: there is no such data set or folder, the count is below 1, or the seed is negative.
        InputError: the folder contains files that cannot be used.
        MissingDependencyError: the evaluate extra is not installed.
    """
    if seed < 0 or (count is not None and count < 1):
        raise ConfigurationError("the seed must be at least 0 and the count at least 1")
    if name == "synthetic":
        return _generated(
            name, "generated scenes that were never used for training, exact labels", synthetic, count, seed
        )
    if name == "coins":
        return Dataset(name, "scikit-image's photograph of 24 coins, labels by its watershed tutorial", (coins,))
    if name == "cells":
        return Dataset(name, "scikit-image's micrograph of one cell, label by Otsu's threshold", (cell,))
    from .folder import open_folder

    return open_folder(Path(name), count, seed)


def synthetic(number: int) -> Sample:
    """Draw one of the held-out scenes. Its labels number the objects but not their parts.

    The difficulties of consecutive numbers are spread evenly over 0..1, so that even a few scenes cover them all.

    Args:
        number: number of the scene, counted from 0.

    Raises:
        MissingDependencyError: OpenCV is not installed.
    """
    from ..scenes.scenes import HELD_OUT_SEED, generate_scene

    seed = HELD_OUT_SEED + number
    scene = generate_scene(seed, SCENE_SIZE, difficulty=number * _GOLDEN_RATIO % 1)
    return Sample(f"scene {seed}", Image.fromarray(scene.image), scene.labels)


def coins() -> Sample:
    """Return scikit-image's photograph of Greek coins, 384x303 pixels, with 24 labels that were checked by eye.

    The labels follow scikit-image's tutorial "Comparing edge-based and region-based segmentation": a watershed of the
    Sobel gradient that starts from certain background (< 30) and certain coin (> 150), with holes filled. The borders
    are accurate to about a pixel.

    Raises:
        MissingDependencyError: scikit-image is not installed.
    """
    filters, segmentation, ndimage, photographs = _scikit_image()
    photograph = photographs.coins()
    markers = np.zeros(photograph.shape, np.int32)
    markers[photograph < 30] = 1
    markers[photograph > 150] = 2
    regions = segmentation.watershed(filters.sobel(photograph), markers)
    labels, _ = ndimage.label(ndimage.binary_fill_holes(regions == 2))
    large = np.bincount(labels.ravel()) >= _MIN_COIN_AREA
    large[0] = False
    labels, _ = ndimage.label(large[labels])
    return Sample("coins", Image.fromarray(photograph).convert("RGB"), labels)


def cell() -> Sample:
    """Return scikit-image's micrograph of one floating cell, 550x660 pixels, labelled by Otsu's threshold.

    Raises:
        MissingDependencyError: scikit-image is not installed.
    """
    filters, _, _, photographs = _scikit_image()
    micrograph = photographs.cell()
    labels = (micrograph > filters.threshold_otsu(micrograph)).astype(np.uint8)
    return Sample("cell", Image.fromarray(micrograph).convert("RGB"), labels)


def _generated(name: str, about: str, draw: Callable[[int], Sample], count: int | None, seed: int) -> Dataset:
    """Return a data set of generated scenes, of which each seed has a range of its own."""
    count = _DEFAULT_SCENES if count is None else count
    if count > _SCENES_PER_SEED:
        raise ConfigurationError(f"a seed has {_SCENES_PER_SEED} generated scenes: give a count of at most that many")
    first = seed * _SCENES_PER_SEED
    return Dataset(name, about, tuple(partial(draw, number) for number in range(first, first + count)))


def _scikit_image() -> tuple[Any, Any, Any, Any]:
    """Import the packages that the photographs need. The photographs are part of scikit-image's wheel: no download."""
    try:
        from scipy import ndimage
        from skimage import data, filters, segmentation
    except ImportError as error:
        raise missing("this data set needs", "evaluate", error) from error
    return filters, segmentation, ndimage, data
