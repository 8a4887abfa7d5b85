"""Images are opened from every source and become the encoder's input."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngImageFile
from support.contents import encoded

from triton_sam.errors import ImageError, MissingDependencyError
from triton_sam.families import get_family
from triton_sam.inputs.header import as_stored, size_of
from triton_sam.inputs.images import encoder_input, frame_input, image_bytes, open_image, to_png

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "WEBP"])
def test_path_bytes_image_and_array_give_the_same_pixels(tmp_path, form):
    image = Image.fromarray(RGB)
    content = encoded(image, form, **({"lossless": True} if form == "WEBP" else {}))
    path = tmp_path / f"an image.{form.lower()}"
    path.write_bytes(content)
    views = (bytearray(content), memoryview(content[::-1])[::-1])
    encodings = (path, str(path), path.as_uri(), content, *views, io.BytesIO(content))
    for source in (*encodings, image, RGB):
        opened = open_image(source)
        assert opened.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(opened), RGB)
    encodings[-1].seek(0)
    assert [image_bytes(source) for source in encodings] == [content] * len(encodings)
    with path.open("rb") as file:
        assert open_image(file).size == (30, 20)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "I;16"])
def test_a_turned_tiff_file_equals_its_bytes(tmp_path, mode):
    pixels = RGB[:, :, 0] * np.uint16(255) if mode == "I;16" else np.asarray(Image.fromarray(RGB).convert(mode))
    Image.fromarray(pixels, None if mode == "I;16" else mode).save(path := tmp_path / "turned.tif", tiffinfo={274: 6})
    np.testing.assert_array_equal(np.asarray(open_image(path)), np.asarray(open_image(path.read_bytes())))


def test_the_preview_of_a_raw_photograph_is_not_its_image(tmp_path):
    with pytest.importorskip("tifffile").TiffWriter(tmp_path / "photo.dng") as file:
        file.write(RGB[:4, :6], subfiletype=1, subifds=1, photometric="rgb")
        file.write(RGB, photometric="rgb")
    with pytest.raises(ImageError, match="is a raw photograph"):
        open_image(tmp_path / "photo.dng")


@pytest.mark.parametrize("form", ["PNG", "WEBP", "JPEG"])
def test_an_image_with_damaged_exif_data_is_opened(form):
    assert open_image(encoded(Image.fromarray(RGB), form, exif=b"Exif\x00\x00garbage!")).size == (30, 20)


@pytest.mark.parametrize("turn", [6, 3, 1, 0, 9])
def test_a_jpeg_without_its_orientation_has_the_same_pixels(turn):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = turn
    exif[ExifTags.Base.Make] = "Camera"
    for order in ("<", ">"):
        exif.endian = order
        content = encoded(Image.fromarray(RGB), "JPEG", exif=exif)
        lying, left = as_stored(content)
        assert (len(lying), left) == (len(content), 1)
        with Image.open(io.BytesIO(content)) as stored, Image.open(io.BytesIO(lying)) as opened:
            np.testing.assert_array_equal(np.asarray(opened), np.asarray(stored))
            turned = {ExifTags.Base.Orientation: 1} if turn in (3, 6) else {}
            assert dict(opened.getexif()) == {**stored.getexif(), **turned}


def with_late_exif(png):
    """Move the EXIF chunk of a PNG file behind its pixels, where the standard allows it."""
    start = png.index(b"eXIf") - 4
    chunk = png[start : start + 12 + int.from_bytes(png[start : start + 4], "big")]
    lean = png.replace(chunk, b"")
    return lean.replace(lean[-12:], chunk + lean[-12:])


def test_the_size_of_a_png_is_known_without_its_pixels(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    content, path = with_late_exif(encoded(Image.fromarray(RGB), exif=exif)), tmp_path / "late.png"
    path.write_bytes(content)
    monkeypatch.setattr(PngImageFile, "load", None)
    monkeypatch.setattr(type(path), "read_bytes", None)
    assert size_of(content) == size_of(path) == (20, 30)


@pytest.mark.parametrize("form", ["PNG", "late PNG", "WEBP", "two segments of JPEG", "TIFF"])
def test_an_image_as_it_is_stored(form):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    kind = form.split()[-1]
    content = encoded(Image.fromarray(RGB), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    if form == "late PNG":
        content = with_late_exif(content)
    if form == "two segments of JPEG":
        segment = content[2 : content.index(b"Exif\0\0") + len(exif.tobytes())]
        content = content[:2] + segment + content[2:]
    upright = open_image(content)
    assert upright.size == size_of(content) == (20, 30)
    lying, left = as_stored(content)
    assert left == (1 if "PNG" in form or form == "TIFF" else 6)
    assert (open_image(lying).size == (30, 20)) == ("PNG" in form)
    if form != "TIFF":  # Pillow itself turns it
        stored = open_image(to_png(lying, turn=left) if left != 1 else lying)
        np.testing.assert_array_equal(np.asarray(stored), np.rot90(np.asarray(upright)))


def stretched_at_once(values):
    """Stretch all values at a time, as a reference for the blocks of rows."""
    values = values.astype(np.float64 if values.dtype == np.int32 else np.float32)
    finite = np.isfinite(values)
    low, high = values[finite].min(), values[finite].max()
    scale = 255.0 / (high - low) if high > low else 0.0
    return np.rint((np.where(finite, values, low) - low) * scale).astype(np.uint8)


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_blocks_of_rows_change_no_value(monkeypatch, kind, rows):
    monkeypatch.setattr("triton_sam.inputs.deep._BLOCK_PIXELS", rows * 30)
    values = np.random.default_rng(rows).normal(1000, 300, (20, 30)).clip(0).astype(kind)
    if kind is np.float32:
        values[3, 4:7], values[19, 0] = np.nan, -np.inf
    expected = stretched_at_once(values)
    for channel in np.asarray(open_image(Image.fromarray(values))).transpose(2, 0, 1):
        np.testing.assert_array_equal(channel, expected)
    if kind is np.uint16:
        colours = np.dstack([values, values * 2, values // 3])
        for order in (colours, colours.astype(">u2")):
            np.testing.assert_array_equal(np.asarray(open_image(order)), stretched_at_once(colours))


MEMORY = """
import io, sys
import numpy as np
from PIL import Image
from triton_sam.families import get_family
from triton_sam.inputs.images import encoder_input, open_image

def highest():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10

stream = io.BytesIO()
black = Image.fromarray(np.zeros((1, 1), np.dtype(sys.argv[1]))).resize((4000, 4000))
black.save(stream, "TIFF", compression="packbits")
del black
encoder_input(open_image(np.zeros((9, 9), np.uint16)), get_family("sam2"))
before = highest()
opened = open_image(stream.getvalue())
print(highest() - before)
encoder_input(opened, get_family("sam2"))
print(highest() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory is read from /proc")
@pytest.mark.parametrize("kind", ["uint16", "float32"])
def test_an_image_of_more_bits_takes_little_memory(kind):
    """16 megapixels take 61 MiB as RGB, and as much as floats, which are needed of one band at a time."""
    done = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, check=True)
    opened, as_input = map(int, done.stdout.split())
    assert opened < 130
    assert as_input < 190


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_a_file_of_more_bits_has_a_lower_limit_of_pixels(monkeypatch, kind):
    """It is refused before it is decoded."""
    monkeypatch.setattr("triton_sam.inputs.deep.MAX_DEEP_PIXELS", 600)
    content = encoded(Image.fromarray(np.ones((20, 30), kind)), "TIFF")
    assert open_image(content).size == (30, 20)
    large = Image.fromarray(np.ones((20, 31), kind))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ImageError, match=r"too large: 31 x 20 pixels of more than 8 bits; at most 600 .* 8 bits first"):
        open_image(encoded(large, "TIFF"))
    monkeypatch.undo()
    monkeypatch.setattr("triton_sam.inputs.deep.MAX_DEEP_PIXELS", 600)
    assert open_image(large).size == (31, 20)  # it is in the memory of the caller already
    assert open_image(encoded(Image.fromarray(np.ones((20, 31), np.uint8)))).size == (31, 20)


@pytest.mark.filterwarnings("error")
def test_arrays_of_one_pixel_one_value_grey_values_and_alpha_are_opened():
    assert np.asarray(open_image(np.full((4, 5), 300, np.uint16))).max() == 0
    assert open_image(np.zeros((1, 1, 3), np.uint8)).size == (1, 1)
    assert open_image(RGB[:, :, 0]).mode == "RGB"
    np.testing.assert_array_equal(np.asarray(open_image(np.dstack([RGB, RGB[:, :, :1]]))), RGB)
    np.testing.assert_array_equal(np.asarray(open_image(RGB[:, :, 1:2]))[:, :, 0], RGB[:, :, 1])


CLOSED = io.BytesIO(encoded(Image.fromarray(RGB)))
CLOSED.close()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (CLOSED, "closed"),
        (b"", "0 bytes"),
        (b"<html>no pixels</html>", "not an image"),
        ("no/such/file.jpg", "there is no image at"),
        (".", "folder"),
        (3, "int"),
        (np.zeros((4, 4, 2), np.uint8), r"\(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (Image.fromarray(np.full((2, 2), np.nan, np.float32)), "no finite pixel value"),
        (io.StringIO("text"), "mode 'rb'"),
        ("file://[x/a.jpg", r"^file://\[x/a.jpg is not a valid URL: write file:///path/of/the/file$"),
    ],
)
def test_a_source_that_is_not_an_image_is_refused(source, words):
    with pytest.raises(ImageError, match=words):
        open_image(source)


def test_every_exception_of_a_decoder_becomes_a_one_line_image_error(tmp_path, monkeypatch):
    """The exception may be of any type, may come late, and may have a message of several lines or none."""
    path = tmp_path / "image.png"
    path.write_bytes(encoded(Image.fromarray(RGB)))
    for fault, words in ((KeyError("first\nsecond"), "'first"), (RuntimeError(), "RuntimeError")):
        monkeypatch.setattr("PIL.Image.Image.load", lambda self, fault=fault: (_ for _ in ()).throw(fault))
        with pytest.raises(ImageError) as caught:
            open_image(path)
        assert str(caught.value).startswith(f"{path} cannot be read: {words}")
        assert "\n" not in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr("PIL.Image.Image.convert", lambda *_: (_ for _ in ()).throw(ValueError("a\nb")))
    with pytest.raises(ImageError, match=r"^the image is damaged: a$"):
        open_image(Image.fromarray(RGB))
    monkeypatch.undo()
    path.chmod(0)
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "denied")))
    with pytest.raises(ImageError, match=f"^{path} cannot be read: "):
        image_bytes(path)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "I;16"])
def test_arrays_and_pillow_images_are_encoded_without_loss(mode):
    noise = np.random.default_rng(1).integers(0, 256, (30, 40, 4), np.uint8)
    array = {"RGB": noise[:, :, :3], "L": noise[:, :, 0], "RGBA": noise, "I;16": noise[:, :, 0].astype(np.uint16) * 9}
    for source in (array[mode], Image.fromarray(array[mode])):
        np.testing.assert_array_equal(open_image(image_bytes(source)), open_image(source))


def test_each_family_has_its_own_value_range_and_padding():
    white = Image.new("RGB", (40, 20), "white")
    squashed = encoder_input(white, get_family("sam3"))
    assert squashed.shape == (1, 3, 1008, 1008)
    np.testing.assert_allclose(squashed, 1.0, atol=1e-6)
    np.testing.assert_allclose(encoder_input(Image.new("RGB", (3, 9)), get_family("sam3")), -1.0, atol=1e-6)
    sam1 = get_family("sam1")
    for size, inside in (((40, 20), np.s_[:, :512, :]), ((20, 40), np.s_[:, :, :512])):
        (tensor,) = encoder_input(Image.new("RGB", size, "white"), sam1)
        outside = np.ones(tensor.shape, np.bool_)
        outside[inside] = False
        np.testing.assert_allclose(tensor[inside], 1.0, atol=1e-6)
        expected = np.broadcast_to(np.float32(sam1.pad_color)[:, None, None], tensor.shape)
        np.testing.assert_allclose(tensor[outside], expected[outside], atol=1e-6)


@pytest.mark.export
@pytest.mark.parametrize("size", [(1800, 1200), (1024, 1024), (64, 2000), (1, 1)])
def test_encoder_input_equals_the_official_resize(size):
    pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    pixels = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    resize = torchvision.transforms.Resize((1024, 1024))
    expected = resize(torchvision.transforms.ToTensor()(pixels))[None].numpy()
    actual = encoder_input(Image.fromarray(pixels), get_family("sam2"))
    np.testing.assert_allclose(actual, expected, atol=2e-6)


# HEIC photographs without pillow-heif

HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64)


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # import fails


@pytest.mark.parametrize("read", [open_image, image_bytes])
@pytest.mark.parametrize("kind", ["bytes", "path", "file"])
def test_the_error_names_the_extra(without, tmp_path, read, kind):
    path = tmp_path / "photo.heic"
    path.write_bytes(HEIC)
    source = {"bytes": HEIC, "path": path, "file": io.BytesIO(HEIC)}[kind]
    with pytest.raises(MissingDependencyError, match=r"need the heic extra \(pillow_heif is missing\)"):
        read(source)


# Frames of a video as tensors


def test_every_byte_is_divided_as_by_the_official_predictor_or_mapped_to_another_range():
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    shares = pixels.astype(np.float32) / np.float32(255)
    for found, expected in (
        (frame_input(Image.fromarray(pixels), 16), (pixels / 255.0).astype(np.float32)),
        (frame_input(Image.fromarray(pixels), 16, (-1.0, 1.0)), (shares - np.float32(0.5)) / np.float32(0.5)),
    ):
        assert found.dtype == np.float32
        assert np.array_equal(found, expected.transpose(2, 0, 1)[None])
        assert np.unique(found).size == 256


def test_a_frame_is_resized_as_by_the_official_predictor(tmp_path):
    torch = pytest.importorskip("torch")
    official = pytest.importorskip("sam2.utils.misc")
    pixels = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "frame.png")
    expected, height, width = official._load_img_as_tensor(str(tmp_path / "frame.png"), 64)
    assert (height, width) == (37, 61)
    assert np.array_equal(frame_input(Image.fromarray(pixels), 64)[0], expected.to(torch.float32).numpy())
