"""The training of the demo model: losses, the teacher's answers, the tracker, and two steps of each command."""

import copy

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("sam2")
pytest.importorskip("mobile_sam")
import torch
from support.materials import write_materials

if not hasattr(torch.optim, "Muon"):
    pytest.skip("torch older than 2.9", allow_module_level=True)

from tools.demo_model import (
    clips,
    image_trainer,
    losses,
    memory_trainer,
    network,
    runs,
    targets,
    teacher,
    tracking,
    train_images,
    train_memory,
)
from tools.demo_model.image_trainer import ImageTrainer, Mix
from tools.demo_model.training_clips import generate_training_clip
from triton_sam.export.sam2.recipe import EXPORTER
from triton_sam.scenes.clip import TRAINING_CLIPS
from triton_sam.scenes.scenes import generate_scene

pytestmark = [pytest.mark.nightly, pytest.mark.export]

SIDE = 128
FRAMES = 3


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tiny tensors, threads only wait for each other
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return EXPORTER.build(runs.CONFIG, teacher.SIDE)


@pytest.fixture(scope="module")
def micro_teacher():
    """A small teacher with random weights."""
    return teacher.Teacher(None, "micro", random_seed=3)


@pytest.fixture
def asked(model, micro_teacher):
    """The decoder that answers for the teacher."""
    return targets.teacher_decoder(model, micro_teacher)


def settings(steps, frames=1):
    return runs.Settings((runs.Stage(steps, frames=frames),), 3e-3, warm_up=1)


class TestLosses:
    """The expected values are computed by hand for masks of 4 pixels, of which the object covers the first two."""

    TARGET = ((1.0, 1.0), (0.0, 0.0))

    def logits(self, *answers):
        """Return the logits (1, N, 2, 2) of N masks, each given by four values of 0 or 1."""
        return (torch.tensor(answers, dtype=torch.float32).reshape(1, -1, 2, 2) * 2 - 1) * 20

    def test_each_loss_has_the_value_computed_by_hand(self):
        target = torch.tensor(self.TARGET)[None]
        right, half = self.logits((1, 1, 0, 0))[0], self.logits((1, 0, 0, 0))[0]
        assert float(losses.focal_loss(right, target)) == pytest.approx(0, abs=1e-6)
        # One of four pixels is wrong, with a cross entropy of 20.
        assert float(losses.focal_loss(half, target)) == pytest.approx(0.25 * 20 / 4, rel=1e-3)
        assert float(losses.dice_loss(right, target)) == pytest.approx(0, abs=1e-6)
        assert float(losses.dice_loss(half, target)) == pytest.approx(1 - 3 / 4)
        assert losses.mask_iou(torch.cat([right, half]), target.expand(2, 2, 2)).tolist() == [1.0, 0.5]

    def test_only_the_best_multimask_counts_and_with_half_weight_for_a_clear_prompt(self):
        logits = self.logits((1, 1, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0))
        # The scores are the true IoUs, so they add no loss.
        prediction = network.Prediction(logits, torch.tensor([[1.0, 0.0, 0.5, 0.5]]), torch.tensor([0.0]))
        wrong = losses.FOCAL_WEIGHT * 0.25 * 20 / 4 + losses.DICE_WEIGHT * 0.25
        for ambiguous, weight in ((True, 1.0), (False, losses.MULTIMASK_WEIGHT_LATER)):
            loss, iou = losses.prompt_loss(
                prediction, torch.tensor([self.TARGET]), torch.ones(1), torch.tensor([ambiguous])
            )
            assert iou[0].tolist() == [1.0, 0.0, 0.5, 0.5]
            assert float(loss) == pytest.approx(weight * wrong + np.log(2), rel=1e-3)


class FakePool:
    """Examples of 128 px with random embeddings."""

    def __init__(self, scenes: bool) -> None:
        self.tensors = {"image": torch.randint(0, 255, (2, SIDE, SIDE, 3), dtype=torch.uint8)}
        self.embeddings = torch.randn(2, 256, SIDE // 16, SIDE // 16) / 10
        if scenes:
            drawn = [generate_scene(number, SIDE // 2, 0.2) for number in range(2)]
            self.tensors["labels"] = torch.from_numpy(np.stack([scene.labels for scene in drawn]))
            self.tensors["parts"] = torch.from_numpy(np.stack([scene.parts for scene in drawn]))

    def draw(self, rng, count):
        return torch.from_numpy(rng.integers(2, size=count))


class FakeImages:
    def __init__(self) -> None:
        self.photographs, self.drawn = FakePool(False), FakePool(True)

    def draw_scenes(self, rng):
        return self.drawn


def test_the_decoder_answers_as_the_teacher_does(asked, micro_teacher):
    embeddings, points = torch.randn(2, 256, 64, 64), torch.rand(2, 3, 2) * 1024
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


def test_the_gradient_of_rounds_equals_that_of_their_sum(model, asked, monkeypatch):
    """The encoder gets the gradients of the decoder's graphs, which are freed one by one."""
    trainer = ImageTrainer(model, settings(8), FakeImages(), Mix(1, 1, 2), asked)
    network.set_side(model, SIDE)
    pool = trainer._images.drawn
    features = network.encode(model, network.normalise(pool.tensors["image"]))
    found = targets.scene_targets(pool.tensors["labels"], pool.tensors["parts"], 2)
    points, labels, _ = trainer._first_prompts(found)
    answer = network.decode(model, features.repeat(2), points, labels, None)
    loss, _ = targets.target_loss(answer, found, (labels == -2).any(1), True)
    expected = torch.autograd.grad(loss, (features.embedding, *features.high_res))
    monkeypatch.setattr(image_trainer, "_ROUND_SHARES", (1.0, 0.0, 0.0))
    monkeypatch.setattr(trainer, "_first_prompts", lambda *_: (points, labels, (labels == 2).any(1)))
    gradients, measured = trainer._learn_masks(np.random.default_rng(0), features, found)
    assert torch.allclose(measured["masks"], loss)
    for ours, theirs in zip(gradients, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.fixture(scope="module")
def prepared():
    """A model with fresh weights for frames of 128 px, and the maps of one clip."""
    torch.manual_seed(0)
    model = EXPORTER.build(runs.CONFIG, SIDE)
    clip = clips.map_clip(model, generate_training_clip(TRAINING_CLIPS + 2, 4, SIDE))
    tracking.prepare_memory(model, clip.embedding.float())
    return model, clip


class OneClip:
    def __init__(self, clip):
        self._clip = clip

    def clip(self, number):
        return self._clip


def memory_run(prepared, steps=2):
    model, clip = prepared
    return memory_trainer.MemoryTrainer(copy.deepcopy(model), settings(steps, FRAMES), OneClip(clip), 1, 4)


def test_the_tracker_equals_the_official_steps(prepared):
    model, clip = prepared
    tracks = [clips.Track(clip, number, 0) for number in (1, 2)]
    prompt = clips.first_prompt(tracks, "box")
    outputs = {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}}
    with torch.no_grad():
        tracker = tracking.Tracker(model)
        for frame in range(FRAMES):
            maps = clips.frame_maps(tracks, frame)
            ours = tracker.step(frame, maps) if frame else tracker.start(maps, prompt, None, None)
            levels = [*maps.high_res, maps.embedding]
            position = model.image_encoder.neck.position_encoding
            official = model.track_step(
                frame_idx=frame,
                is_init_cond_frame=frame == 0,
                current_vision_feats=[level.flatten(2).permute(2, 0, 1) for level in levels],
                current_vision_pos_embeds=[position(level).flatten(2).permute(2, 0, 1) for level in levels],
                feat_sizes=[level.shape[-2:] for level in levels],
                point_inputs=None if frame else {"point_coords": prompt.points, "point_labels": prompt.labels},
                mask_inputs=None,
                output_dict=outputs,
                num_frames=32,
            )
            outputs["non_cond_frame_outputs" if frame else "cond_frame_outputs"][frame] = official
            shown = torch.where(ours.present[:, :, None, None] > 0, ours.mask(), torch.tensor(-1024.0))
            assert torch.allclose(shown, official["pred_masks"], atol=1e-3)


def test_steps_lower_the_loss_and_leave_the_image_half_alone(prepared):
    trainer = memory_run(prepared, 12)
    tracks = [clips.Track(prepared[1], number, 0) for number in (1, 2)]
    torch.manual_seed(0)
    prompt = clips.first_prompt(tracks, "box")

    def loss():
        frames = [clips.frame_maps(tracks, number) for number in range(FRAMES)]
        with torch.no_grad():
            return float(
                tracking.track_loss(trainer.model, frames, prompt, clips.targets(tracks, FRAMES), easy=True)[0]
            )

    trained = {n for n, _ in (*tracking.memory_parameters(trainer.model), *tracking.object_head(trainer.model))}
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    first = loss()
    for _ in range(12):
        trainer.step()
    assert loss() < 0.95 * first
    changed = {n for n, value in trainer.model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed <= trained
    assert any(name.startswith("memory_encoder") for name in changed)
    averaged = trainer.weights()
    assert all(torch.equal(averaged[name], value) for name, value in before.items() if name not in trained)
    assert any(not torch.equal(averaged[name], trainer.model.state_dict()[name]) for name in changed)


def test_the_weights_that_are_best_on_held_out_clips_are_kept(prepared, tmp_path):
    trainer = memory_run(prepared, 3)
    measured = []

    def measure(model):
        measured.append(model.state_dict()["maskmem_tpos_enc"].clone())
        return (0.3, 0.5, 0.4, 0.1)[len(measured) - 1]

    trainer.run(tmp_path, measure=measure, seconds=0)
    exported = torch.load(tmp_path / runs.WEIGHTS, weights_only=True)["model"]["maskmem_tpos_enc"]
    assert torch.equal(exported, measured[1].half())
    assert not torch.equal(measured[1], measured[2])


def test_two_steps_of_both_commands(tmp_path, model, micro_teacher, monkeypatch):
    monkeypatch.setattr(train_images, "Teacher", lambda _path: micro_teacher)
    monkeypatch.setattr(train_memory, "_measurer", lambda _model: lambda _measured: 0.5)
    init, out = tmp_path / "init.pt", tmp_path / "out"
    runs.write({"model": runs.half(model.state_dict())}, init)
    arguments = [
        *("--teacher", "t.pt", "--materials", str(write_materials(tmp_path / "materials"))),
        *("--init", str(init), "--out", str(out), "--device", "cpu", "--workers", "1"),
        *("--photographs", "1", "--composites", "1", "--drawn", "1", "--images", "2", "--prompts", "2"),
        *("--embeddings", "2", "--masks", "2"),
    ]
    assert train_images.main(arguments) == 0
    assert {path.name for path in out.iterdir()} == {"embeddings", "masks"}  # the files of the images are gone
    memory = tmp_path / "memory"
    arguments = ["--init", str(out / "masks" / runs.WEIGHTS), "--out", str(memory), "--device", "cpu"]
    assert train_memory.main([*arguments, "--stages", "2:2", "--clips", "1", "--tracks", "1", "--workers", "1"]) == 0
    before, after = (torch.load(path / runs.WEIGHTS, weights_only=True)["model"] for path in (out / "masks", memory))
    trained = {name for name, _ in (*tracking.memory_parameters(model), *tracking.object_head(model))}
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed
    assert changed <= trained | {"mask_downsample.weight", "mask_downsample.bias"}  # prepare_memory sets them
