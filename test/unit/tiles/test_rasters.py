"""Maps that rasterio reads. The tests are skipped without the extra `maps`, but for the one about its absence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tifffile")
pytest.importorskip("zarr")

from support.large_images import draw

from triton_sam.errors import ImageError, MissingDependencyError
from triton_sam.tiles import open_large_image

# rasterio 1.4 multiplies as affine 3 does not want it
pytestmark = pytest.mark.filterwarnings("ignore:Use .@. matmul:PendingDeprecationWarning")

PIXELS = draw([(100, 60, 300, 200), (400, 10, 450, 290)], (512, 384))


@pytest.fixture
def rasterio() -> Any:
    return pytest.importorskip("rasterio")


def write(rasterio: Any, path: Path, pixels: np.ndarray, **options: Any) -> Path:
    """Write a map by rasterio, with its place on Earth."""
    height, width, count = pixels.shape
    place = {"crs": "EPSG:32633", "transform": rasterio.transform.from_origin(500000, 5400000, 0.5, 0.5)}
    shape = {"width": width, "height": height, "count": count, "dtype": pixels.dtype}
    with rasterio.open(path, "w", **shape, **place, **options) as dataset:
        dataset.write(np.moveaxis(pixels, 2, 0))
    return path


def test_jpeg_2000_has_levels_and_a_place(rasterio: Any, tmp_path: Path) -> None:
    options = {"driver": "JP2OpenJPEG", "QUALITY": "100", "REVERSIBLE": "YES", "YCBCR420": "NO", "RESOLUTIONS": "3"}
    path = write(rasterio, tmp_path / "town.jp2", PIXELS, **options)
    with open_large_image(path) as image:
        assert [level.size for level in image.levels] == [(512, 384), (256, 192), (128, 96)]
        np.testing.assert_array_equal(image.levels[0].read(50, 40, 420, 300), PIXELS[40:300, 50:420])
        assert image.levels[2].read(0, 0, 128, 96).shape == (96, 128, 3)
        assert image.georeference is not None
        assert image.georeference.epsg == 32633
        np.testing.assert_allclose(image.georeference.to_map(np.array([[10, 20]])), [[500005, 5399990]])


def test_deep_values_are_stretched_and_channels_chosen(rasterio: Any, tmp_path: Path) -> None:
    deep = np.stack([np.full((40, 50), value, np.uint16) for value in (0, 1000, 2000, 4000)], axis=2)
    path = write(rasterio, tmp_path / "a.img", deep, driver="HFA")
    with open_large_image(path, channels=(3, 1, 0)) as image:
        (color,) = np.unique(image.levels[0].read(0, 0, 50, 40).reshape(-1, 3), axis=0)
        assert color.tolist() == [255, 64, 0]


def test_a_mosaic_shows_its_files(rasterio: Any, tmp_path: Path) -> None:
    write(rasterio, tmp_path / "left.tif", PIXELS, driver="GTiff")
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
        np.testing.assert_array_equal(image.levels[0].read(512, 0, 1024, 384), PIXELS)
        assert not image.levels[0].read(0, 0, 512, 384).any()


@pytest.mark.parametrize("content", [None, b"", b"no map at all", b"<VRTDataset"])
def test_a_file_that_is_no_map_is_one_clear_error(rasterio: Any, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.vrt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError, match=r"a\.vrt") as caught:
        open_large_image(path)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(MissingDependencyError, match="maps"):
        open_large_image(tmp_path / "a.jp2")
