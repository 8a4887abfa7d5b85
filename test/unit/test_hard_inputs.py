"""Every reader over images as other programs write them, after the table in support/hard_inputs.py."""

import asyncio
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.hard_inputs import FOLDER, IMAGES, LARGE, SMALL

from triton_sam.annotate.job import opened
from triton_sam.annotate.large import Tiling, read_large_source
from triton_sam.annotate.sources import read_source
from triton_sam.errors import ImageError
from triton_sam.inputs import deep, header
from triton_sam.inputs.formats import FORMATS, LARGE_SUFFIXES, TABLE, UPLOADS, is_image, register_opener
from triton_sam.inputs.images import image_bytes, open_image
from triton_sam.integrations.napari.sources import Source
from triton_sam.service.budgets import Workers
from triton_sam.service.metrics import Metrics
from triton_sam.service.problems import Problem
from triton_sam.service.store import accept_image
from triton_sam.tiles import open_large_image

rasterio = pytest.importorskip("rasterio")
tifffile = pytest.importorskip("tifffile")
for package in ("zarr", "imagecodecs", "pillow_heif", "fastapi"):
    pytest.importorskip(package)

ROWS = {each.name: each for each in IMAGES}
READ = [each for each in IMAGES if each.quarters is not None]
by_name = pytest.mark.parametrize("hard", IMAGES, ids=lambda hard: hard.name)


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    """Let every test hear each note anew."""
    monkeypatch.setattr(header, "_SAID", set())


def corners(pixels):
    """Return the colours in the middle of each quarter."""
    values = np.asarray(pixels)
    values = np.dstack([values] * 3) if values.ndim == 2 else values
    height, width = values.shape[:2]
    places = [(y, x) for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]
    return tuple(tuple(values[place].tolist()) for place in places)


def same(one, other):
    return np.array_equal(np.asarray(one), np.asarray(other))


def check(hard, pixels, expected=None):
    height, width = np.asarray(pixels).shape[:2]
    assert (width, height) == hard.size
    np.testing.assert_allclose(corners(pixels), expected or hard.quarters, atol=hard.tolerance)


@by_name
def test_a_client_opens_it_and_servers_see_the_same(hard):
    path = FOLDER / hard.name
    if hard.quarters is None:
        for source in (path, path.read_bytes()):
            with pytest.raises(ImageError, match=re.escape(hard.words)):
                open_image(source)
        return
    image = open_image(path)
    check(hard, image)
    content = path.read_bytes()
    assert same(open_image(content), image)
    sent = image_bytes(path)
    assert (sent == content) == hard.by_pillow
    assert same(open_image(sent, FORMATS), image)


def test_a_run_takes_all_of_a_folder_and_reports_further_pages():
    source = read_source(str(FOLDER))
    assert {item.name for item in source.items} == {name for name in ROWS if is_image(Path(name))} == set(ROWS)
    assert [(each.image, each.what) for each in source.left_out] == [
        ("(no suffix)", "5 files"),
        ("*.vrt", "1 file"),
        (".*", "21 files"),
    ]
    for item in source.items:
        hard = ROWS[item.name]
        if hard.quarters is not None:
            found = opened(item)
            assert found.size == hard.size
            what = [f"pages 2 to {hard.pages}"] if hard.pages > 1 else []
            assert [each.what for each in found.skipped] == what


def test_a_large_run_takes_all_large_images_of_a_folder():
    """The series of a folder that bioformats2raw wrote are images of their own."""
    source = read_large_source(str(FOLDER), None, 1, Tiling())
    folders = {"plain.zarr", "bits.zarr", "one_series.zarr/0", "two_series.zarr/0", "two_series.zarr/1"}
    files = {each.name for each in READ if each.name.endswith(LARGE_SUFFIXES)}
    assert {item.name for item in source.items} == folders | files
    assert [(each.image, "complex64" in each.why) for each in source.skipped] == [("complex.tif", True)]
    left = {each.image: each.why for each in source.left_out}
    assert left["*.png"] == "small images are annotated without --large"
    assert left["*.vrt"] == "their suffix is not that of an image"


@by_name
def test_a_large_image_shows_the_same(hard):
    path = FOLDER / hard.name
    is_large = path.suffix in (".tif", ".jp2", ".j2k")
    words = hard.words if is_large else f"{SMALL}|there is no such file|cannot be read as a large image"
    if not is_large or hard.quarters is None:
        with pytest.raises(ImageError, match=words):
            open_large_image(path)
        return
    with open_large_image(path) as image:
        assert image.size == hard.size
        check(hard, image.levels[0].read(0, 0, *image.size), hard.large or hard.quarters)
        part = image.levels[0].read(2, 3, 15, 14)
        np.testing.assert_array_equal(part, image.levels[0].read(0, 0, *image.size)[3:14, 2:15])


@pytest.mark.parametrize("name", LARGE)
def test_other_large_images(name):
    expected = LARGE[name]
    if isinstance(expected, str):
        with pytest.raises(ImageError, match=expected):
            open_large_image(FOLDER / name)
        return
    with open_large_image(FOLDER / name) as image:
        assert corners(image.levels[0].read(0, 0, *image.size)) == expected


@pytest.fixture(scope="module")
def workers():
    found = Workers(100_000_000, Metrics())
    yield found
    found.close()


@by_name
def test_the_service_accepts_it_and_keeps_what_servers_read(hard, workers):
    content = (FOLDER / hard.name).read_bytes()
    if hard.quarters is None or not hard.uploaded:
        with pytest.raises((Problem, ImageError)) as caught:  # noqa: PT012 - either step may refuse it
            kept, _ = asyncio.run(accept_image(content, 100, workers))
            open_image(kept, FORMATS)  # the service looks at the headers of most files only
        assert not isinstance(caught.value, Problem) or caught.value.status in (400, 413, 415)
        return
    kept, size = asyncio.run(accept_image(content, 100, workers))
    assert (kept == content) == hard.by_pillow
    opened_there = open_image(kept, FORMATS)
    check(hard, opened_there)
    assert same(opened_there, open_image(content))
    assert size == hard.size or hard.name == "text_orientation_6.png"  # see check_image()


@pytest.mark.parametrize("name", ["grey_12_in_16.tif", "int16.tif", "nan.tif", "float64.tif", "uint32.tif"])
def test_napari_sends_the_same_between_the_limits(name):
    values = tifffile.imread(FOLDER / name)
    finite = values[np.isfinite(values)]
    source = Source([values], limits=(float(finite.min()), float(finite.max())))
    np.testing.assert_array_equal(source.pixels(()), np.asarray(open_image(FOLDER / name)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pages.tif", "has 3 pages or frames, and only the first is used"),
        ("frames.gif", "has 3 pages or frames, and only the first is used"),
        ("transparent.png", "has transparent pixels"),
        ("grey_12_in_16.tif", "300 becomes black, and 3900 white"),
        ("nodata_65535.tif", "300 becomes black, and 3900 white"),
        ("bands_5.tif", "has 5 channels, and the first three"),
    ],
)
def test_what_is_done_to_an_image_is_said_once(name, words, caplog):
    for _ in range(2):
        open_image(FOLDER / name)
        image_bytes(FOLDER / name)
    (record,) = caplog.records
    assert (record.levelno, f"{name} {words}" in record.message or words in record.message) == (logging.WARNING, True)


def test_axes_of_a_large_image_are_said_and_chosen(caplog):
    with open_large_image(FOLDER / "pages.tif"):
        assert "I has 3 positions, and the first is shown. For another one, give --index I=1." in caplog.text
    with open_large_image(FOLDER / "pages.tif", index={"I": 2}) as image:
        assert image.levels[0].read(0, 0, *image.size).max() == 0
    with pytest.raises(ImageError, match="no position 3 along the axis I"):
        open_large_image(FOLDER / "pages.tif", index={"I": 3})


def test_percentiles_leave_outliers_out(tmp_path):
    """Pixels without data that no tag names: the valid ones keep their contrast."""
    values = np.linspace(300, 3900, 200 * 100).reshape(100, 200).astype(np.uint16)
    values[:1, :50] = 65535
    tifffile.imwrite(tmp_path / "map.tif", values)
    with open_large_image(tmp_path / "map.tif") as image:
        assert np.median(image.levels[0].read(0, 0, 200, 100)) < 10
    with open_large_image(tmp_path / "map.tif", stretch=(1, 99)) as image:
        shown = image.levels[0].read(0, 0, 200, 100)
    assert 115 < np.median(shown) < 140
    assert shown.max() == 255


@pytest.fixture
def without_packages(monkeypatch):
    for name in ("tifffile", "imagecodecs"):
        monkeypatch.setitem(sys.modules, name, None)
    for module in (deep, header):
        monkeypatch.setattr(module, "find_package", lambda _: None)
    monkeypatch.setattr("triton_sam.inputs.images.has_packages", lambda _: False)


@pytest.mark.parametrize("name", ["rgb_12_in_16.tif", "rgb_16.png"])
def test_without_the_extra_the_upper_bits_are_used_and_it_is_said(name, without_packages, caplog):
    assert corners(open_image(FOLDER / name)) == ((1, 0, 0), (4, 2, 1), (7, 3, 2), (15, 7, 5))
    assert f"{name} has colours of more than 8 bits, of which only the upper 8 are used." in caplog.text
    assert "install the extra tiles" in caplog.text
    assert image_bytes(FOLDER / name) == (FOLDER / name).read_bytes()


def test_what_is_too_large_for_the_packages_is_read_by_pillow_or_refused(monkeypatch, caplog):
    monkeypatch.setattr(deep, "MAX_DEEP_PIXELS", 24 * 16)
    assert corners(open_image(FOLDER / "rgb_12_in_16.tif")) == ((1, 0, 0), (4, 2, 1), (7, 3, 2), (15, 7, 5))
    assert "use `triton-sam large`" in caplog.text
    with pytest.raises(ImageError, match="is too large: 24 x 16 pixels with 4 channels: use `triton-sam large`"):
        open_image(FOLDER / "bands_4_16.tif")


@pytest.mark.parametrize("name", ["rgb_16_planes.tif", "bands_4_16.tif", "float64.tif", "jpeg2000_inside.tif"])
def test_without_the_extra_the_error_says_how_to_read_it(name, without_packages):
    for formats in (None, FORMATS):
        with pytest.raises(ImageError, match=r"(by|need) the extra tiles: pip install"):
            open_image(FOLDER / name, formats)


def test_the_table_of_formats_has_all_suffixes_that_pillow_knows():
    """Those of its formats; and what the service accepts is what the documents say."""
    register_opener()  # otherwise, HEIF is known only after another test has opened such a file
    known = Image.registered_extensions()
    for each in TABLE:
        pillows = {suffix for suffix, name in known.items() if name == each.name}
        assert set(each.suffixes) <= pillows | {".mpo", ".apng", ".hif"}, each.name
    assert {"JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"} == set(FORMATS)
    assert set(UPLOADS) - set(FORMATS) == {"AVIF", "JPEG2000", "HEIF"}
    assert ".tif" in LARGE_SUFFIXES
