"""Drawn clips: the same for a seed, with objects that cross and one that is hidden for a moment."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam.errors import ConfigurationError
from triton_sam.scenes.clip import OBJECTS, generate_clip


@pytest.mark.parametrize("seed", [0, 1])
def test_same_seed_gives_the_same_clip(seed: int) -> None:
    one, other = (generate_clip(seed, frames=4, size=96) for _ in range(2))
    assert hashlib.sha256(one.images.tobytes()).digest() == hashlib.sha256(other.images.tobytes()).digest()
    assert np.array_equal(one.labels, other.labels)


def test_other_seeds_give_other_clips() -> None:
    one, other = (generate_clip(seed, frames=2, size=96) for seed in (0, 1))
    assert np.abs(one.images.astype(int) - other.images).mean() > 5


@pytest.mark.parametrize("seed", range(6))
def test_objects_move_cross_and_hide(seed: int) -> None:
    clip = generate_clip(seed, size=128)
    areas = np.array([[clip.truth(frame, number).sum() for number in range(1, OBJECTS + 1)] for frame in range(32)])
    assert (areas[0] > 100).all()
    assert (areas[-1] > 100).all()
    hidden = np.flatnonzero(areas[:, 0] == 0)
    assert 1 <= len(hidden) <= 8
    assert hidden.min() > 8
    assert hidden.max() < 24
    assert len(hidden) == hidden.max() - hidden.min() + 1
    middles = [np.argwhere(clip.truth(frame, 1)).mean(axis=0)[1] for frame in (0, 31)]
    assert middles[1] - middles[0] > 64


@pytest.mark.parametrize(("seed", "frames", "size"), [(-1, 32, 512), (0, 1, 512), (0, 32, 63)])
def test_arguments_out_of_range(seed: int, frames: int, size: int) -> None:
    with pytest.raises(ConfigurationError, match="cannot draw a clip"):
        generate_clip(seed, frames, size)
