"""The input of a training run: the cache of scenes, and simulated prompts."""

from __future__ import annotations

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from triton_sam.errors import ConfigurationError  # noqa: E402
from triton_sam.scenes import scenes  # noqa: E402
from triton_sam.train import dataset, prompts  # noqa: E402

pytestmark = pytest.mark.nightly  # code of tools

SEEDS = range(scenes.HELD_OUT_SEED + 500, scenes.HELD_OUT_SEED + 516)


class TestDataset:
    def test_a_shard_of_held_out_seeds_is_neither_written_nor_read(self, tmp_path):
        with pytest.raises(ConfigurationError):
            dataset.write_shard(tmp_path / "x.npz", scenes.HELD_OUT_SEED, 64, (0.0, 1.0))
        (tmp_path / f"64_{scenes.HELD_OUT_SEED:08d}.npz").touch()
        with pytest.raises(ConfigurationError):
            dataset.ScenePool(tmp_path, 64)

    def test_augmentation_keeps_image_and_maps_together(self):
        labels = np.zeros((128, 128), np.uint8)
        labels[30:80, 40:100] = 1
        image = np.repeat(labels[..., None] * np.uint8(200), 3, axis=2)
        for seed in range(8):
            rng = np.random.default_rng(seed)
            changed = dataset.augment(rng, dataset.Example(image, labels, labels * 0), 96, 0.7)
            assert changed.image.shape == (96, 96, 3)
            inside = changed.image[cv2.erode(changed.labels, np.ones((5, 5))) == 1]
            outside = changed.image[cv2.dilate(changed.labels, np.ones((5, 5))) == 0]
            assert inside.std(0).max() < 2
            assert outside.std(0).max() < 2
            assert np.abs(inside.mean(0) - outside.mean(0)).min() > 20

    def test_resized_labels_lie_where_the_image_shows_the_object(self):
        """The centre of an object in the image is that in the label map, on average, since labels have whole pixels."""
        for side, size in [(300, 256), (170, 128), (85, 128), (400, 512)]:
            rng, offsets = np.random.default_rng(0), []
            for _ in range(40):
                top, left = rng.integers(1, side // 2, 2)
                height, width = rng.integers(5, side // 2, 2)
                labels = np.zeros((side, side), np.uint8)
                labels[top : top + height, left : left + width] = 1
                image = np.repeat(labels[..., None] * np.uint8(200), 3, axis=2)
                changed = dataset.resize_example(dataset.Example(image, labels, labels), size)
                for axis in (0, 1):
                    lines = changed.image[..., 0].sum(axis, dtype=float), changed.labels.sum(axis, dtype=float)
                    shown, marked = ((np.arange(size) * line).sum() / line.sum() for line in lines)
                    offsets.append(shown - marked)
            assert np.mean(offsets) == pytest.approx(0, abs=0.12)


class TestPrompts:
    def test_first_clicks_and_targets_belong_to_their_region(self):
        rng = np.random.default_rng(0)
        example = dataset.example_from_scene(scenes.generate_scene(SEEDS[0], 128, 0.2))
        drawn = prompts.draw_prompts(rng, example, 8, absent_share=0.0)
        assert drawn is not None
        assert drawn.targets.shape == (8, 32, 32)
        for region, target, (x, y) in zip(drawn.regions, drawn.targets, drawn.clicks, strict=True):
            assert region[int(y), int(x)]
            assert target.mean() == pytest.approx(region.mean(), rel=1e-4)

    def test_corrections_fall_into_the_error_region(self):
        rng = np.random.default_rng(0)
        target = np.zeros((1, 32, 32), np.float32)
        target[0, 8:20, 8:20] = 1
        for left in range(0, 28, 4):
            masks = np.zeros((1, 32, 32), bool)
            masks[0, 10:18, left : left + 6] = True
            points, labels = prompts.correction_clicks(rng, masks, target)
            column, row = (points[0] // prompts.CELL).astype(int)
            expected, masked = bool(target[0, row, column]), bool(masks[0, row, column])
            assert expected != masked
            assert labels[0] == float(expected)

    def test_without_an_error_the_click_is_inside_the_object(self):
        target = np.zeros((1, 32, 32), np.float32)
        target[0, 4:9, 4:9] = 1
        points, labels = prompts.correction_clicks(np.random.default_rng(0), target > 0.5, target)
        column, row = (points[0] // prompts.CELL).astype(int)
        assert target[0, row, column] == 1
        assert labels[0] == 1
