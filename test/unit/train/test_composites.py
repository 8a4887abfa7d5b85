"""Training on composites: their cache, their share of the examples, and no clicks on their unknown background."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("torch")
from support.materials import write_materials

from triton_sam.errors import ConfigurationError
from triton_sam.train import source as source_module
from triton_sam.train.dataset import ScenePool, augment, composite_drawer, fill_cache
from triton_sam.train.source import Composites, SceneSource
from triton_sam.train.stages import View

pytestmark = pytest.mark.nightly  # code of tools

HELD_OUT = 10_000_000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder with one shard of drawn scenes and one of composites, both small."""
    monkeypatch.setattr("triton_sam.train.dataset.SHARD_SIZE", 2)
    monkeypatch.setattr("triton_sam.train.dataset.os.nice", lambda _: 0)
    monkeypatch.setattr(source_module, "FULL_SIZE", 64)
    monkeypatch.setattr(source_module, "EASY_SIZE", 32)
    materials = write_materials(tmp_path / "materials")
    fill_cache(tmp_path, 0, 1, 64, (0.0, 1.0))
    fill_cache(tmp_path / "composites", 0, 1, 64, (0.0, 1.0), composite_drawer(materials))
    return tmp_path


def test_held_out_materials_are_not_drawn(tmp_path):
    with pytest.raises(ConfigurationError, match="no cutout"):
        composite_drawer(write_materials(tmp_path, held_out=True))


def test_composites_have_their_share_of_the_examples(cache, monkeypatch):
    monkeypatch.setattr(SceneSource, "_ready", lambda _self: True)
    source = SceneSource(cache, [View(64, 64)], 0, 0, True, Composites(cache / "materials", 0, 0.5))
    try:
        rng = np.random.default_rng(0)
        complete = [source(rng, View(64, 128)).complete for _ in range(60)]
        assert 15 < sum(complete) < 45
    finally:
        source.close()


def test_augmentation_keeps_what_is_known_of_the_background(cache):
    rng = np.random.default_rng(0)
    example = ScenePool(cache / "composites", 64, complete=False).draw(rng)
    assert not augment(rng, example, 32, 0.5).complete


def test_the_background_of_a_composite_is_never_clicked(trainer_module, cache, monkeypatch):
    """A photograph in the background may show objects, so no prompt says that there is none."""
    shares = []

    def prompts(_rng, _example, _count, absent_share, boxes):
        shares.append(absent_share)

    monkeypatch.setattr(trainer_module, "draw_prompts", prompts)
    rng = np.random.default_rng(0)
    pools = [ScenePool(cache, 64), ScenePool(cache / "composites", 64, complete=False)]
    examples = iter([pool.draw(rng) for pool in pools])
    trainer = trainer_module.Trainer.__new__(trainer_module.Trainer)
    trainer.draw = lambda _rng, _view: next(examples)
    with pytest.raises(StopIteration):
        trainer._draw_batch(rng, View(64, 64), 0.25)
    assert shares == [0.25, 0.0]
