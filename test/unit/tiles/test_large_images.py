"""Large images: levels, parts, kinds of files, places on Earth; maps that rasterio reads."""

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile
from support.large_images import PLACE, SIZE, draw, write_tiff, write_zarr

from triton_sam.errors import ImageError, InputError, MissingDependencyError
from triton_sam.inputs import header
from triton_sam.inputs.samples import Samples
from triton_sam.tiles import open_large_image
from triton_sam.tiles.pyramid import Georeference, georeference_of, sample_regions

pytestmark = pytest.mark.filterwarnings("ignore:Use .@. matmul:PendingDeprecationWarning")
PIXELS = draw([(100, 100, 400, 300), (1500, 900, 1700, 1300)])


@pytest.fixture(params=["tiff", "zarr"])
def path(request, tmp_path):
    if request.param == "tiff":
        return write_tiff(tmp_path / "image.tif", PIXELS)
    return write_zarr(tmp_path / "image.zarr", PIXELS)


@pytest.fixture
def rasterio():
    return pytest.importorskip("rasterio")


def test_levels_and_parts(path):
    with open_large_image(path) as image:
        assert image.size == SIZE
        assert [level.size for level in image.levels] == [(3000, 2200), (1500, 1100), (750, 550)]
        window = image.window((90, 95, 410, 305), 1024)
        np.testing.assert_array_equal(window.pixels, PIXELS[95:305, 90:410])
        assert (window.region, window.scale) == ((90, 95, 410, 305), (1, 1))
        smaller = image.window((0, 0, 3000, 2200), 750)
        assert smaller.scale == (4, 4)
        np.testing.assert_array_equal(smaller.pixels, PIXELS[::4, ::4])
        reduced = image.window((0, 0, 3000, 2200), 600)
        assert (reduced.pixels.shape, reduced.scale) == ((440, 600, 3), (5, 5))
        assert image.window((-50, -50, 20, 10), 1024).region == (0, 0, 20, 10)
        with pytest.raises(InputError, match="outside image"):
            image.window((3000, 0, 3100, 10), 1024)


def test_an_image_without_a_pyramid_asks_for_one(tmp_path, monkeypatch):
    with open_large_image(write_tiff(tmp_path / "flat.tif", PIXELS, levels=1)) as image:
        assert image.window((0, 0, 3000, 2200), 300).pixels.shape == (220, 300, 3)
        monkeypatch.setattr("triton_sam.tiles.pyramid.MAX_READ", 1000)
        with pytest.raises(InputError, match="make a pyramid"):
            image.window((0, 0, 3000, 2200), 300)


def test_further_axes_and_channels(tmp_path):
    stack = np.random.default_rng(1).integers(0, 255, (2, 3, 4, 64, 80), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.ome.tif", stack, metadata={"axes": "TZCYX"}, tile=(32, 32))
    with open_large_image(tmp_path / "a.ome.tif", channels=(3, 1, 0), index={"T": 1, "Z": 2}) as image:
        found = image.window((0, 0, 80, 64), 1024).pixels
    np.testing.assert_array_equal(found, np.moveaxis(stack[1, 2][[3, 1, 0]], 0, 2))
    with pytest.raises(ImageError, match="no position 9 along the axis Z"):
        open_large_image(tmp_path / "a.ome.tif", index={"Z": 9})


MACRO, SCAN = np.full((64, 80), 10, np.uint8), np.full((256, 512), 20, np.uint8)
SCN = """<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01"><collection name="a">
<image name="macro"><pixels><dimension r="0" ifd="0"/></pixels></image>
<image name="scan"><pixels><dimension r="0" ifd="1"/></pixels></image></collection></scn>"""


def write_images(path, *images, **options):
    with tifffile.TiffWriter(path, ome=path.name.endswith(".ome.tif")) as writer:
        for number, image in enumerate(images):
            writer.write(image, tile=(32, 32), **({} if number else options))
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.tif", {"metadata": None}), ("a.ome.tif", {}), ("a.scn", {"description": SCN, "metadata": None})],
)
def test_the_largest_of_several_images_is_shown_and_said_once(name, options, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(header, "_SAID", set())
    path = write_images(tmp_path / name, MACRO, SCAN, **options)
    for _ in range(2):
        with open_large_image(path) as image:
            assert image.size == (512, 256)
            assert image.levels[0].read(5, 5, 6, 6).tolist() == [[[20] * 3]]
    assert [record.message.partition(". ")[0] for record in caplog.records] == [
        f"{name} holds 2 images, and the largest, of 512 x 256 pixels, is shown"
    ]


def test_the_first_of_equal_images_is_shown(tmp_path):
    with open_large_image(write_images(tmp_path / "a.ome.tif", SCAN, SCAN + 1)) as image:
        assert image.levels[0].read(5, 5, 6, 6).tolist() == [[[20] * 3]]


@pytest.mark.parametrize("kind", ["slide", "pyramid and mask"])
def test_nothing_is_said_about_thumbnails_levels_and_masks(kind, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(header, "_SAID", set())
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        tiled = {"tile": (32, 32), "metadata": None}
        if kind == "slide":
            writer.write(SCAN, description="Aperio Image Library v1", **tiled)
            writer.write(MACRO, metadata=None)
        else:
            writer.write(SCAN, **tiled)
            writer.write(SCAN > 0, subfiletype=4, **tiled)
            writer.write(SCAN[::3, ::5], subfiletype=1, **tiled)
    with open_large_image(tmp_path / "a.tif") as image:
        assert image.levels[0].read(5, 5, 6, 6).tolist() == [[[20] * 3]]
    assert caplog.text == ""


def write_channels(path, kind, count=5):
    """Write channels with the values 10, 20 and so on, each in a plane of its own; return them."""
    values = np.empty((count, 64, 80), np.uint8)
    values[:] = 10 * np.arange(1, count + 1)[:, None, None]
    if kind == "zarr":
        write_zarr(path, np.moveaxis(values, 0, 2), levels=1)
    elif kind == "maps":
        rasterio = pytest.importorskip("rasterio")
        write(rasterio, path.with_suffix(".img"), np.moveaxis(values, 0, 2), driver="HFA").rename(path)
    else:
        tifffile.imwrite(path, values, metadata={"axes": "CYX"}, tile=(32, 32), photometric="minisblack")
    return values


@pytest.mark.parametrize(
    ("channels", "expected"), [((3, 1, 2), [40, 20, 30]), ((4,), [50] * 3), ((0, 1, 2), [10, 20, 30])]
)
@pytest.mark.parametrize("name", ["a.ome.tif", "a.zarr", "a.img"])
def test_only_the_channels_that_are_shown_are_read(name, channels, expected, tmp_path, monkeypatch):
    kind = {".zarr": "zarr", ".img": "maps"}.get(Path(name).suffix, "tiff")
    write_channels(tmp_path / name, kind)
    counts = []
    colours = Samples.colours

    def counted(samples, values, channels):
        counts.append(values.shape[2])
        return colours(samples, values, channels)

    with open_large_image(tmp_path / name, channels=channels) as image:
        monkeypatch.setattr(Samples, "colours", counted)
        assert image.levels[0].read(5, 5, 6, 6).tolist() == [[expected]]
        assert image.levels[0].values(5, 5, 6, 6).tolist() == [[[10, 20, 30, 40, 50]]]
    assert counts == [len(channels)]


@pytest.mark.parametrize("kind", ["tiff", "zarr"])
@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ({"channels": (7,)}, "a has 5 channels, 0 to 4, and --channels names 7"),
        ({"channels": (0, 5, 2)}, "a has 5 channels, 0 to 4, and --channels names 5"),
        ({"index": {"C": 2}}, "give --channels 2 for a channel"),
    ],
)
def test_channels_that_are_not_shown_are_one_clear_error(kind, shown, message, tmp_path):
    write_channels(tmp_path / "a", kind)
    with pytest.raises(ImageError, match=message):
        open_large_image(tmp_path / "a", **shown)


def test_by_default_an_image_with_fewer_channels_is_grey(tmp_path):
    write_channels(tmp_path / "a", "tiff", count=2)
    with open_large_image(tmp_path / "a") as image:
        assert image.levels[0].read(5, 5, 6, 6).tolist() == [[[10, 10, 10]]]
    tifffile.imwrite(tmp_path / "b.tif", np.full((64, 80), 7, np.uint8), tile=(32, 32))
    with pytest.raises(ImageError, match=r"b.tif has one channel, 0, and --channels names 1"):
        open_large_image(tmp_path / "b.tif", channels=(1,))


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float32])
def test_values_beyond_the_sampled_range_are_white_or_black(dtype, tmp_path):
    """The smallest level has the range of bytes, and the largest one has further values."""
    values = np.tile(np.arange(256, dtype=dtype), (256, 1))
    smaller = values[::2, ::2].copy()
    smaller[0, 1] = 255
    values[1::2, 10], values[1::2, 11] = 300, 256
    if dtype != np.uint16:
        values[1::2, 12] = -4
    if dtype == np.float32:
        values[1::2, 13] = np.nan
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(values, subifds=1, tile=(64, 64))
        writer.write(smaller, subfiletype=1, tile=(64, 64))
    with open_large_image(tmp_path / "a.tif") as image:
        row = image.levels[0].read(0, 1, 256, 2)[0, :, 0]
    low = 12 if dtype == np.uint16 else 0
    assert row[10:14].tolist() == [255, 255, low, 0 if dtype == np.float32 else 13]
    np.testing.assert_array_equal(row[14:], np.arange(14, 256))


@pytest.mark.parametrize("name", ["image.tif", "a.vrt"])
@pytest.mark.parametrize("content", [None, b"", b"not an image", b"II*\x00\xff\xff\xff\x7f", b"<VRTDataset"])
def test_a_file_that_is_no_image_is_one_clear_error(rasterio, name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError, match=re.escape(name)) as caught:
        open_large_image(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [(60, 70), (9000, 8000), (300_000, 3), (2, 90_000)])
def test_the_range_of_values_is_that_of_parts_all_over_the_image(size):
    parts = np.array(list(sample_regions(size, 1 << 16)))
    assert (parts[:, :2] < parts[:, 2:]).all()
    assert (parts.min(axis=0)[:2].tolist(), parts.max(axis=0)[2:].tolist()) == ([0, 0], list(size))


def test_a_geotiff_has_its_place(tmp_path):
    with open_large_image(write_tiff(tmp_path / "map.tif", PIXELS, extratags=PLACE)) as image:
        place = image.georeference
    assert place == Georeference((0.5, 0.0, 500000.0, 0.0, -0.5, 5400000.0), 32633)
    points = np.array([[0.0, 0.0], [100.0, 40.0]])
    np.testing.assert_allclose(place.to_map(points), [[500000, 5400000], [500050, 5399980]])
    np.testing.assert_allclose(place.to_pixels(place.to_map(points)), points)
    assert place.crs == {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}


def test_other_ways_to_name_a_place():
    matrix = [0.0, 2.0, 0.0, 10.0, -3.0, 0.0, 0.0, 20.0, 0, 0, 1, 0, 0, 0, 0, 1]
    turned = georeference_of({"ModelTransformation": matrix, "GeographicTypeGeoKey": 4326})
    assert turned == Georeference((0, 2, 10, -3, 0, 20), 4326)
    points = np.array([[1.0, 10.0], [4.0, 0.0]])
    np.testing.assert_allclose(turned.to_pixels(turned.to_map(points)), points)
    centres = georeference_of({"ModelTransformation": matrix, "GTRasterTypeGeoKey": 2})
    assert centres == Georeference((0, 2, 9, -3, 0, 21.5))
    assert georeference_of({}) is None
    assert georeference_of({"ModelTransformation": matrix, "ProjectedCSTypeGeoKey": 32767}).crs is None


def test_missing_packages_are_named(tmp_path, monkeypatch):
    path = write_tiff(tmp_path / "image.tif", PIXELS)
    for package, source, extra in (("zarr", path, "tiles"), ("zarr", tmp_path, "tiles"), ("rasterio", "a.jp2", "maps")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingDependencyError, match=rf"\[{extra}\]"):
            open_large_image(tmp_path / source)


@pytest.mark.parametrize("kind", ["tiff", "zarr"])
def test_damaged_files_are_read_or_refused(tmp_path, kind):
    """Some bytes are changed, or the end is missing: opening and reading end well, or in one ImageError."""
    rng, counts = random.Random(kind), Counter()
    small = np.ascontiguousarray(PIXELS[:256, :256])
    whole = write_tiff(tmp_path / "a.tif", small) if kind == "tiff" else write_zarr(tmp_path / "a.zarr", small)
    files = [whole] if kind == "tiff" else sorted(path for path in whole.rglob("*") if path.is_file())
    for _ in range(60):
        damaged = rng.choice(files)
        before = damaged.read_bytes()
        content = bytearray(before)
        for _ in range(rng.randrange(1, 6)):
            content[rng.randrange(min(len(content), rng.choice([64, len(content)])))] = rng.randrange(256)
        del content[rng.choice([len(content), rng.randrange(len(content))]) :]
        damaged.write_bytes(content)
        try:
            with open_large_image(whole) as image:
                for corner in ((0, 0), (100, 100)):
                    image.window((*corner, *(place + 90 for place in corner)), 64)
            counts["read"] += 1
        except ImageError as error:
            counts["refused"] += 1
            assert str(error)  # noqa: PT017 - any of them
        damaged.write_bytes(before)
    assert min(counts["read"], counts["refused"]) >= 5, counts


def test_a_file_that_ends_early_is_one_error_and_no_task_is_left(tmp_path):
    """asyncio would name each task that nobody awaits when the program ends."""
    path = write_tiff(tmp_path / "slide.tif", draw([(100, 100, 900, 900)]), levels=1)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    program = (
        "import sys\n"
        "from triton_sam.errors import ImageError\n"
        "from triton_sam.tiles import open_large_image\n"
        "try:\n"
        "    with open_large_image(sys.argv[1]) as image:\n"
        "        image.levels[0].read(0, 0, *image.size)\n"
        "except ImageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("the part from (0, 0) to (3000, 2200) cannot be read")
    assert done.stderr == ""


TOWN = draw([(100, 60, 300, 200), (400, 10, 450, 290)], (512, 384))


def write(rasterio, path, pixels, **options):
    """Write a map by rasterio, with its place on Earth."""
    height, width, count = pixels.shape
    place = {"crs": "EPSG:32633", "transform": rasterio.transform.from_origin(500000, 5400000, 0.5, 0.5)}
    shape = {"width": width, "height": height, "count": count, "dtype": pixels.dtype}
    with rasterio.open(path, "w", **shape, **place, **options) as dataset:
        dataset.write(np.moveaxis(pixels, 2, 0))
    return path


def test_jpeg_2000_has_levels_and_a_place(rasterio, tmp_path):
    options = {"driver": "JP2OpenJPEG", "QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO", "RESOLUTIONS": "3"}
    path = write(rasterio, tmp_path / "town.jp2", TOWN, **options)
    with open_large_image(path) as image:
        assert [level.size for level in image.levels] == [(512, 384), (256, 192), (128, 96)]
        np.testing.assert_array_equal(image.levels[0].read(50, 40, 420, 300), TOWN[40:300, 50:420])
        assert image.levels[2].read(0, 0, 128, 96).shape == (96, 128, 3)
        assert image.georeference.epsg == 32633
        np.testing.assert_allclose(image.georeference.to_map(np.array([[10, 20]])), [[500005, 5399990]])


def test_a_mosaic_shows_its_files(rasterio, tmp_path):
    write(rasterio, tmp_path / "left.tif", TOWN, driver="GTiff")
    bands = "".join(
        f'<VRTRasterBand dataType="Byte" band="{band}"><SimpleSource><SourceFilename relativeToVRT="1">left.tif'
        f'</SourceFilename><SourceBand>{band}</SourceBand><SrcRect xOff="0" yOff="0" xSize="512" ySize="384"/>'
        '<DstRect xOff="512" yOff="0" xSize="512" ySize="384"/></SimpleSource></VRTRasterBand>'
        for band in (1, 2, 3)
    )
    (tmp_path / "both.vrt").write_text(f'<VRTDataset rasterXSize="1024" rasterYSize="384">{bands}</VRTDataset>')
    with open_large_image(tmp_path / "both.vrt") as image:
        assert image.size == (1024, 384)
        assert image.georeference is None
        np.testing.assert_array_equal(image.levels[0].read(512, 0, 1024, 384), TOWN)
        assert not image.levels[0].read(0, 0, 512, 384).any()
