"""Synthetic scenes with exact instance masks: the training data of the small default model.

A scene is drawn back to front on a label map, so that every mask is exactly the visible region of its object. Objects
may carry parts (a pattern, a nucleus, a spot): a click on a part means the part or the whole, the ambiguity that the
three masks of SAM exist for (Kirillov et al., "Segment Anything", 2023, section 3).
"""

from __future__ import annotations

import numpy as np

from ..errors import ConfigurationError
from .canvas import Scene
from .kinds import KINDS

HELD_OUT_SEED = 10_000_000
"""Seeds from here on are for tests and figures; training refuses them."""


def generate_scene(seed: int, size: int = 512, difficulty: float = 1.0) -> Scene:
    """Draw the scene of a seed; the same arguments give the same scene, byte for byte.

    Args:
        seed: names the scene; from `HELD_OUT_SEED` on it is kept out of training.
        size: side of the square picture in pixels, at least 64.
        difficulty: 0 (few large, clear objects) to 1 (crowded, small, low contrast, blur, noise).

    Raises:
        ConfigurationError: a negative seed, a size below 64, or a difficulty outside 0..1.
    """
    if seed < 0 or size < 64 or not 0 <= difficulty <= 1:
        raise ConfigurationError(f"no scene for seed {seed}, size {size}, difficulty {difficulty}: see generate_scene")
    rng = np.random.default_rng(seed)
    kinds = np.array([share for _, share in KINDS])
    draw = KINDS[int(rng.choice(len(KINDS), p=kinds / kinds.sum()))][0]
    return draw(rng, size, difficulty)
