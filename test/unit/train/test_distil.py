"""Training from a teacher: its decoder, its lessons, its masks as prompts, and the two phases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("torch")
from support.materials import write_materials

from triton_sam.errors import CheckpointError, ConfigurationError
from triton_sam.scenes.scenes import generate_scene
from triton_sam.train.dataset import example_from_scene

pytest.importorskip("sam2")
pytest.importorskip("mobile_sam")
import torch

from triton_sam.export.sam2.model import build_model
from triton_sam.train import distil, distil_command, lessons, network, teacher
from triton_sam.train.stages import Stage, View
from triton_sam.train.trainer import Settings

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
    fresh = build_model(CONFIG)
    network.prepare(fresh)
    return fresh


def write_lesson(folder: Path, number: int, image: np.ndarray, embedding: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"{number:06d}.npz").open("wb") as stream:
        np.savez(stream, image=image, embedding=embedding.astype(np.float16))


@pytest.fixture
def pool(tmp_path):
    """Three lessons; the first channel of their embeddings is the red of their cells, as a share of 1."""
    rng = np.random.default_rng(0)
    for number in range(3):
        cells = rng.integers(0, 255, (SIDE // 16, SIDE // 16, 3), np.uint8)
        embedding = np.zeros((256, SIDE // 16, SIDE // 16), np.float32)
        embedding[0] = cells[..., 0] / 255
        write_lesson(tmp_path / "lessons", number, cells.repeat(16, 0).repeat(16, 1), embedding)
    return lessons.LessonPool(tmp_path / "lessons")


class FakeTeacher:
    """A teacher that knows one square, and is as sure of it as it is told to be."""

    def __init__(self, score: float) -> None:
        self.score = score

    def answer(self, embedding: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.full((len(points), 3, SIDE // 4, SIDE // 4), -9.0)
        logits[:, 1, 8:24, 4:16] = 9.0  # 64 rows and 48 columns of pixels
        return logits, torch.tensor([[0.0, self.score, 0.0]]).repeat(len(points), 1)


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

    def test_scores_stay_nearly_the_same_after_the_sigmoid(self, micro_teacher, model):
        teacher.adopt_decoder(model, micro_teacher)
        tokens = torch.randn(50, 256)
        with torch.no_grad():
            official = micro_teacher._model.mask_decoder.iou_prediction_head(tokens)
            ours = model.sam_mask_decoder.iou_prediction_head(tokens)
        assert torch.allclose(ours, torch.sigmoid(4 * official - 2), atol=1e-5)
        assert torch.equal(ours.argsort(1), official.argsort(1))

    def test_the_projection_finds_a_linear_map(self, model, monkeypatch):
        generator = torch.Generator().manual_seed(1)
        fine = torch.randn(256, 128, generator=generator) / 10
        deep = torch.randn(256, 256, generator=generator) / 10
        coarse = torch.randn(12, 128, 8, 8, generator=generator)
        coarsest = torch.randn(12, 256, 4, 4, generator=generator)
        upper = torch.nn.functional.interpolate(coarsest, scale_factor=2.0, mode="nearest")
        wanted = torch.einsum("oc,bchw->bohw", fine, coarse) + torch.einsum("oc,bchw->bohw", deep, upper) + 3
        features = ([None, None, *pair] for pair in zip(coarse[:, None], coarsest[:, None], strict=True))
        monkeypatch.setattr(network, "trunk_features", lambda *_arguments: next(features))
        image = torch.zeros(SIDE, SIDE, 3, dtype=torch.uint8)
        assert teacher.fit_projection(model, [(image, embedding) for embedding in wanted]) < 1e-3
        neck = model.image_encoder.neck
        with torch.no_grad():
            found = neck.convs[1].conv(coarse) + neck.convs[0].conv(upper)
        assert (found - wanted).square().mean() / wanted.square().mean() < 1e-3

    def test_a_missing_checkpoint_names_the_download(self, tmp_path):
        with pytest.raises(CheckpointError, match="triton-sam download mobilesam"):
            teacher.Teacher(tmp_path / "none.pt")


class TestLessons:
    def test_images_and_embeddings_show_the_same_place(self, pool):
        rng = np.random.default_rng(1)
        mirrored = set()
        for _ in range(60):
            window = View(64, SIDE).window(rng)
            drawn = pool.draw(rng, window, 2)
            red = drawn.images[:, ::16, ::16, 0].float() / 255
            assert torch.allclose(drawn.embeddings[:, 0], red, atol=1e-3)
            assert torch.equal(window.cut(drawn.whole, 16), drawn.embeddings)
            mirrored.add(round(float(drawn.whole[0, 0, 0, 0]), 3))
        assert len(mirrored) == 6  # three lessons, each in two orientations

    def test_they_are_written_once(self, tmp_path, micro_teacher):
        materials = write_materials(tmp_path / "materials")
        assert list(lessons.write_lessons(tmp_path / "l", materials, micro_teacher, 2)) == [1, 2]
        with np.load(tmp_path / "l" / "000001.npz") as content:
            image, embedding = content["image"], content["embedding"]
        assert image.shape == (teacher.SIDE, teacher.SIDE, 3)
        assert np.allclose(embedding, micro_teacher.embed(torch.from_numpy(image)[None])[0].numpy(), atol=0.01)
        times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "l").iterdir())]
        assert list(lessons.write_lessons(tmp_path / "l", materials, micro_teacher, 2)) == [1, 2]
        assert times == [path.stat().st_mtime_ns for path in sorted((tmp_path / "l").iterdir())]

    def test_held_out_materials_are_not_used(self, tmp_path, micro_teacher):
        materials = write_materials(tmp_path / "materials", held_out=True)
        with pytest.raises(ConfigurationError, match="no cutout"):
            next(lessons.write_lessons(tmp_path / "l", materials, micro_teacher, 2))

    def test_an_empty_folder_is_refused(self, tmp_path):
        with pytest.raises(ConfigurationError, match="no lessons"):
            lessons.LessonPool(tmp_path)


class TestTaughtPrompts:
    def test_masks_are_cut_out_of_the_window(self):
        window = network.Window(64, SIDE, left=0, top=64)
        found = distil.taught_prompts(np.random.default_rng(0), FakeTeacher(0.9), torch.zeros(1), window, 3)
        assert found is not None
        expected = np.zeros((64, 64), bool)
        expected[:32, 16:64] = True
        assert (found.regions == expected).mean() > 0.95  # a mask of 32 cells has blurred edges
        assert all(region[int(y), int(x)] for region, (x, y) in zip(found.regions, found.clicks, strict=True))
        assert found.targets.shape == (3, 16, 16)

    def test_an_unsure_teacher_gives_none(self):
        window = network.Window(SIDE, SIDE)
        assert distil.taught_prompts(np.random.default_rng(0), FakeTeacher(0.5), torch.zeros(1), window, 3) is None


class TestPhases:
    @staticmethod
    def settings(steps):
        return Settings((Stage(views=(View(64, SIDE, 1, 2),), steps=steps),), optimizer="muon", warm_up=2, dense=False)

    def test_embeddings_come_closer_to_the_teachers(self, model, pool):
        trainer = distil.EmbeddingTrainer(model, self.settings(30), pool)
        losses = [trainer.step()["loss"] for _ in range(30)]
        assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])

    def test_masks_are_learned_from_lessons_and_scenes(self, model, pool):
        example = example_from_scene(generate_scene(5, 64, 0.0))
        trainer = distil.MaskTrainer(model, self.settings(8), lambda rng, view: example, pool, FakeTeacher(0.9))
        before = {name: value.clone() for name, value in model.named_parameters()}
        measured = [trainer.step() for _ in range(8)]
        taught = [step for step in measured if "error" in step]
        assert 0 < len(taught) < 8
        assert all(step["loss"] > 0 for step in measured)
        changed = {name.split(".")[0] for name, value in model.named_parameters() if not value.equal(before[name])}
        assert changed == {"image_encoder", "sam_prompt_encoder", "sam_mask_decoder", "no_mem_embed"}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (["--rate", "0"], "--rate"), (["--lessons", "0"], "--lessons"), (["--prompts", "1"], "--prompts"),
        (["--embeddings", "512:3m"], "1024"), (["--masks", "x"], "cannot read the stage"), (["--seed", "-1"], "--seed"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(tmp_path, option, expected):
    needed = ["--teacher", "t.pt", "--materials", "m", "--init", "i.pt", "--out", str(tmp_path / "out")]
    with pytest.raises(ConfigurationError, match=expected):
        distil_command.main([*needed, *option])
    assert not (tmp_path / "out").exists()
