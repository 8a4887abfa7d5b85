"""Synthetic scenes with exact instance masks: the training data of the small default model.

Objects are drawn from back to front together with a label map, so each mask is exactly the visible region of its
object. An object may have parts (a pattern, a nucleus, a spot). A click on a part may mean the part or the whole; SAM
predicts three masks because of this ambiguity (Kirillov et al., "Segment Anything", 2023, section 3).
"""

from __future__ import annotations

import numpy as np

from ..errors import ConfigurationError
from .canvas import Scene
from .kinds import KINDS

HELD_OUT_SEED = 10_000_000
"""Seeds from this number on are reserved for tests and measurements; training rejects them."""


def generate_scene(seed: int, size: int = 512, difficulty: float = 1.0) -> Scene:
    """Draw the scene of a seed. The same arguments give the same scene, byte for byte.

    Args:
        seed: number of the scene, at least 0. Scenes from `HELD_OUT_SEED` on are not used for training.
    """
    if seed < 0 or size < 64 or not 0 <= difficulty <= 1:
        raise ConfigurationError(
            f"cannot draw a scene for seed {seed}, size {size}, difficulty {difficulty}: the seed must be at least 0, "
            "the size at least 64 and the difficulty within 0..1"
        )
    rng = np.random.default_rng(seed)
    kinds = np.array([share for _, share in KINDS])
    draw = KINDS[int(rng.choice(len(KINDS), p=kinds / kinds.sum()))][0]
    return draw(rng, size, difficulty)
