"""The losses and optimizers of the training, compared with values computed by hand and with torch."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.nightly  # code of tools

pytest.importorskip("cv2")


@pytest.mark.export
class TestLosses:
    """The expected values are computed by hand for masks of 4 pixels, of which the object covers the first two."""

    TARGET = ((1.0, 1.0), (0.0, 0.0))

    @pytest.fixture
    def losses(self, trainer_module):
        from triton_sam.train import losses

        return losses

    def logits(self, *answers, sure=20.0):
        """Return the logits (1, N, 2, 2) of N masks, each given by four values of 0 or 1."""
        import torch

        return (torch.tensor(answers, dtype=torch.float32).reshape(1, -1, 2, 2) * 2 - 1) * sure

    def loss(self, losses, logits, scores, object_logit=0.0, present=1.0, ambiguous=True):
        import torch

        from triton_sam.train.network import Prediction

        prediction = Prediction(logits, torch.tensor([scores]), torch.tensor([object_logit]))
        loss, iou = losses.prompt_loss(
            prediction, torch.tensor([self.TARGET]), torch.tensor([present]), torch.tensor([ambiguous])
        )
        return float(loss), iou[0].tolist()

    def test_each_loss_has_the_value_computed_by_hand(self, losses):
        import torch

        target = torch.tensor(self.TARGET)[None]
        right, half = self.logits((1, 1, 0, 0))[0], self.logits((1, 0, 0, 0))[0]
        assert float(losses.focal_loss(right, target)) == pytest.approx(0, abs=1e-6)
        assert float(losses.focal_loss(half, target)) == pytest.approx(
            0.25 * 20 / 4, rel=1e-3
        )  # one of four pixels is wrong, with a cross entropy of 20
        unsure = torch.zeros(1, 2, 2)
        assert float(losses.focal_loss(unsure, target)) == pytest.approx(
            0.5 * 0.25 * np.log(2)
        )  # the mean of alpha is 1/2
        assert float(losses.dice_loss(right, target)) == pytest.approx(0, abs=1e-6)
        assert float(losses.dice_loss(half, target)) == pytest.approx(1 - 3 / 4)
        assert losses.mask_iou(torch.cat([right, half]), target.expand(2, 2, 2)).tolist() == [1.0, 0.5]
        assert float(losses.mask_iou(unsure, unsure)[0]) == 1.0
        outline = torch.tensor(
            [[[1.0, 0.4], [0.0, 0.0]]]
        )  # the object covers less than half of the second cell, which therefore does not count
        assert losses.mask_iou(right, outline).tolist() == [0.5]

    def test_only_the_best_multimask_counts_and_with_half_weight_for_a_clear_prompt(self, losses):
        right, half, none = (1, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0)
        scores = [1.0, 0.0, 0.5, 0.5]  # the true IoUs, so that the scores add no loss
        logits = self.logits(right, none, half, half)
        wrong = losses.FOCAL_WEIGHT * 0.25 * 20 / 4 + losses.DICE_WEIGHT * 0.25  # the loss of the mask `half`
        object_loss = np.log(2)
        loss, iou = self.loss(losses, logits, scores)
        assert iou == [1.0, 0.0, 0.5, 0.5]
        assert loss == pytest.approx(wrong + object_loss, rel=1e-3)
        clear, _ = self.loss(losses, logits, scores, ambiguous=False)
        assert clear == pytest.approx(losses.MULTIMASK_WEIGHT_LATER * wrong + object_loss, rel=1e-3)


@pytest.mark.export
class TestMuon:
    def test_steps_equal_those_of_torch_within_the_precision_of_bfloat16(self, trainer_module):
        import torch

        from triton_sam.train.optimizer import Muon

        if not hasattr(torch.optim, "Muon"):
            pytest.skip("torch older than 2.9")
        torch.manual_seed(0)
        start = torch.randn(64, 128) * 0.1
        ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
        optimizers = (
            Muon([ours], 0.02, 0.1),
            torch.optim.Muon([theirs], 0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        )
        for _ in range(3):
            ours.grad = torch.randn_like(start)
            theirs.grad = ours.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        moved = (ours - start).abs().mean()
        assert (ours - theirs).abs().mean() < 0.05 * moved
        assert moved > 0.005
