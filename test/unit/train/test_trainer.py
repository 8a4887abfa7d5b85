"""The training run: the network in windows of a frame, the training loop, resuming, stages, and the command."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam._common.bundle import checkout
from triton_sam.errors import ConfigurationError
from triton_sam.scenes import scenes
from triton_sam.train import dataset

pytestmark = pytest.mark.nightly  # code of tools

SCRIPT = checkout() / "scripts/train_micro.py"
SCENE = scenes.HELD_OUT_SEED + 503


def stage(size, steps, prompts=2):
    from triton_sam.train.stages import Stage, View

    return Stage(views=(View(size, size, images=1, prompts=prompts),), steps=steps)


def make_trainer(module, stages, seed=0, optimizer="adamw"):
    import torch

    from triton_sam.export.sam2.recipe import EXPORTER
    from triton_sam.train import network

    torch.manual_seed(seed)
    model = EXPORTER.build("sam2.1_hiera_micro.yaml", 1024)
    network.prepare(model)
    example = dataset.example_from_scene(scenes.generate_scene(SCENE, 64, 0.0))
    settings = module.Settings(stages, seed, optimizer, warm_up=2)
    return module.Trainer(model, settings, lambda rng, view: example)


@pytest.mark.export
class TestTrainer:
    def test_the_encoder_equals_the_official_one(self, trainer_module):
        import torch

        from triton_sam.export.sam2.recipe import EXPORTER
        from triton_sam.train import network

        torch.manual_seed(0)
        model = EXPORTER.build("sam2.1_hiera_micro.yaml", 1024)
        pixels = torch.randn(2, 3, 128, 128)
        with torch.no_grad():
            ours = network.encode(model, pixels, network.Window(128, 128))
            official = model.forward_image(pixels)["backbone_fpn"]
        assert torch.allclose(ours.high_res[0], official[0], atol=1e-5)
        assert torch.allclose(ours.high_res[1], official[1], atol=1e-5)
        assert torch.allclose(ours.embedding, official[2] + model.no_mem_embed.view(1, -1, 1, 1), atol=1e-5)

    def test_the_decoder_equals_the_official_one(self, trainer_module):
        import torch

        from triton_sam.export.sam2.recipe import EXPORTER
        from triton_sam.train import network

        torch.manual_seed(0)
        model = EXPORTER.build("sam2.1_hiera_micro.yaml", 1024).eval()
        window = network.Window(128, 128)
        network.set_window(model, window)
        points, labels = torch.rand(2, 2, 2) * 128, torch.tensor([[2.0, 3.0], [1.0, 0.0]])
        with torch.no_grad():
            features = network.encode(model, torch.randn(2, 3, 128, 128), window)
            ours = network.decode(model, features, points, labels, None, window)
            sparse, dense = model.sam_prompt_encoder(points=(points, labels), boxes=None, masks=None)
            logits, iou, _, present = model.sam_mask_decoder.predict_masks(
                image_embeddings=features.embedding,
                image_pe=model.sam_prompt_encoder.get_dense_pe(),
                sparse_prompt_embeddings=sparse,
                dense_prompt_embeddings=dense,
                repeat_image=False,
                high_res_features=list(features.high_res),
            )
        assert torch.allclose(ours.logits, logits, atol=1e-5)
        assert torch.allclose(ours.iou, iou, atol=1e-5)
        assert torch.allclose(ours.present, present[:, 0], atol=1e-5)

    def test_a_window_has_the_position_codes_of_its_place_in_the_frame(self, trainer_module):
        """After the block, the trunk has its own position codes again."""
        import torch

        from triton_sam.export.sam2.recipe import EXPORTER
        from triton_sam.train import network

        torch.manual_seed(0)
        model = EXPORTER.build("sam2.1_hiera_micro.yaml", 1024)
        trunk = model.image_encoder.trunk
        window = network.Window(128, 512, left=256, top=64)
        whole = trunk._get_pos_embed((128, 128))
        with network._window_positions(trunk, window):
            assert torch.equal(trunk._get_pos_embed((32, 32)), whole[:, 16:48, 64:96])
        assert torch.equal(trunk._get_pos_embed((128, 128)), whole)
        codes = model.sam_prompt_encoder.pe_layer((32, 32))[None]
        assert torch.equal(network._WindowDecoder(model, window)._positions(), codes[:, :, 4:12, 16:24])

    @pytest.mark.parametrize("optimizer", ["adamw", "muon"])
    def test_a_resumed_run_equals_an_uninterrupted_one(self, trainer_module, tmp_path, optimizer):
        stages = tuple(stage(size, 3) for size in (64, 128))
        whole = make_trainer(trainer_module, stages, optimizer=optimizer)
        whole.draw = lambda rng, view: dataset.example_from_scene(
            scenes.generate_scene(int(rng.integers(99)), view.size, 0.0)
        )
        whole.run(quiet=True)

        first = make_trainer(trainer_module, stages, optimizer=optimizer)
        first.draw = whole.draw
        for _ in range(2):
            first.step()
            first.progress.count_step(stages[0], 0.1)
        first.save(tmp_path / "state.pt")
        second = make_trainer(trainer_module, stages, optimizer=optimizer)
        second.draw = whole.draw
        second.load(tmp_path / "state.pt")
        second.run(quiet=True)
        assert second.progress.step == whole.progress.step == 6
        ours, theirs = second.averaged_state(), whole.averaged_state()
        assert all(np.array_equal(ours[name].numpy(), theirs[name].numpy()) for name in ours)


@pytest.mark.export
class TestCommand:
    OPTIONS = ("--stages", "64:3", "--prompts", "2", "--easy-shards", "1", "--shards", "0", "--threads", "1")

    @pytest.fixture
    def main(self, trainer_module):
        from triton_sam.train.command import main

        return main

    def test_an_interrupted_run_ends_between_steps_and_is_resumed(self, main, tmp_path, capsys, monkeypatch):
        from triton_sam.train.trainer import Trainer

        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        step = Trainer.step

        def interrupted(trainer):
            if trainer.progress.step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(trainer)

        assert main(["--out", str(tmp_path / "whole"), "--scenes", str(tmp_path / "scenes"), *self.OPTIONS]) == 0
        assert "all of them before the first step" in capsys.readouterr().out
        assert [path.name for path in (tmp_path / "scenes").iterdir()] == ["256_00000000.npz"]
        run = ["--out", str(tmp_path / "run"), "--scenes", str(tmp_path / "scenes"), *self.OPTIONS]
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", interrupted)
            assert main(run) == 130
        assert "the same command resumes" in capsys.readouterr().out
        assert main(run) == 0
        assert "resuming at step 2" in capsys.readouterr().out
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        files = {"state.pt", "sam2.1_hiera_micro.pt", "curves.json"}
        assert {path.name for path in (tmp_path / "run").iterdir()} == files
        one, other = ((tmp_path / name / "sam2.1_hiera_micro.pt").read_bytes() for name in ("whole", "run"))
        assert one == other

    def test_wrong_options_are_refused_before_anything_is_written(self, main, tmp_path):
        for options, named in [
            (["--seed", "-1"], "--seed"),
            (["--threads", "-1"], "--threads"),
            (["--rate", "0"], "--rate"),
            (["--prompts", "1"], "--prompts"),
            (["--easy-shards", "-1"], "--easy-shards"),
            (["--device", "abacus"], "--device abacus"),
            (["--device", "cuda:99"], "--device cuda:99"),
            (["--stages", "soon"], "stage"),
        ]:
            with pytest.raises(ConfigurationError, match=named):
                main(["--out", str(tmp_path / "out"), *options])
            assert not (tmp_path / "out").exists()
