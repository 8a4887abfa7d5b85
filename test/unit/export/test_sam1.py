"""What only SAM1 has: frames that equal those of the official code, and its official ONNX decoder on our embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.export
torch = pytest.importorskip("torch")
pytest.importorskip("segment_anything")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from segment_anything import SamPredictor  # noqa: E402
from segment_anything.modeling import Sam  # noqa: E402
from segment_anything.utils.onnx import SamOnnxModel  # noqa: E402
from segment_anything.utils.transforms import ResizeLongestSide  # noqa: E402
from support.family_exports import FamilyExport, sam1_micro  # noqa: E402

from triton_sam.families.sam1 import PIXEL_MEAN, SAM1  # noqa: E402
from triton_sam.inputs.images import encoder_input, open_image  # noqa: E402
from triton_sam.masks.boxes import intersection_over_union  # noqa: E402
from triton_sam.masks.resize import full_size_logits  # noqa: E402

SHAPES = [(600, 400), (400, 600), (1024, 1024), (333, 777), (1025, 3), (2047, 1365), (7, 5)]
FAMILY = SAM1


@pytest.fixture(scope="module")
def micro() -> FamilyExport:
    return sam1_micro()


def test_frame_is_the_official_one() -> None:
    transform = ResizeLongestSide(1024)
    drawn = np.random.default_rng(0).integers(10, 3000, (300, 2)).tolist()
    for width, height in [*SHAPES, *drawn]:
        size = width, height
        assert FAMILY.resized(size)[::-1] == transform.get_preprocess_shape(height, width, 1024), size
        corners = np.array([[0.0, 0.0], [width, height], [width / 3, height / 7]])
        np.testing.assert_allclose(
            corners * np.array(FAMILY.scale(size)), transform.apply_coords(corners, (height, width)), rtol=1e-12
        )


@pytest.mark.parametrize("size", SHAPES)
def test_encoder_input_is_the_official_one(size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8))
    model = Sam(torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity())
    model.image_encoder.img_size = 1024
    resized = ResizeLongestSide(1024).apply_image(np.asarray(image))
    expected = model.preprocess(torch.from_numpy(resized).permute(2, 0, 1)[None].float()).numpy()
    mean = np.array(PIXEL_MEAN, np.float32).reshape(1, 3, 1, 1)
    centred = encoder_input(image, FAMILY) - mean
    std = np.array([58.395, 57.12, 57.375], np.float32).reshape(1, 3, 1, 1) / np.float32(255)
    np.testing.assert_allclose(centred / std, expected, atol=1e-5)
    assert (centred[expected == 0] == 0).all()


@pytest.mark.parametrize("size", SHAPES[:4])
def test_full_size_masks_are_the_official_ones(size: tuple[int, int]) -> None:
    logits = np.random.default_rng(2).standard_normal((2, 3, 256, 256), dtype=np.float32)
    model = Sam(torch.nn.Identity(), torch.nn.Identity(), torch.nn.Identity())
    model.image_encoder.img_size = 1024
    expected = model.postprocess_masks(torch.from_numpy(logits), FAMILY.resized(size)[::-1], size[::-1])
    np.testing.assert_allclose(full_size_logits(logits, size, FAMILY), expected.numpy(), atol=1e-4)


@pytest.mark.slow
def test_the_official_onnx_decoder_gives_the_official_masks_with_our_embeddings(
    micro: FamilyExport, images: Path
) -> None:
    """Paintera's sam-link decodes our embeddings by an export of this official module."""
    image = open_image(images / "coffee.jpg")
    session = onnxruntime.InferenceSession(micro.files["encoder"])
    (embeddings,) = session.run(None, {FAMILY.encoder.input_names[0]: encoder_input(image, FAMILY)})
    predictor = SamPredictor(micro.model)
    predictor.set_image(np.asarray(image))
    decoder = SamOnnxModel(micro.model, return_single_mask=False)
    for points, labels in (([[300, 200]], [1]), ([[120, 90], [420, 310]], [1, 0])):
        masks, scores, logits = predictor.predict(np.array(points), np.array(labels), multimask_output=True)
        # The official example of that module adds a padding point where there is no box.
        coords = predictor.transform.apply_coords(np.array([*points, [0, 0]], np.float32), image.size[::-1])
        with torch.no_grad():
            answers = decoder(
                torch.from_numpy(embeddings),
                torch.from_numpy(coords[None].astype(np.float32)),
                torch.tensor([[*labels, -1.0]]),
                torch.zeros(1, 1, 256, 256),
                torch.zeros(1),
                torch.tensor(image.size[::-1], dtype=torch.float32),
            )
        full, quality, low = (each.numpy()[0, 1:] for each in answers)  # without the mask for several points
        np.testing.assert_allclose(low, logits, atol=1e-3)
        np.testing.assert_allclose(quality, scores, atol=1e-4)
        for found, mask in zip(full > 0, masks, strict=True):
            assert intersection_over_union(found, mask) > 0.999
