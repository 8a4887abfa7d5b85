"""Drawn scenes and clips: the same for a seed; disjoint objects with parts; objects that cross, and one that hides."""

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam.errors import ConfigurationError
from triton_sam.scenes import scenes
from triton_sam.scenes.clip import generate_clip


def test_a_seed_always_gives_the_same_scene():
    first, second = (scenes.generate_scene(7, 128) for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.labels, second.labels)
    assert not np.array_equal(first.image, scenes.generate_scene(8, 128).image)


def test_objects_are_numbered_without_gaps_and_parts_lie_inside_one_object():
    for seed in range(scenes.HELD_OUT_SEED + 500, scenes.HELD_OUT_SEED + 516):
        scene = scenes.generate_scene(seed, 160)
        assert (scene.image.shape, scene.image.dtype) == ((160, 160, 3), np.uint8)
        areas = np.bincount(scene.labels.ravel())
        assert min(areas[1:]) >= 12
        for part in range(1, scene.parts.max() + 1):
            (owner,) = set(scene.labels[scene.parts == part])
            assert 0 < np.sum(scene.parts == part) < areas[owner] * (owner > 0)


def test_arguments_out_of_range_are_refused():
    for seed, size, difficulty in [(-1, 128, 1.0), (0, 32, 1.0), (0, 128, 1.5)]:
        with pytest.raises(ConfigurationError):
            scenes.generate_scene(seed, size, difficulty)


@pytest.mark.parametrize("seed", [0, 1])
def test_same_seed_gives_the_same_clip(seed):
    one, other = (generate_clip(seed, frames=4, size=96) for _ in range(2))
    assert np.array_equal(one.images, other.images)
    assert np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("seed", range(6))
def test_objects_move_cross_and_hide(seed):
    clip = generate_clip(seed, size=128)
    areas = np.array([[(labels == number).sum() for number in (1, 2, 3)] for labels in clip.labels])
    assert (areas[0] > 100).all()
    assert (areas[-1] > 100).all()
    hidden = np.flatnonzero(areas[:, 0] == 0)
    assert 1 <= len(hidden) <= 8
    assert hidden.min() > 8
    assert hidden.max() < 24
    assert len(hidden) == hidden.max() - hidden.min() + 1
    middles = [np.argwhere(clip.labels[frame] == 1).mean(axis=0)[1] for frame in (0, 31)]
    assert middles[1] - middles[0] > 64


@pytest.mark.parametrize(("seed", "frames", "size"), [(-1, 32, 512), (0, 1, 512), (0, 32, 63)])
def test_arguments_out_of_range(seed, frames, size):
    with pytest.raises(ConfigurationError, match="cannot draw a clip"):
        generate_clip(seed, frames, size)
