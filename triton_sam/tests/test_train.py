"""The training package: scenes, simulated users, losses, the loop and its resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from triton_sam.errors import CheckpointError, ConfigurationError  # noqa: E402
from triton_sam.train import dataset, prompts, scenes  # noqa: E402

SEEDS = range(scenes.HELD_OUT_SEED + 500, scenes.HELD_OUT_SEED + 516)


class TestScenes:
    def test_a_seed_names_one_scene(self):
        first, second = (scenes.generate_scene(7, 128) for _ in range(2))
        assert np.array_equal(first.image, second.image)
        assert np.array_equal(first.masks, second.masks)
        assert not np.array_equal(first.image, scenes.generate_scene(8, 128).image)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_objects_are_disjoint_and_parts_lie_in_their_parent(self, seed):
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

    def test_labels_number_every_object(self):
        for seed in SEEDS:
            scene = scenes.generate_scene(seed, 96, 0.5)
            numbers = np.unique(scene.labels)
            assert set(range(1, int(scene.labels.max()) + 1)) <= set(numbers.tolist())

    def test_there_are_parts_and_every_picture_has_contrast(self):
        drawn = [scenes.generate_scene(seed, 128) for seed in SEEDS]
        assert sum(len(scene.part_parents) for scene in drawn) > 5
        assert all(scene.image.std() > 0.3 for scene in drawn)

    @pytest.mark.parametrize(("seed", "size", "difficulty"), [(-1, 128, 1.0), (0, 32, 1.0), (0, 128, 1.5)])
    def test_bad_arguments_are_refused(self, seed, size, difficulty):
        with pytest.raises(ConfigurationError):
            scenes.generate_scene(seed, size, difficulty)


class TestDataset:
    @pytest.mark.parametrize(("first", "count"), [(scenes.HELD_OUT_SEED, 1), (scenes.HELD_OUT_SEED - 5, 6), (-1, 2)])
    def test_held_out_seeds_are_refused(self, first, count, tmp_path):
        with pytest.raises(ConfigurationError, match="held out"):
            dataset.training_seeds(first, count)

    def test_no_shard_of_held_out_seeds_is_written_or_read(self, tmp_path):
        with pytest.raises(ConfigurationError):
            dataset.write_shard(tmp_path / "x.npz", scenes.HELD_OUT_SEED, 64, (0.0, 1.0))
        (tmp_path / f"64_{scenes.HELD_OUT_SEED:08d}.npz").touch()
        with pytest.raises(ConfigurationError):
            dataset.ScenePool(tmp_path, 64)

    def test_a_pool_takes_in_new_shards(self, tmp_path, monkeypatch):
        monkeypatch.setattr(dataset, "SHARD", 2)
        pool = dataset.ScenePool(tmp_path, 64)
        with pytest.raises(ConfigurationError, match="no scenes"):
            pool.draw(np.random.default_rng(0))
        dataset.write_shard(tmp_path / "64_00000004.npz", 4, 64, (0.0, 0.0))
        assert pool.refresh() == 2
        drawn = pool.draw(np.random.default_rng(0))
        known = [scenes.generate_scene(seed, 64, 0.0).image for seed in (4, 5)]
        assert any(np.array_equal(drawn.image, image) for image in known)

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


class TestPrompts:
    def test_first_clicks_and_boxes_belong_to_their_region(self):
        rng = np.random.default_rng(0)
        example = dataset.example_of(scenes.generate_scene(SEEDS[0], 128, 0.2))
        asked = prompts.ask(rng, example, 8, absent_share=0.0)
        assert asked is not None
        assert asked.targets.shape == (8, 32, 32)
        for region, target, (x, y) in zip(asked.regions, asked.targets, asked.clicks, strict=True):
            assert region[int(y), int(x)]
            assert target.mean() == pytest.approx(region.mean(), rel=1e-4)
            box = prompts.box_around(rng, region)
            assert (box[1] > box[0]).all()
            rows, columns = np.nonzero(region)
            assert box == pytest.approx(
                np.array([[columns.min(), rows.min()], [columns.max() + 1, rows.max() + 1]]), abs=128 * 20 / 1024 + 0.1
            )

    def test_absent_prompts_click_on_the_background(self):
        example = dataset.example_of(scenes.generate_scene(SEEDS[1], 128, 0.0))
        asked = prompts.ask(np.random.default_rng(0), example, 6, absent_share=1.0)
        if asked is not None and not asked.regions.any():
            assert all(example.labels[int(y), int(x)] == 0 for x, y in asked.clicks)

    def test_a_scene_without_regions_asks_nothing(self):
        empty = np.zeros((64, 64), np.uint8)
        example = dataset.Example(np.zeros((64, 64, 3), np.uint8), empty, empty)
        assert prompts.ask(np.random.default_rng(0), example, 4) is None

    def test_corrections_fall_into_the_error_region(self):
        rng = np.random.default_rng(0)
        target = np.zeros((1, 32, 32), np.float32)
        target[0, 8:20, 8:20] = 1
        for left in range(0, 28, 4):
            found = np.zeros((1, 32, 32), bool)
            found[0, 10:18, left : left + 6] = True
            points, labels = prompts.correct(rng, found, target)
            column, row = (points[0] // prompts.CELL).astype(int)
            wanted, marked = bool(target[0, row, column]), bool(found[0, row, column])
            assert wanted != marked
            assert labels[0] == float(wanted)

    def test_without_an_error_the_click_stays_inside(self):
        target = np.zeros((1, 32, 32), np.float32)
        target[0, 4:9, 4:9] = 1
        points, labels = prompts.correct(np.random.default_rng(0), target > 0.5, target)
        column, row = (points[0] // prompts.CELL).astype(int)
        assert target[0, row, column] == 1
        assert labels[0] == 1


@pytest.fixture(scope="module")
def trainer_module():
    pytest.importorskip("sam2")
    import torch

    from triton_sam.train import trainer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: threads only wait for each other
    yield trainer
    torch.set_num_threads(threads)


def stage(size, steps, prompts=2):
    from triton_sam.train.stages import Stage, View

    return Stage((View(size, size, images=1, prompts=prompts),), steps)


def make_trainer(module, stages, seed=0, optimizer="adamw"):
    import torch

    from triton_sam.export.sam2_model import build_model
    from triton_sam.train import network

    torch.manual_seed(seed)
    model = build_model("sam2.1_hiera_micro.yaml")
    network.prepare(model)
    example = dataset.example_of(scenes.generate_scene(SEEDS[3], 64, 0.0))
    settings = module.Settings(stages, seed, optimizer, warm_up=2)
    return module.Trainer(model, settings, lambda rng, view: example)


@pytest.mark.export
class TestTrainer:
    def test_the_encoder_equals_the_official_one(self, trainer_module):
        import torch

        from triton_sam.export.sam2_model import build_model
        from triton_sam.train import network

        torch.manual_seed(0)
        model = build_model("sam2.1_hiera_micro.yaml")
        pixels = torch.randn(2, 3, 128, 128)
        with torch.no_grad():
            ours = network.encode(model, pixels, network.Window(128, 128))
            official = model.forward_image(pixels)["backbone_fpn"]
        assert torch.allclose(ours.high_res[0], official[0], atol=1e-5)
        assert torch.allclose(ours.high_res[1], official[1], atol=1e-5)
        assert torch.allclose(ours.embedding, official[2] + model.no_mem_embed.view(1, -1, 1, 1), atol=1e-5)

    def test_the_decoder_equals_the_official_one(self, trainer_module):
        import torch

        from triton_sam.export.sam2_model import build_model
        from triton_sam.train import network

        torch.manual_seed(0)
        model = build_model("sam2.1_hiera_micro.yaml").eval()
        window = network.Window(128, 128)
        network.place(model, window)
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

    def test_a_window_is_that_part_of_its_frame(self, trainer_module):
        """Codes of places are those of the frame; a window as large as the frame changes nothing."""
        import torch

        from triton_sam.export.sam2_model import build_model
        from triton_sam.train import network

        torch.manual_seed(0)
        model = build_model("sam2.1_hiera_micro.yaml")
        trunk = model.image_encoder.trunk
        window = network.Window(128, 512, left=256, top=64)
        whole = trunk._get_pos_embed((128, 128))
        with network._positions_of(trunk, window):
            assert torch.equal(trunk._get_pos_embed((32, 32)), whole[:, 16:48, 64:96])
        assert torch.equal(trunk._get_pos_embed((128, 128)), whole)
        codes = model.sam_prompt_encoder.pe_layer((32, 32))[None]
        assert torch.equal(network._WindowDecoder(model, window)._positions(), codes[:, :, 4:12, 16:24])

    @pytest.mark.parametrize("place", [(128, 256, 192, 0), (128, 256, 8, 0), (100, 256, 0, 0), (512, 256, 0, 0)])
    def test_a_window_must_fit(self, trainer_module, place):
        from triton_sam.train import network

        with pytest.raises(ConfigurationError):
            network.Window(*place)

    @pytest.mark.parametrize("optimizer", ["adamw", "muon"])
    def test_the_loss_falls(self, trainer_module, optimizer):
        trainer = make_trainer(trainer_module, (stage(64, 12, 4),), optimizer=optimizer)
        losses = [trainer.step()["loss"] for _ in range(12)]
        assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])

    @pytest.mark.parametrize("optimizer", ["adamw", "muon"])
    def test_a_resumed_run_equals_an_uninterrupted_one(self, trainer_module, tmp_path, optimizer):
        stages = tuple(stage(size, 3) for size in (64, 128))
        whole = make_trainer(trainer_module, stages, optimizer=optimizer)
        whole.draw = lambda rng, view: dataset.example_of(scenes.generate_scene(int(rng.integers(99)), view.size, 0.0))
        whole.run(quiet=True)

        first = make_trainer(trainer_module, stages, optimizer=optimizer)
        first.draw = whole.draw
        for _ in range(2):
            first.step()
            first._advance(stages[0], 0.1)
        first.save(tmp_path / "state.pt")
        second = make_trainer(trainer_module, stages, optimizer=optimizer)
        second.draw = whole.draw
        second.load(tmp_path / "state.pt")
        second.run(quiet=True)
        assert second.progress.step == whole.progress.step == 6
        ours, theirs = second.averaged_state(), whole.averaged_state()
        assert all(np.array_equal(ours[name].numpy(), theirs[name].numpy()) for name in ours)

    def test_the_export_is_a_checkpoint_of_the_model(self, trainer_module, tmp_path):
        import torch

        from triton_sam.export.sam2_model import build_model, load_checkpoint

        trainer = make_trainer(trainer_module, (stage(64, 1),))
        trainer.export(tmp_path / "sam2.1_hiera_micro.pt")
        assert (tmp_path / "sam2.1_hiera_micro.pt").stat().st_size < 16e6
        model = build_model("sam2.1_hiera_micro.yaml")
        load_checkpoint(model, tmp_path / "sam2.1_hiera_micro.pt")
        matrix = "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
        assert torch.equal(model.state_dict()[matrix], trainer.model.state_dict()[matrix])

    def test_a_damaged_state_is_refused(self, trainer_module, tmp_path):
        trainer = make_trainer(trainer_module, (stage(64, 1),))
        (tmp_path / "state.pt").write_bytes(b"no")
        with pytest.raises(CheckpointError, match="not a training state"):
            trainer.load(tmp_path / "state.pt")

    def test_a_state_of_the_other_optimizer_is_refused(self, trainer_module, tmp_path):
        make_trainer(trainer_module, (stage(64, 1),), optimizer="muon").save(tmp_path / "state.pt")
        with pytest.raises(CheckpointError, match="of this model and optimizer"):
            make_trainer(trainer_module, (stage(64, 1),)).load(tmp_path / "state.pt")

    def test_a_state_from_before_there_was_a_choice_is_refused(self, trainer_module, tmp_path):
        import torch

        trainer = make_trainer(trainer_module, (stage(64, 1),), optimizer="muon")
        trainer.save(tmp_path / "state.pt")
        content = torch.load(tmp_path / "state.pt", weights_only=True)
        torch.save({**content, "optimizer": content["optimizer"][0]}, tmp_path / "state.pt")
        with pytest.raises(CheckpointError, match="of this model and optimizer"):
            trainer.load(tmp_path / "state.pt")


@pytest.mark.export
class TestMuon:
    @pytest.mark.parametrize("shape", [(32, 96), (96, 32)])
    def test_singular_values_come_near_one(self, trainer_module, shape):
        import torch

        from triton_sam.train.optimizer import orthogonal

        torch.manual_seed(0)
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape) * 1e-3))
        assert 0.5 < values.min() <= values.max() < 1.3

    def test_steps_are_those_of_torch_up_to_its_bfloat16(self, trainer_module):
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


@pytest.mark.export
class TestStages:
    @pytest.fixture
    def stages(self, trainer_module):
        from triton_sam.train import stages

        return stages

    def test_stages_are_read(self, stages):
        read = stages.parse_stages("128:1.5m, 1024:2m")
        assert [(s.views[0].size, s.seconds, s.steps) for s in read] == [(128, 90.0, None), (1024, 120.0, None)]
        assert stages.parse_stages("256:20")[0].steps == 20

    def test_a_stage_may_have_several_views(self, stages):
        first, second = stages.parse_stages("256/1024+512:20")[0].views
        assert (first.size, first.frame) == (256, 1024)
        assert (second.size, second.frame) == (512, 512)
        assert {first.window(np.random.default_rng(seed)).left for seed in range(40)} == {0, 256, 512, 768}

    @pytest.mark.parametrize(
        "text", ["", "128", "128:x", "128:5,256:5m", "128:1.5", "100:5", "512/256:5", "+:5", "256+:5", "256/:5"]
    )
    def test_bad_stages_are_refused(self, stages, text):
        with pytest.raises(ConfigurationError):
            stages.parse_stages(text)


@pytest.mark.export
class TestAffinity:
    def test_pixels_of_one_object_come_together(self, trainer_module):
        import torch

        from triton_sam.train import dense, network

        torch.manual_seed(0)
        labels = np.zeros((1, 16, 16), np.uint8)
        labels[0, :, 4:8], labels[0, :, 10:15] = 1, 2
        shown = torch.from_numpy(labels.astype(np.float32))[:, None] + torch.zeros(1, 32, 1, 1)
        features = network.Features(torch.zeros(1, 256, 4, 4), (shown, torch.zeros(1, 64, 8, 8)))
        affinity = dense.Affinity()
        optimizer = torch.optim.Adam(affinity.parameters(), 0.05)
        losses = []
        for step in range(60):
            loss = affinity.loss(features, labels, np.random.default_rng(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.2 * losses[0]

    def test_a_picture_without_objects_costs_nothing(self, trainer_module):
        import torch

        from triton_sam.train import dense, network

        features = network.Features(torch.zeros(1, 256, 4, 4), (torch.zeros(1, 32, 16, 16), torch.zeros(1, 64, 8, 8)))
        loss = dense.Affinity().loss(features, np.zeros((1, 16, 16), np.uint8), np.random.default_rng(0))
        assert float(loss) == 0


def test_the_script_is_thin():
    assert len(Path(__file__).parents[2].joinpath("scripts/train_micro.py").read_text().splitlines()) < 25


@pytest.mark.export
def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from triton_sam.train.plot import plot_history

    history = [
        {"step": 20.0 * i, "size": 128.0 + 128 * (i > 2), "loss": 1 / (i + 1), "click": 0.1 * i} for i in range(6)
    ]
    plot_history(history, tmp_path / "curves")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
