"""Clicks and boxes as tensor operations."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("cv2")
import torch

from triton_sam.train import tensor_prompts

pytestmark = pytest.mark.nightly  # code of tools

SIDE = 256  # pixels of the frame; maps have 64 cells


def rectangle(top: int, bottom: int, left: int, right: int) -> torch.Tensor:
    region = torch.zeros(64, 64, dtype=torch.bool)
    region[top:bottom, left:right] = True
    return region


class TestClicks:
    def test_they_are_inside(self):
        torch.manual_seed(0)
        regions = torch.stack([rectangle(3, 9, 40, 60), rectangle(50, 51, 0, 64)]).repeat(100, 1, 1)
        clicks = tensor_prompts.click_inside(regions, SIDE)
        cells = (clicks / 4).long()
        assert regions[torch.arange(len(regions)), cells[:, 1], cells[:, 0]].all()

    def test_half_of_them_are_at_the_centre(self):
        torch.manual_seed(0)
        clicks = tensor_prompts.click_inside(rectangle(10, 31, 20, 41).expand(400, -1, -1), SIDE)
        central = ((clicks / 4).floor() == torch.tensor([30.0, 20.0])).all(1).float().mean()
        assert 0.4 < central < 0.6


class TestBoxes:
    def test_they_enclose_their_regions(self):
        torch.manual_seed(0)
        regions = rectangle(10, 30, 20, 50).expand(500, -1, -1)
        boxes = tensor_prompts.shaken_boxes(regions, SIDE)
        exact = torch.tensor([[80.0, 40.0], [200.0, 120.0]])
        steady = (boxes == exact).flatten(1).all(1).float().mean()
        assert 0.2 < steady < 0.4
        assert torch.allclose(boxes.mean(0), exact, atol=1.5)
        assert (boxes - exact).abs().max() <= 20 * SIDE / 1024


class TestCorrections:
    def test_they_hit_the_error(self):
        torch.manual_seed(0)
        target = rectangle(10, 30, 20, 50).expand(300, -1, -1)
        mask = rectangle(10, 30, 35, 60).expand(300, -1, -1)
        points, labels = tensor_prompts.correction_clicks(mask, target, SIDE)
        column = points[:, 0] / 4
        assert ((column >= 20) & (column < 35))[labels == 1].all()
        assert ((column >= 50) & (column < 60))[labels == 0].all()
        assert 0.5 < labels.mean() < 0.7  # the missing part is 15 of 25 columns

    def test_without_an_error_they_confirm(self):
        target = rectangle(10, 30, 20, 50)[None]
        points, labels = tensor_prompts.correction_clicks(target, target, SIDE)
        assert labels == 1
        assert target[0, int(points[0, 1] / 4), int(points[0, 0] / 4)]
