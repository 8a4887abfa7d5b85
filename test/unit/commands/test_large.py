"""The command `large` with a client that finds objects by their colour: files, options, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("tifffile")
pytest.importorskip("zarr")

from PIL import Image
from support.commands import call
from support.large_images import PLACE, ColourClient, draw, write_tiff

from triton_sam.commands import large

HOUSE = (1510, 905, 1700, 1300)
SHED = (60, 60, 100, 90)


class FakeClient(ColourClient):
    """Stands for SamTritonClient."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def plain(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "SamTritonClient", FakeClient)
    return write_tiff(tmp_path / "image.tif", draw([HOUSE, SHED]))


def corners(document: dict, number: int = 0) -> list[float]:
    points = np.array([point for ring in document["features"][number]["geometry"]["coordinates"][0] for point in ring])
    return [*points.min(axis=0), *points.max(axis=0)]


def test_a_click_prints_geojson_in_pixels(plain, capsys):
    assert call(f"large {plain} --point 1600,1000") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert corners(document) == pytest.approx(HOUSE, abs=0.5)  # the tolerance of outlines
    assert "crs" not in document
    assert printed.err.splitlines()[-1] == "1 object"


def test_a_map_answers_in_its_coordinates(plain, tmp_path):
    place, out = write_tiff(tmp_path / "map.tif", draw([HOUSE, SHED]), extratags=PLACE), tmp_path / "house.geojson"
    for prompt in ("--map --box 500750,5399340,500860,5399560", "--point 1600,1000"):
        assert call(f"large {place} {prompt} --out {out} -q") == 0
        document = json.loads(out.read_text())
        assert document["crs"]["properties"]["name"].endswith("32633")
        assert corners(document) == pytest.approx([500755, 5399350, 500850, 5399547.5], abs=0.25)


def test_everything_and_the_overlay(plain, tmp_path):
    out, picture = tmp_path / "all.geojson", tmp_path / "all.png"
    assert call(f"large {plain} --everything --tile 512 --overlap 100 --out {out} --overlay {picture} -q") == 0
    document = json.loads(out.read_text())
    found = sorted(corners(document, number) for number in range(2))
    assert found == [pytest.approx(SHED, abs=0.5), pytest.approx(HOUSE, abs=0.5)]
    with Image.open(picture) as shown:
        pixels = np.asarray(shown.convert("RGB")).astype(int)
    colored = np.ptp(pixels, axis=2) > 20  # the image itself is grey
    assert 0.02 < colored.mean() < 0.06  # the house covers 3.5 % of the part around both objects


def test_an_object_at_the_border_of_the_view_is_named(plain, capsys):
    assert call(f"large {plain} --point 1600,1000 --view 1550,950,1650,1050") == 0
    assert "reaches the border of the part: give --view" in capsys.readouterr().err


def test_an_image_at_a_url(plain, capsys):
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("upath")
    storage = fsspec.filesystem("memory")
    storage.pipe("/slides/slide.tif", plain.read_bytes())
    assert call(f"large {plain} --point 1600,1000 -q") == 0
    local = capsys.readouterr().out
    assert call("large memory://slides/slide.tif --point 1600,1000 -q") == 0
    assert capsys.readouterr().out == local
    assert call("large memory://slides/slide.tif --precompute") == 1
    assert "give --embeddings DIR" in capsys.readouterr().err
    storage.rm("/slides", recursive=True)
