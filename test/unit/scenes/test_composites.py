"""Composites: the same for a seed, with exact masks, and from materials that are either held out or not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cv2")
from support.materials import write_materials

from triton_sam.errors import ConfigurationError
from triton_sam.scenes.composites import generate_composite, held_out_composite
from triton_sam.scenes.materials import Materials

pytestmark = pytest.mark.nightly  # code of tools

SEEDS = range(16)


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return Materials(write_materials(tmp_path_factory.mktemp("materials")))


def test_objects_are_disjoint_and_parts_lie_inside_their_object(materials):
    for seed in SEEDS:
        scene = generate_composite(materials, seed, 160, 0.8)
        assert scene.image.shape == (160, 160, 3)
        masks, parents = scene.masks, scene.parents
        assert len(masks) == len(parents)
        assert masks.any((1, 2)).all()
        assert masks[parents < 0].sum(0).max(initial=0) <= 1
        for mask, parent in zip(masks, parents, strict=True):
            assert parent < 0 or not (mask & ~masks[parent]).any()


def test_a_mask_is_where_the_image_changed(tmp_path, monkeypatch):
    """Without the camera's noise, the image differs from the background at most of an object's pixels."""
    from triton_sam.scenes import textures

    monkeypatch.setattr(textures, "camera", lambda _rng, image, _difficulty: (image * 255).astype(np.uint8))
    plain = Materials(write_materials(tmp_path))
    # The ground is black, the texture of an object is grey.
    monkeypatch.setattr(
        plain, "photograph", lambda _rng, shape: np.full((*shape, 3), 0 if shape == (192, 192) else 128, np.uint8)
    )
    seen = 0
    for seed in SEEDS:
        scene = generate_composite(plain, seed, 192, 0.2)
        drawn = scene.image.max(2) > 0
        objects = scene.labels > 0
        if drawn.any() and objects.any():
            seen += 1
            assert (drawn & objects).sum() / objects.sum() > 0.6
            assert (drawn & ~objects).sum() / (~objects).sum() < 0.2
    assert seen > 5


def test_held_out_materials_and_others_are_never_mixed(tmp_path):
    folder = write_materials(tmp_path, held_out=True)
    with pytest.raises(ConfigurationError, match="contains no cutout"):
        Materials(folder)
    scene = held_out_composite(Materials(folder, held_out=True), 3, 128)
    assert scene.labels.max() > 0
