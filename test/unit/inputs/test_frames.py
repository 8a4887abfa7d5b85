"""The frames of a video as tensors, as the official predictor prepares them."""

import numpy as np
import pytest
from PIL import Image

from triton_sam.inputs.frames import frame_input


def test_every_byte_is_divided_as_by_the_official_predictor():
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    found = frame_input(Image.fromarray(pixels), 16)
    assert found.dtype == np.float32
    assert np.array_equal(found, (pixels / 255.0).transpose(2, 0, 1)[None].astype(np.float32))
    assert np.unique(found).size == 256


def test_values_may_have_another_range():
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    found = frame_input(Image.fromarray(pixels), 16, (-1.0, 1.0))
    expected = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    assert np.array_equal(found, expected.transpose(2, 0, 1)[None])


def test_a_frame_is_resized_as_by_the_official_predictor(tmp_path):
    torch = pytest.importorskip("torch")
    official = pytest.importorskip("sam2.utils.misc")
    pixels = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "frame.png")
    expected, height, width = official._load_img_as_tensor(str(tmp_path / "frame.png"), 64)
    assert (height, width) == (37, 61)
    assert np.array_equal(frame_input(Image.fromarray(pixels), 64)[0], expected.to(torch.float32).numpy())
