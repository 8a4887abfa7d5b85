"""Drawn scenes: the same for a seed, with disjoint objects that have parts."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam.errors import ConfigurationError, MissingDependencyError
from triton_sam.scenes import scenes

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


def test_the_error_for_missing_opencv_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("triton_sam.scenes")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[evaluate\]"):
        importlib.import_module("triton_sam.scenes.scenes")
