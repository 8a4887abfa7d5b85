"""Pictures whose objects are known: generated scenes, photographs of scikit-image, or a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._common.extras import missing
from ..errors import ConfigurationError
from .samples import Dataset, Sample

SCENE_SIZE = 512
"""Side of a synthetic scene, pixels."""

_SCENES = 50
_SEEDS_A_SET = 10_000
_GOLDEN_RATIO = 0.6180339887  # its multiples, modulo 1, cover 0..1 evenly for any run of numbers
_MIN_COIN = 100  # pixels; the smallest of the 24 coins has 1077, a speck of dust as bright as a coin has 2


def open_dataset(name: str, count: int | None = None, seed: int = 0) -> Dataset:
    """Open a data set without loading its pictures.

    Args:
        name: "synthetic" (generated, never used for training), "coins" (24 coins in one photograph), "cells" (one cell
            in one micrograph), or a folder of pictures with label masks, see evaluation.folder.open_folder.
        count: most pictures; None: 50 synthetic scenes, or all there are.
        seed: names the set of synthetic scenes, and the choice of ``count`` pictures of a folder.

    Raises:
        ConfigurationError: no such data set or folder, a count below 1, or a negative seed.
        InputError: a folder whose files cannot be used.
        MissingDependencyError: the evaluate extra is not installed.
    """
    if seed < 0 or (count is not None and count < 1):
        raise ConfigurationError("the seed must be at least 0 and the count at least 1")
    if name == "synthetic":
        return _synthetic(_SCENES if count is None else count, seed)
    if name == "coins":
        return Dataset(name, "scikit-image's photograph of 24 coins, labels by its watershed tutorial", (coins,))
    if name == "cells":
        return Dataset(name, "scikit-image's micrograph of one cell, label by Otsu's threshold", (cell,))
    from .folder import open_folder

    return open_folder(Path(name), count, seed)


def synthetic(number: int) -> Sample:
    """Draw a held-out scene, 0, 1, ...; its objects (not their parts) are the labels.

    The difficulty runs evenly through 0..1, so that few numbers cover easy and hard scenes alike.

    Raises:
        MissingDependencyError: OpenCV is not installed.
    """
    from ..scenes.scenes import HELD_OUT_SEED, generate_scene

    seed = HELD_OUT_SEED + number
    scene = generate_scene(seed, SCENE_SIZE, difficulty=number * _GOLDEN_RATIO % 1)
    return Sample(f"scene {seed}", Image.fromarray(scene.image), scene.labels)


def coins() -> Sample:
    """Return scikit-image's photograph of Greek coins (384x303) with 24 labels, checked by eye.

    The labels follow scikit-image's tutorial "Comparing edge-based and region-based segmentation": watershed of the
    Sobel elevation from sure background (< 30) and sure coin (> 150), holes filled. Borders are good to about a pixel.

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
    large = np.bincount(labels.ravel()) >= _MIN_COIN
    large[0] = False
    labels, _ = ndimage.label(large[labels])
    return Sample("coins", Image.fromarray(photograph).convert("RGB"), labels)


def cell() -> Sample:
    """Return scikit-image's micrograph of one floating cell (550x660), labelled by Otsu's threshold.

    Raises:
        MissingDependencyError: scikit-image is not installed.
    """
    filters, _, _, photographs = _scikit_image()
    micrograph = photographs.cell()
    labels = (micrograph > filters.threshold_otsu(micrograph)).astype(np.uint8)
    return Sample("cell", Image.fromarray(micrograph).convert("RGB"), labels)


def _synthetic(count: int, seed: int) -> Dataset:
    if count > _SEEDS_A_SET:
        raise ConfigurationError(f"a seed names {_SEEDS_A_SET} synthetic scenes: ask for that many at the most")
    first = seed * _SEEDS_A_SET
    loaders = tuple((lambda number=number: synthetic(number)) for number in range(first, first + count))
    return Dataset("synthetic", "generated scenes that were never used for training, exact labels", loaders)


def _scikit_image() -> tuple[Any, Any, Any, Any]:
    """Import what the photographs need; they come with the wheel, nothing is downloaded."""
    try:
        from scipy import ndimage
        from skimage import data, filters, segmentation
    except ImportError as error:
        raise missing("this data set needs", "evaluate", error) from error
    return filters, segmentation, ndimage, data
