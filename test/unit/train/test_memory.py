"""The training of the memory half: clips, the tracker with gradients, the steps, and resuming."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cv2")

from triton_sam.errors import ConfigurationError
from triton_sam.scenes.motion import TRAINING_CLIPS, generate_training_clip

pytestmark = pytest.mark.nightly  # code of tools

SIDE = 128
FRAMES = 3


class TestTrainingClips:
    def test_held_out_seeds_and_wrong_lengths_are_refused(self):
        for seed, frames in [(TRAINING_CLIPS - 1, 4), (TRAINING_CLIPS, 1), (TRAINING_CLIPS, 33)]:
            with pytest.raises(ConfigurationError, match="training"):
                generate_training_clip(seed, frames, 96)


@pytest.fixture(scope="module")
def prepared(trainer_module):
    """A model with fresh weights for frames of 128 px, and the maps of one clip."""
    import torch

    from triton_sam.export.sam2.recipe import EXPORTER
    from triton_sam.train import clips, memory, network

    torch.manual_seed(0)
    model = EXPORTER.build("sam2.1_hiera_micro.yaml", SIDE)
    network.prepare(model)
    clip = clips.map_clip(model, generate_training_clip(TRAINING_CLIPS + 2, 4, SIDE))
    memory.prepare_memory(model, clip.embedding.float())
    return model, clip


class OneClip:
    def __init__(self, clip):
        self._clip = clip

    def clip(self, number):
        return self._clip


def make_trainer(prepared, steps=2):
    import copy

    from triton_sam.train import memory_trainer

    model, clip = prepared
    settings = memory_trainer.MemorySettings(
        (memory_trainer.ClipStage(frames=FRAMES, steps=steps),), rate=3e-3, warm_up=1
    )
    return memory_trainer.MemoryTrainer(copy.deepcopy(model), settings, OneClip(clip))


@pytest.mark.export
class TestTracker:
    def test_it_equals_the_official_steps(self, prepared):
        import torch

        from triton_sam.train import clips, memory

        model, clip = prepared
        tracks = [clips.Track(clip, number, 0) for number in (1, 2)]
        prompt = clips.first_prompt(np.random.default_rng(0), tracks, "box")
        outputs = {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}}
        with torch.no_grad():
            tracker = memory.Tracker(model)
            for frame in range(FRAMES):
                maps = clips.frame_maps(tracks, frame)
                ours = tracker.step(frame, maps) if frame else tracker.start(maps, prompt, None, None)
                levels = [*maps.high_res, maps.embedding]
                points = {"point_coords": prompt.points, "point_labels": prompt.labels}
                official = model.track_step(
                    frame_idx=frame,
                    is_init_cond_frame=frame == 0,
                    current_vision_feats=[level.flatten(2).permute(2, 0, 1) for level in levels],
                    current_vision_pos_embeds=[
                        model.image_encoder.neck.position_encoding(level).flatten(2).permute(2, 0, 1)
                        for level in levels
                    ],
                    feat_sizes=[level.shape[-2:] for level in levels],
                    point_inputs=None if frame else points,
                    mask_inputs=None,
                    output_dict=outputs,
                    num_frames=32,
                )
                outputs["non_cond_frame_outputs" if frame else "cond_frame_outputs"][frame] = official
                shown = torch.where(ours.present[:, :, None, None] > 0, ours.mask(), torch.tensor(-1024.0))
                assert torch.allclose(shown, official["pred_masks"], atol=1e-3)


@pytest.mark.export
class TestMemoryTrainer:
    def test_steps_lower_the_loss_and_leave_the_image_half_alone(self, prepared):
        import torch

        from triton_sam.train import clips, memory

        trainer = make_trainer(prepared, steps=12)
        tracks = [clips.Track(prepared[1], number, 0) for number in (1, 2)]
        prompt = clips.first_prompt(np.random.default_rng(0), tracks, "box")

        def loss():
            frames = [clips.frame_maps(tracks, number) for number in range(FRAMES)]
            wanted = clips.targets(tracks, FRAMES)
            with torch.no_grad():
                return float(memory.track_loss(trainer.model, frames, prompt, wanted, easy=True)[0])

        trained = {n for n, _ in (*memory.memory_parameters(trainer.model), *memory.object_head(trainer.model))}
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        first = loss()
        for _ in range(12):
            trainer.step()
        assert loss() < 0.95 * first
        changed = {n for n, value in trainer.model.state_dict().items() if not torch.equal(value, before[n])}
        assert changed <= trained
        assert any(name.startswith("memory_encoder") for name in changed)

    def test_a_resumed_run_equals_one_without_a_break(self, prepared, tmp_path):
        import torch

        whole = make_trainer(prepared)
        for _ in range(2):
            whole.step()
        part = make_trainer(prepared)
        part.step()
        part.save(tmp_path / "state.pt")
        resumed = make_trainer(prepared)
        resumed.load(tmp_path / "state.pt")
        resumed.step()
        assert resumed.progress.step == 2
        for name, value in whole.averaged_state().items():
            assert torch.equal(value, resumed.averaged_state()[name]), name

    def test_the_weights_that_are_best_on_held_out_clips_are_kept(self, prepared, tmp_path):
        import torch

        trainer = make_trainer(prepared, steps=3)
        name = next(iter(trainer._averages.state()))
        measured = []

        def measure():
            measured.append(trainer.model.get_parameter(name).detach().clone())
            return (0.3, 0.5, 0.4, 0.1)[len(measured) - 1]

        trainer.run(lambda run: run.save(tmp_path / "state.pt"), measure=measure, measure_seconds=0)
        trainer.export(tmp_path / "best.pt")
        assert (trainer.best.iou, trainer.best.step) == (0.5, 2)
        exported = torch.load(tmp_path / "best.pt", weights_only=True)["model"][name]
        assert torch.equal(exported, measured[1].half())
        assert not torch.equal(measured[1], measured[2])
        assert not torch.equal(trainer.model.get_parameter(name), measured[-1])  # the run goes on with its own weights
        resumed = make_trainer(prepared, steps=3)
        resumed.load(tmp_path / "state.pt")
        assert resumed.best.iou == 0.5
        assert torch.equal(resumed.best.state[name], measured[1])


class TestCommand:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_it_trains_the_memory_half_alone(self, trainer_module, tmp_path, monkeypatch, workers):
        import torch

        from triton_sam.export.sam2.recipe import EXPORTER
        from triton_sam.train import memory, memory_command, schedule

        monkeypatch.setattr(memory_command, "_FITTED", 1)
        monkeypatch.setattr(memory_command, "_measurer", lambda _model: lambda: 0.5)
        model = EXPORTER.build("sam2.1_hiera_micro.yaml", memory_command.SIDE)
        schedule.save({"model": schedule.cast(model.state_dict())}, tmp_path / "init.pt")
        arguments = ["--init", str(tmp_path / "init.pt"), "--out", str(tmp_path / "out"), "--device", "cpu"]
        arguments += ["--stages", "2:1", "--clips", "1", "--tracks", "1", "--workers", str(workers)]
        assert memory_command.main(arguments) == 0
        assert (tmp_path / "out" / "clips").exists() == (workers == 0)
        before, after = (
            torch.load(path, weights_only=True)["model"]
            for path in (tmp_path / "init.pt", tmp_path / "out" / "sam2.1_hiera_micro.pt")
        )
        trained = {name for name, _ in (*memory.memory_parameters(model), *memory.object_head(model))}
        changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
        assert changed
        assert changed <= trained | {"mask_downsample.weight", "mask_downsample.bias"}  # prepare_memory sets them
