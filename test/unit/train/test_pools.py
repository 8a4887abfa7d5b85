"""Images that other processes draw, and the images of a training from a teacher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("torch")
import torch
from support.pool_draws import draw_number, end_process, fail

from triton_sam.errors import ConfigurationError
from triton_sam.train import pools

pytest.importorskip("mobile_sam")
pytest.importorskip("sam2")
from triton_sam.scenes.scenes import generate_scene
from triton_sam.train import clip_pool, images

pytestmark = pytest.mark.nightly  # code of tools

SHAPES = {"image": (8, 8, 3)}


def mean(batch: torch.Tensor) -> torch.Tensor:
    """Embed each image as its mean."""
    return batch.float().mean((1, 2, 3))[:, None, None, None]


def filled(folder: Path, draw: pools.Draw, count: int, embed=None, should_stop=lambda: False) -> pools.Pool | None:
    pool = pools.Pool(folder, draw, SHAPES, count, "cpu")
    with pools.workers(1) as executor:
        pool.start(executor, folder)
        return pool if pool.take(embed, should_stop) else None


class TestPool:
    def test_processes_draw_every_image(self, tmp_path):
        pool = filled(tmp_path, draw_number, 30, mean)
        assert pool.tensors["image"][:, 0, 0, 0].tolist() == list(range(30))
        assert pool.embeddings.flatten().tolist() == list(range(30))
        drawn = pool.draw(np.random.default_rng(0), 500)
        assert set(drawn.tolist()) == set(range(30))

    def test_an_ended_process_is_an_error(self, tmp_path):
        with pytest.raises(ConfigurationError, match="enough memory"):
            filled(tmp_path, end_process, 3)

    def test_the_error_of_a_process_arrives(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"x\.png"):
            filled(tmp_path, fail, 3)


class TestImages:
    def test_the_first_view_of_a_drawn_scene_shows_all_of_it(self):
        view, part = images.draw_scene(Path(), 0), images.draw_scene(Path(), 1)
        scene = generate_scene(images._FIRST_SEED, 512, images.spread(images._FIRST_SEED))
        numbers, areas = np.unique(scene.labels, return_counts=True)
        assert [areas.tolist(), numbers.tolist()] == [
            found.tolist() for found in reversed(np.unique(view["labels"], return_counts=True))
        ]
        assert (part["labels"] != view["labels"]).any()


class TestClipPool:
    def test_clips_equal_those_of_the_folder(self, tmp_path, trainer_module):
        from triton_sam.export.sam2.model import build_model
        from triton_sam.train.clips import ClipStore

        model = build_model("sam2.1_hiera_micro.yaml", clip_pool.SIDE)
        pool = clip_pool.ClipPool(tmp_path / "pool", model, 1)
        assert pool.fill(1, lambda: False)
        found, expected = pool.clip(0), ClipStore(tmp_path / "store", model).clip(0)
        assert np.array_equal(found.labels, expected.labels)
        assert torch.equal(found.embedding, expected.embedding)
        assert pool.clip(0) is found
