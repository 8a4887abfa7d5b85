"""What only SAM3's tracker has: its resize, its kinds of prompts, its best mask, and folders as checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.family_exports import Arrays, FamilyExport, run_graph, sam3_reduced, session_of  # noqa: E402
from torchvision.transforms.v2.functional import resize  # noqa: E402
from transformers.models.sam3.image_processing_sam3 import Sam3ImageProcessor  # noqa: E402

from triton_sam.errors import CheckpointError  # noqa: E402
from triton_sam.export.sam3.graphs import Sam3Encoder  # noqa: E402
from triton_sam.export.sam3.recipe import EXPORTER  # noqa: E402
from triton_sam.families.sam3 import SAM3  # noqa: E402
from triton_sam.inputs.images import encoder_input  # noqa: E402
from triton_sam.inputs.resample import resize_bytes  # noqa: E402

FAMILY = SAM3
NO_AVX2 = torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512")


@pytest.fixture(scope="module")
def reduced() -> FamilyExport:
    return sam3_reduced()


@pytest.fixture(scope="module")
def decoder(reduced: FamilyExport) -> Any:
    session = session_of(reduced.files["decoder"])
    rng = np.random.default_rng(0)
    shapes = {tensor.name: (2, *tensor.shape[1:]) for tensor in SAM3.encoder.outputs}
    embeddings = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}

    def run(coords: Any, labels: Any, boxes: Any = None, images: slice = slice(0, 1)) -> Arrays:
        points = np.array(coords, np.float32)
        inputs = {
            "input_points": points,
            "input_labels": np.array(labels, np.int64),
            "input_boxes": np.zeros((len(points), 0, 4), np.float32) if boxes is None else np.array(boxes, np.float32),
        }
        chosen = {name: array[images] for name, array in embeddings.items()}
        return run_graph(session, {**chosen, **inputs}, SAM3.decoder.output_names)

    return run


def far(one: Arrays, other: Arrays) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.skipif(NO_AVX2, reason="torch resizes bytes in floating point without AVX2")
@pytest.mark.parametrize("size", [(600, 400), (77, 333), (1008, 500), (1008, 1008), (1, 1), (2311, 17), (5, 2000)])
def test_resize_equals_torch_to_the_bit(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    expected = resize(torch.from_numpy(pixels).permute(2, 0, 1), [1008, 1008], antialias=True).numpy()
    np.testing.assert_array_equal(resize_bytes(pixels, (1008, 1008)), expected)


@pytest.mark.skipif(NO_AVX2, reason="torch resizes bytes in floating point without AVX2")
def test_encoder_input_is_the_official_one(images: Path) -> None:
    image = Image.open(images / "coffee.jpg").convert("RGB")
    expected = Sam3ImageProcessor()(image, return_tensors="pt")["pixel_values"].numpy()
    np.testing.assert_allclose(encoder_input(image, FAMILY), expected, atol=1e-6)


@pytest.mark.slow
def test_prompts_of_different_length_in_one_batch(decoder: Any) -> None:
    rows = [([[300, 400]], [1]), ([[1, 2], [500, 600], [90, 80]], [1, 0, 1])]
    alone = [decoder([[points]], [[labels]]) for points, labels in rows]
    for nothing in (-2, -10):
        together = decoder(
            [[points + [[7, 7]] * (3 - len(points)) for points, _ in rows]],
            [[labels + [nothing] * (3 - len(labels)) for _, labels in rows]],
        )
        assert far(together, {name: np.concatenate([row[name] for row in alone], axis=1) for name in together}) < 1e-5


@pytest.mark.slow
def test_images_times_prompts(decoder: Any) -> None:
    points = np.random.default_rng(1).uniform(0, 1008, (2, 3, 2, 2))
    labels, boxes = np.ones((2, 3, 2)), np.sort(np.random.default_rng(2).uniform(0, 1008, (2, 3, 4)))
    together = decoder(points, labels, boxes, images=slice(0, 2))
    for row in range(2):
        one = slice(row, row + 1)
        alone = decoder(points[one], labels[one], boxes[one], images=one)
        assert far({name: array[one] for name, array in together.items()}, alone) < 1e-5


def test_best_of_three() -> None:
    masks = np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1, 1) * np.ones((1, 1, 1, 288, 288), np.float32)
    outputs = {"pred_masks": masks, "iou_scores": np.array([[[0.1, 0.9, 0.2], [0.5, 0.4, 0.8]]], np.float32)}
    single, scores = FAMILY.read_masks(outputs, False)
    assert single[:, 0, 0, 0].tolist() == [1, 5]
    assert scores.tolist() == [[pytest.approx(0.9)], [pytest.approx(0.8)]]
    assert FAMILY.read_masks(outputs, True)[0].shape == (2, 3, 288, 288)


@pytest.mark.slow
def test_placement_of_no_memory(reduced: FamilyExport) -> None:
    pixels = torch.rand(1, 3, 1008, 1008, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        published, meta = (Sam3Encoder(reduced.model, add)(pixels) for add in (False, True))
        expected = reduced.model.get_image_embeddings(pixels)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(published, expected, strict=True))
    added = reduced.model.no_memory_embedding.reshape(1, -1, 1, 1)
    assert torch.allclose(meta[2] - published[2], added.expand_as(meta[2]), atol=1e-5)


@pytest.mark.slow
def test_checkpoint_folder(reduced: FamilyExport, tmp_path: Path) -> None:
    folder = tmp_path / "sam3"
    reduced.model.save_pretrained(folder)
    for given in (folder, folder / "model.safetensors"):
        loaded = EXPORTER.load(given)
        for name, tensor in reduced.model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="readable SAM3 checkpoint") as caught:
        EXPORTER.load(folder)
    assert "\n" not in str(caught.value)
    shutil.copy(folder / "model.safetensors", tmp_path / "alone.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        EXPORTER.load(tmp_path / "alone.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        EXPORTER.load(tmp_path / "absent")
