"""Training examples from scenes: which seeds may be used, and random crops, rotations and colours."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from triton_sam.errors import ConfigurationError
from triton_sam.scenes.canvas import Scene
from triton_sam.scenes.scenes import HELD_OUT_SEED


def training_seed(seed: int) -> int:
    """Check that a seed is not held out, and return it."""
    if not 0 <= seed < HELD_OUT_SEED:
        raise ConfigurationError(
            f"seed {seed} cannot be used for training: use seeds from 0 to {HELD_OUT_SEED - 1}, since later seeds are "
            "held out"
        )
    return seed


def spread(seed: int) -> float:
    """Return a number in 0..1 for a seed; numbers of successive seeds are evenly spread."""
    return seed * 0.6180339887 % 1  # multiples of the golden ratio


def augment(rng: np.random.Generator, scene: Scene, size: int, min_crop: float, whole_share: float = 0.4) -> Scene:
    """Crop, resize, rotate, flip and recolour a square scene at random.

    Args:
        min_crop: minimum side of a crop, as a share of the scene's side. The logarithm of the share is uniformly
            distributed, so that all scales are equally frequent.
        whole_share: probability that the scene is not cropped, 0..1.
    """
    side = scene.image.shape[0]
    crop = side if rng.random() < whole_share else int(side * min_crop ** rng.random())
    top, left = (int(n) for n in rng.integers(0, side - crop + 1, 2))
    window = (slice(top, top + crop), slice(left, left + crop))
    cut = resize_scene(Scene(scene.image[window], scene.labels[window], scene.parts[window]), size)
    turns, flip = int(rng.integers(4)), rng.random() < 0.5
    image, labels, parts = (np.rot90(array, turns) for array in (cut.image, cut.labels, cut.parts))
    if flip:
        image, labels, parts = image[:, ::-1], labels[:, ::-1], parts[:, ::-1]
    return Scene(recolour(rng, np.asarray(image, np.uint8)), np.ascontiguousarray(labels), np.ascontiguousarray(parts))


def resize_scene(scene: Scene, size: int) -> Scene:
    """Resize a square scene to another side in pixels.

    The label maps use INTER_NEAREST_EXACT, since INTER_NEAREST would shift them by up to half a pixel.
    """
    smooth = cv2.INTER_AREA if scene.image.shape[0] > size else cv2.INTER_LINEAR
    image, labels, parts = (
        np.asarray(cv2.resize(array, (size, size), interpolation=how), np.uint8)
        for array, how in (
            (scene.image, smooth),
            (scene.labels, cv2.INTER_NEAREST_EXACT),
            (scene.parts, cv2.INTER_NEAREST_EXACT),
        )
    )
    return Scene(image, labels, parts)


def recolour(rng: np.random.Generator, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Change gamma, contrast and brightness randomly; sometimes swap or invert the channels, or make them grey.

    Args:
        image: uint8 (H, W, 3), not modified.

    Returns:
        uint8 (H, W, 3).
    """
    channels = image[..., rng.permutation(3)] if rng.random() < 0.5 else image
    table = np.linspace(0, 1, 256) ** np.exp(rng.normal(0, 0.25))
    if rng.random() < 0.25:
        table = 1 - table
    table = np.clip((table - 0.5) * rng.uniform(0.6, 1.25) + 0.5 + rng.normal(0, 0.06), 0, 1)
    changed: NDArray[np.uint8] = (table * 255 + 0.5).astype(np.uint8)[channels]
    if rng.random() < 0.15:
        grey = (changed @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)
        changed = np.repeat(grey[..., None], 3, axis=2)
    return np.ascontiguousarray(changed)
