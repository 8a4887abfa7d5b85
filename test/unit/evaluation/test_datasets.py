"""The data sets of `triton-sam evaluate`: photographs, held-out scenes, and folders with and without faults."""

import numpy as np
import pytest
from PIL import Image

from triton_sam.errors import ConfigurationError, ImageError, InputError

pytest.importorskip("scipy", reason="needs the evaluate extra")
pytest.importorskip("skimage", reason="needs the evaluate extra")
from triton_sam.evaluation.clicks import tight_box
from triton_sam.evaluation.datasets import cell, coins, open_dataset, open_folder, read_labels

LABELS = np.zeros((20, 30), np.uint8)
LABELS[3:10, 2:9] = 4
LABELS[5:16, 15:26] = 9


def test_the_coins_are_24_round_objects():
    sample = coins()
    assert sample.image.size == (384, 303)
    areas = np.bincount(sample.labels.ravel())[1:]
    assert len(areas) == 24
    assert areas.min() == 1077
    for number, area in enumerate(areas, start=1):
        x1, y1, x2, y2 = tight_box(sample.labels == number)
        assert area / ((x2 - x1) * (y2 - y1)) == pytest.approx(np.pi / 4, abs=0.07)
        assert min(x1, y1, 384 - x2, 303 - y2) > 0


def test_the_cell_is_one_round_object():
    sample = cell()
    assert np.unique(sample.labels).tolist() == [0, 1]
    x1, y1, x2, y2 = tight_box(sample.labels == 1)
    assert np.count_nonzero(sample.labels) / ((x2 - x1) * (y2 - y1)) == pytest.approx(np.pi / 4, abs=0.02)


def test_synthetic_scenes_are_held_out():
    pytest.importorskip("cv2")
    scenes = pytest.importorskip("triton_sam.scenes.scenes")
    first, second = open_dataset("synthetic", 2)
    assert first.name == f"scene {scenes.HELD_OUT_SEED}"
    assert first.labels.shape == (first.image.height, first.image.width)
    assert first.labels.max() > 0
    assert next(iter(open_dataset("synthetic", 1, seed=1))).name not in (first.name, second.name)
    assert len(open_dataset("synthetic")) == 50


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere",), "there is no data set nowhere"),
        (("coins", 0), "count at least 1"),
        (("synthetic", 20_000), "at most"),
    ],
)
def test_an_unknown_data_set_and_a_wrong_count_are_refused(arguments, text):
    with pytest.raises(ConfigurationError, match=text):
        open_dataset(*arguments)


@pytest.fixture
def folder(tmp_path):
    """A folder with images and label masks in both layouts, and with files that have no partner."""
    (tmp_path / "labels").mkdir()
    image = Image.new("RGB", (30, 20), (40, 90, 40))
    for name in ("a.jpg", "b.tif", "c.png", "alone.png"):
        image.save(tmp_path / name)
    Image.fromarray(LABELS).save(tmp_path / "a_labels.png")
    Image.fromarray(LABELS.astype(np.uint16) * 1000).save(tmp_path / "b_labels.tif")
    Image.fromarray(LABELS.astype(np.int32)).save(tmp_path / "labels" / "c.tif")
    Image.fromarray(LABELS).save(tmp_path / "orphan_labels.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_a_folder_is_read_in_both_layouts(folder):
    data = open_folder(folder)
    assert [sample.name for sample in data] == ["a.jpg", "b.tif", "c.png"]
    assert [np.unique(sample.labels).tolist() for sample in data] == [[0, 4, 9], [0, 4000, 9000], [0, 4, 9]]
    assert data.unused == ("alone.png", "orphan_labels.png")
    assert len(open_dataset(str(folder), 2)) == 2


def test_the_orientation_of_a_photograph_is_followed(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 30)).save(folder / "a.jpg", exif=exif)
    sample = next(iter(open_folder(folder)))
    assert (sample.image.size, sample.labels.shape) == ((30, 20), (20, 30))


@pytest.mark.parametrize("second", ["a.tif", "a_labels.tif", "labels/a.png"])
def test_folders_without_pairs_and_two_files_for_one_image_are_refused(tmp_path, second):
    with pytest.raises(InputError, match=r"contains no image with a label mask: expected NAME\.jpg"):
        open_folder(tmp_path)
    (tmp_path / "labels").mkdir()
    for name in ("a.png", "a_labels.png", second):
        Image.new("L", (30, 20), 1).save(tmp_path / name)
    with pytest.raises(InputError, match=rf"{second.replace('.', '[.]')}.* both belong to 'a'"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize("name", ["a.jpg", "a_labels.png"])
def test_a_label_mask_of_another_size_and_a_damaged_file_are_refused(folder, name):
    Image.new("L", (31, 20)).save(folder / "b_labels.tif")
    with pytest.raises(InputError, match=r"b_labels.tif has 31x20 pixels, but b.tif has 30x20"):
        open_folder(folder)
    (folder / name).write_bytes(b"no image")
    with pytest.raises(ImageError, match=f"{name} is not an image"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("image", "text"),
    [(Image.new("RGB", (3, 3)), "colour image"), (Image.fromarray(np.zeros((3, 3), np.float32)), "floating-point")],
)
def test_label_masks_in_colour_or_with_floating_point_values_are_refused(tmp_path, image, text):
    image.save(tmp_path / "labels.tif")
    with pytest.raises(ImageError, match=text):
        read_labels(tmp_path / "labels.tif")


def test_label_masks_of_one_bit_or_with_a_palette_are_read(tmp_path):
    expected = LABELS > 0
    Image.fromarray(expected).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "bits.png"), expected.astype(np.uint8))
    palette = Image.fromarray(LABELS).convert("P")
    palette.putdata(LABELS.ravel().tolist())
    palette.save(tmp_path / "palette.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "palette.png"), LABELS)
