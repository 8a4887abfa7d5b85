"""Drawn scenes and clips: the same for a seed; disjoint objects with parts; objects that cross, and one that hides."""

import hashlib

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam.errors import ConfigurationError
from triton_sam.scenes import scenes
from triton_sam.scenes.clip import generate_clip

SEEDS = range(scenes.HELD_OUT_SEED + 500, scenes.HELD_OUT_SEED + 516)


def test_a_seed_always_gives_the_same_scene():
    first, second = (scenes.generate_scene(7, 128) for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.masks, second.masks)
    assert not np.array_equal(first.image, scenes.generate_scene(8, 128).image)


def test_objects_are_disjoint_and_parts_lie_inside_their_object():
    for seed in SEEDS:
        scene = scenes.generate_scene(seed, 160)
        assert scene.image.shape == (160, 160, 3)
        assert scene.image.dtype == np.uint8
        masks, parents = scene.masks, scene.parents
        assert masks.dtype == bool
        assert len(masks) == len(parents) > 0
        assert masks.any((1, 2)).all()
        assert masks[parents < 0].sum(0).max() == 1
        for mask, parent in zip(masks, parents, strict=True):
            if parent >= 0:
                assert parents[parent] == -1
                assert not (mask & ~masks[parent]).any()
                assert mask.sum() < masks[parent].sum()


def test_arguments_out_of_range_are_refused():
    for seed, size, difficulty in [(-1, 128, 1.0), (0, 32, 1.0), (0, 128, 1.5)]:
        with pytest.raises(ConfigurationError):
            scenes.generate_scene(seed, size, difficulty)


@pytest.mark.parametrize("seed", [0, 1])
def test_same_seed_gives_the_same_clip(seed):
    one, other = (generate_clip(seed, frames=4, size=96) for _ in range(2))
    assert hashlib.sha256(one.images.tobytes()).digest() == hashlib.sha256(other.images.tobytes()).digest()
    assert np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("seed", range(6))
def test_objects_move_cross_and_hide(seed):
    clip = generate_clip(seed, size=128)
    areas = np.array([[clip.truth(frame, number).sum() for number in (1, 2, 3)] for frame in range(32)])
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
def test_arguments_out_of_range(seed, frames, size):
    with pytest.raises(ConfigurationError, match="cannot draw a clip"):
        generate_clip(seed, frames, size)
