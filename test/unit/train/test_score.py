"""The training of the head of the score: its inputs, its loss, its measures, and the file that it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam.scenes.scenes import generate_scene

pytestmark = pytest.mark.nightly  # code of tools

SIDE = 128
CHECKPOINT = Path(__file__).parents[3] / "checkpoints" / "sam2.1_hiera_micro.pt"


@pytest.fixture(scope="module")
def model(trainer_module):
    """A model with fresh weights for frames of 128 px."""
    import torch

    from triton_sam.export.sam2.recipe import EXPORTER
    from triton_sam.train import network

    torch.manual_seed(0)
    fresh = EXPORTER.build("sam2.1_hiera_micro.yaml", SIDE)
    network.prepare(fresh)
    return fresh


def made_answers(count=600, seed=0):
    """Answers whose IoUs follow from their tokens."""
    import torch

    from triton_sam.train.score import CLICK, Answers

    random = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, 256, generator=random)
    return Answers(tokens, tokens[:, :4].sigmoid(), torch.full((count,), CLICK))


class TestAnswers:
    def test_the_tokens_are_those_that_the_head_reads(self, model):
        import torch

        from triton_sam.train import network
        from triton_sam.train.dataset import example_from_scene
        from triton_sam.train.prompts import draw_prompts
        from triton_sam.train.score import BOX, CLICK, THREE_CLICKS, TWO_CLICKS, answer_scene, head_of, join

        example = example_from_scene(generate_scene(3, SIDE, 0.2))
        found = join(answer_scene(model, example, network.Window(SIDE, SIDE), 3, np.random.default_rng(5)))
        assert found.kinds.tolist() == [BOX] * 3 + [CLICK] * 3 + [TWO_CLICKS] * 3 + [THREE_CLICKS] * 3
        drawn = draw_prompts(np.random.default_rng(5), example, 3, absent_share=0.0)
        window = network.Window(SIDE, SIDE)
        with torch.no_grad():
            image = network.normalise(torch.from_numpy(example.image[None]))
            features = network.encode(model, image, window).repeat(3)
            answer = network.decode(
                model, features, torch.from_numpy(drawn.clicks[:, None]), torch.ones(3, 1), None, window
            )
            clicks = found.chosen(found.kinds == CLICK)
            assert torch.allclose(head_of(model)(clicks.tokens), answer.iou, atol=1e-6)
            masks = torch.nn.functional.interpolate(answer.logits, size=(SIDE, SIDE), mode="bilinear") > 0
        truth = torch.from_numpy(drawn.regions)[:, None]
        union = (masks | truth).sum((2, 3))
        assert torch.allclose(clicks.iou, (masks & truth).sum((2, 3)) / union)

    def test_files_are_read_again(self, model, tmp_path, monkeypatch):
        import torch

        from triton_sam.train import score_data

        monkeypatch.setattr(score_data, "SHARD_SCENES", 1)
        amounts = score_data.Amounts(scenes=9, clips=0, objects=1, frame=SIDE, window=64)
        data = score_data.ScoreData(tmp_path, model, None, amounts)
        assert data.read(lambda _line: None, lambda: True) is None
        learned, measured = data.read(lambda _line: None, lambda: False)
        assert len(list(tmp_path.glob("drawn_*.npz"))) == 9
        assert len(measured["drawn"].tokens) == 2 * 4  # files 0 and 8
        assert 7 * 4 < len(learned["drawn"].tokens) <= 7 * 4 * 4  # a window may show no object
        assert not set(map(tuple, learned["drawn"].tokens.tolist())) & set(
            map(tuple, measured["drawn"].tokens.tolist())
        )
        monkeypatch.setattr(score_data, "answer_scene", None)  # the second time, nothing is asked
        again, _ = data.read(lambda _line: None, lambda: False)
        assert torch.equal(again["drawn"].tokens, learned["drawn"].tokens)


class TestTraining:
    def test_a_trained_head_ranks_masks_that_it_has_not_seen(self, model):
        import copy

        from triton_sam.train.score import head_of, train_head
        from triton_sam.train.score_measure import measure

        head = copy.deepcopy(head_of(model))
        unseen = made_answers(seed=1)
        before = measure(head, unseen)
        train_head(head, made_answers(2000), epochs=20, rate=1e-3)
        after = measure(head, unseen)
        assert after.candidates > max(0.6, before.candidates + 0.3)
        assert after.by_score > before.by_score + 0.05
        assert after.error < 0.7 * before.error


class TestCommand:
    def test_only_the_head_differs_in_the_file(self, trainer_module, tmp_path, monkeypatch, capsys):
        import torch

        from triton_sam.train import score_command, score_data
        from triton_sam.train.score import HEAD

        answers = {"drawn": made_answers(64)}
        monkeypatch.setattr(score_data.ScoreData, "read", lambda *_arguments: (answers, answers))
        arguments = ["--init", str(CHECKPOINT), "--out", str(tmp_path), "--epochs", "1"]
        assert score_command.main(arguments) == 0
        before = torch.load(CHECKPOINT, weights_only=True)["model"]
        after = torch.load(tmp_path / "sam2.1_hiera_micro.pt", weights_only=True)["model"]
        assert list(after) == list(before)
        differing = {name for name in before if not torch.equal(before[name], after[name])}
        assert differing
        assert all(name.startswith(HEAD) for name in differing)
        assert all(after[name].dtype == before[name].dtype for name in before)
        assert "1 of the answers, drawn: candidates" in capsys.readouterr().out
        assert (tmp_path / "scores.json").is_file()
