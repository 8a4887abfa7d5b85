"""Training from a teacher: its decoder, the targets of prompts, the two phases, and the command."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("torch")
from support.materials import write_materials

from triton_sam.scenes.scenes import generate_scene

pytest.importorskip("sam2")
pytest.importorskip("mobile_sam")
import torch

from triton_sam.export.sam2.recipe import EXPORTER
from triton_sam.train import distil, distil_command, network, targets, teacher
from triton_sam.train.stages import Stage, View
from triton_sam.train.trainer import Settings

pytestmark = pytest.mark.nightly  # code of tools

SIDE = 128
CONFIG = "sam2.1_hiera_micro.yaml"


@pytest.fixture(scope="module")
def micro_teacher(trainer_module):
    """A small teacher with random weights."""
    return teacher.Teacher(None, "micro", random_seed=3)


@pytest.fixture
def model(trainer_module):
    """A model with fresh weights."""
    torch.manual_seed(0)
    fresh = EXPORTER.build(CONFIG, 1024)
    network.prepare(fresh)
    return fresh


class FakePool:
    """Examples of 128 px; the first channel of their embeddings is the red of their cells, as a share of 1."""

    def __init__(self, count: int, scenes: bool) -> None:
        rng = np.random.default_rng(int(scenes))
        cells = torch.from_numpy(rng.integers(0, 255, (count, SIDE // 16, SIDE // 16, 3), np.uint8))
        self.tensors = {"image": cells.repeat_interleave(16, 1).repeat_interleave(16, 2)}
        self.embeddings = torch.zeros(count, 256, SIDE // 16, SIDE // 16)
        self.embeddings[:, 0] = cells[..., 0] / 255
        if scenes:
            drawn = [generate_scene(number, SIDE // 2, 0.2) for number in range(count)]
            self.tensors["labels"] = torch.from_numpy(np.stack([scene.labels for scene in drawn]))
            self.tensors["parts"] = torch.from_numpy(np.stack([scene.parts for scene in drawn]))

    def draw(self, rng: np.random.Generator, count: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(len(self.embeddings), size=count))


class FakeImages:
    def __init__(self) -> None:
        self.photographs, self.drawn = FakePool(3, False), FakePool(2, True)

    def draw_scenes(self, rng: np.random.Generator) -> FakePool:
        return self.drawn


class TestTeacher:
    def test_its_decoder_fits_sam2(self, micro_teacher, model):
        adopted = micro_teacher.decoder_state()
        before = set(model.state_dict())
        teacher.adopt_decoder(model, micro_teacher)
        after = model.state_dict()
        assert adopted.keys() <= before
        assert len(adopted) > 100
        scaled = "sam_mask_decoder.iou_prediction_head.layers.2."
        for name, value in adopted.items():
            assert name.startswith(scaled) or torch.equal(after[name], value), name
        assert torch.equal(after[f"{scaled}weight"], 4 * adopted[f"{scaled}weight"])
        assert not after["sam_mask_decoder.conv_s0.weight"].any()


@pytest.fixture
def asked(model, micro_teacher):
    """The decoder that answers for the teacher."""
    return targets.teacher_decoder(model, micro_teacher)


class TestTargets:
    def test_the_decoder_answers_as_the_teacher_does(self, asked, micro_teacher):
        embeddings = torch.randn(2, 256, 64, 64)
        points = torch.rand(2, 3, 2) * 1024
        found = targets.ask(asked, embeddings, points)
        official = micro_teacher._model
        for image in range(2):
            sparse, dense = official.prompt_encoder(
                points=(points[image][:, None], torch.ones(3, 1)), boxes=None, masks=None
            )
            with torch.no_grad():
                masks, _ = official.mask_decoder(
                    image_embeddings=embeddings[image : image + 1],
                    image_pe=official.prompt_encoder.get_dense_pe(),
                    sparse_prompt_embeddings=sparse,
                    dense_prompt_embeddings=dense,
                    multimask_output=True,
                )
            assert torch.allclose(found.logits[3 * image : 3 * image + 3, 1:], masks, atol=1e-3)


class TestPhases:
    @staticmethod
    def settings(steps):
        return Settings((Stage(views=(View(SIDE, SIDE),), steps=steps),), optimizer="muon", warm_up=2)

    def test_the_gradient_of_rounds_equals_that_of_their_sum(self, model, asked, monkeypatch):
        """The encoder gets the gradients of the decoder's graphs, which are freed one by one."""
        trainer = distil.DistilTrainer(model, self.settings(8), FakeImages(), distil.Mix(1, 1, 2), asked)
        window = network.Window(SIDE, SIDE)
        network.set_window(model, window)
        pool = trainer._images.drawn
        features = network.encode(model, network.normalise(pool.tensors["image"]), window)
        found = targets.scene_targets(pool.tensors["labels"], pool.tensors["parts"], 2)
        points, labels, _ = trainer._first_prompts(found, window)
        answer = network.decode(model, features.repeat(2), points, labels, None, window)
        loss, _ = targets.target_loss(answer, found, (labels == -2).any(1), True)
        maps = (features.embedding, *features.high_res)
        expected = torch.autograd.grad(loss, maps)
        monkeypatch.setattr(distil, "_ROUND_SHARES", (1.0, 0.0, 0.0))
        monkeypatch.setattr(trainer, "_first_prompts", lambda *_arguments: (points, labels, (labels == 2).any(1)))
        gradients, measured = trainer._learn_masks(np.random.default_rng(0), features, found, window)
        assert torch.allclose(measured["masks"], loss)
        for ours, theirs in zip(gradients, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


NEEDED = ["--teacher", "t.pt", "--materials", "m", "--init", "i.pt"]


def test_the_command_runs_both_phases_and_resumes(tmp_path, model, micro_teacher, monkeypatch, capsys):
    materials = write_materials(tmp_path / "materials")
    trainer = distil.DistilTrainer(model, TestPhases.settings(1), FakeImages(), distil.Mix(1, 1))
    trainer.export(tmp_path / "init.pt")
    monkeypatch.setattr(distil_command, "Teacher", lambda _path: micro_teacher)
    out = tmp_path / "out"
    arguments = [
        "--teacher", "t.pt", "--materials", str(materials), "--init", str(tmp_path / "init.pt"), "--out", str(out),
        "--photographs", "1", "--composites", "1", "--drawn", "1", "--images", "2", "--prompts", "2",
        "--embeddings", "1", "--masks", "1", "--device", "cpu", "--workers", "1",
    ]  # fmt: skip
    assert distil_command.main(arguments) == 0
    assert {path.name for path in out.iterdir()} == {"embeddings", "masks"}  # the files of the images are gone
    first = (out / "masks" / "sam2.1_hiera_micro.pt").read_bytes()
    assert "relative error" in capsys.readouterr().out
    assert distil_command.main(arguments) == 0
    assert "resuming at step 1" in capsys.readouterr().out
    assert (out / "masks" / "sam2.1_hiera_micro.pt").read_bytes() == first
