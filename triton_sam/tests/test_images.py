"""Opening pictures and making the encoder's input."""

import io

import numpy as np
import pytest
from PIL import Image

from triton_sam.errors import ImageError
from triton_sam.families import get_family
from triton_sam.images import encoder_input, open_image

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=form, **options)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "WEBP"])
def test_the_same_pixels_from_path_bytes_image_and_array(tmp_path, form):
    image = Image.fromarray(RGB)
    content = encoded(image, form, **({"lossless": True} if form == "WEBP" else {}))
    path = tmp_path / f"image.{form.lower()}"
    path.write_bytes(content)
    for source in (path, str(path), content, bytearray(content), memoryview(content), image, RGB):
        opened = open_image(source)
        assert opened.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(opened), RGB)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"])
def test_every_mode_becomes_rgb(mode):
    image = Image.fromarray(RGB[:, :, 0]).convert("I;16") if mode == "I;16" else Image.fromarray(RGB).convert(mode)
    opened = open_image(image)
    assert opened.mode == "RGB"
    assert opened.size == (30, 20)


def test_exif_orientation_turns_the_picture_upright():
    image = Image.fromarray(RGB)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side: rotate by 270 degrees to see it upright
    opened = open_image(encoded(image, "PNG", exif=exif))
    assert opened.size == (20, 30)
    np.testing.assert_array_equal(np.asarray(opened), np.rot90(RGB, -1))


def test_16_bit_is_stretched_from_its_own_range(tmp_path):
    values = np.linspace(1000, 1510, 600).astype(np.uint16).reshape(20, 30)
    Image.fromarray(values).save(tmp_path / "deep.tif")
    for source in (tmp_path / "deep.tif", values):
        grey = np.asarray(open_image(source))[:, :, 0]
        assert (grey.min(), grey.max()) == (0, 255)
        assert (np.diff(grey.ravel().astype(int)) >= 0).all()


def test_a_flat_16_bit_picture_is_black_not_an_error():
    assert np.asarray(open_image(np.full((4, 5), 300, np.uint16))).max() == 0


def test_palette_with_transparency_and_animation():
    palette = Image.fromarray(RGB).convert("P")
    palette.info["transparency"] = b"\x00" * 128
    assert open_image(palette).mode == "RGB"
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_image(gif).getpixel((0, 0)) == (255, 0, 0)


def test_one_pixel_and_grey_and_alpha_arrays():
    assert open_image(np.zeros((1, 1, 3), np.uint8)).size == (1, 1)
    assert open_image(RGB[:, :, 0]).mode == "RGB"
    np.testing.assert_array_equal(np.asarray(open_image(np.dstack([RGB, RGB[:, :, :1]]))), RGB)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "0 bytes"),
        (b"<html>not a picture</html>", "not an image"),
        ("no/such/file.jpg", "no image at"),
        (".", "folder"),
        (3, "int"),
        (None, "NoneType"),
        (np.zeros((4, 4, 2), np.uint8), r"\(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (np.full((2, 2), np.nan), "float64"),
    ],
)
def test_what_is_no_picture_is_one_clear_error(source, words):
    with pytest.raises(ImageError, match=words):
        open_image(source)


def test_empty_truncated_and_huge_files(tmp_path):
    empty = tmp_path / "empty.jpg"
    empty.touch()
    with pytest.raises(ImageError, match=r"empty\.jpg is empty \(0 bytes\)"):
        open_image(empty)
    whole = encoded(Image.fromarray(RNG.integers(0, 256, (200, 200, 3), dtype=np.uint8)), "JPEG")
    with pytest.raises(ImageError, match="truncated"):
        open_image(whole[: len(whole) // 2])
    bomb = encoded(Image.new("1", (30_000, 30_000)))
    assert len(bomb) < 1_000_000
    with pytest.raises(ImageError, match="too large"):
        open_image(bomb)


def test_encoder_input_is_rgb_in_0_to_1():
    tensor = encoder_input(Image.new("RGB", (7, 5), (255, 0, 51)), get_family("sam2"))
    assert tensor.shape == (1, 3, 1024, 1024)
    assert tensor.dtype == np.float32
    np.testing.assert_allclose(tensor[0, :, 500, 500], [1.0, 0.0, 0.2], atol=1e-6)


@pytest.mark.export
@pytest.mark.parametrize("size", [(1800, 1200), (1024, 1024), (64, 2000), (3, 5), (1, 1)])
def test_encoder_input_equals_the_official_resize(size):
    pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    pixels = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    resize = torchvision.transforms.Resize((1024, 1024))
    expected = resize(torchvision.transforms.ToTensor()(pixels))[None].numpy()
    actual = encoder_input(Image.fromarray(pixels), get_family("sam2"))
    np.testing.assert_allclose(actual, expected, atol=2e-6)
