"""The commands `large` and `annotate --large` with a client that finds objects by their colour."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tifffile")
pytest.importorskip("zarr")

import tifffile
from PIL import Image
from support.annotated import files_of, lines_of
from support.commands import call, with_support
from support.conditions import wait_until
from support.large_images import PLACE, ColourClient, ColourServer, draw, write_tiff, write_zarr

from triton_sam.annotate import job
from triton_sam.annotate.folder import SHARD_SIZE
from triton_sam.annotate.large import LargeResult
from triton_sam.annotate.large_writers import _wkb, write_gpkg
from triton_sam.commands import large
from triton_sam.inputs import header
from triton_sam.masks.polygons import trace_polygons
from triton_sam.tiles.pyramid import Georeference

HOUSE = (700, 905, 1100, 1300)
SHED = (60, 60, 100, 90)
OBJECTS = [HOUSE, SHED, (1150, 20, 1200, 60)]
SIZE = (1500, 1400)
SMALL_TILES = ["--tile", "512", "--overlap", "128"]


@pytest.fixture(autouse=True)
def servers(monkeypatch):
    monkeypatch.setattr(job, "SamTritonClient", ColourServer)


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """A folder with a map in a subfolder and an OME-Zarr image."""
    folder = tmp_path_factory.mktemp("slides")
    (folder / "maps").mkdir()
    write_tiff(folder / "maps/town.tif", draw(OBJECTS, SIZE), extratags=PLACE)
    write_zarr(folder / "cells.zarr", draw(OBJECTS[:2], SIZE))
    return folder


def annotate(source: Path, out: Path, *options: object, task: str = "everything") -> int:
    return call(f"annotate {source} --large --with {task} --out {out} -q", *options)


def boxes(path: Path) -> list[list[float]]:
    found = []
    for feature in json.loads(path.read_text())["features"]:
        points = np.array([point for rings in feature["geometry"]["coordinates"] for point in rings[0]])
        found.append([*points.min(axis=0), *points.max(axis=0)])
    return sorted(found)


def test_objects_of_tiles_are_joined_in_every_format(slides, tmp_path):
    out = tmp_path / "out"
    assert annotate(slides, out, *SMALL_TILES, "--format", "geojson", "coco-polygons") == 0
    assert boxes(out / "geojson/cells.geojson") == [pytest.approx(box, abs=0.5) for box in sorted(OBJECTS[:2])]
    town = json.loads((out / "geojson/maps/town.geojson").read_text())
    assert town["crs"]["properties"]["name"].endswith("32633")
    on_map = [[500000 + x1 / 2, 5400000 - y2 / 2, 500000 + x2 / 2, 5400000 - y1 / 2] for x1, y1, x2, y2 in OBJECTS]
    assert boxes(out / "geojson/maps/town.geojson") == [pytest.approx(box, abs=0.3) for box in sorted(on_map)]
    assert {each["properties"]["category"] for each in town["features"]} == {"object"}
    coco = json.loads((out / "coco_polygons.json").read_text())
    assert [(each["file_name"], each["width"], each["height"]) for each in coco["images"]] == [
        ("cells.zarr", *SIZE),
        ("maps/town.tif", *SIZE),
    ]
    assert sorted(each["bbox"] for each in coco["annotations"] if each["image_id"] == 2) == sorted(
        [x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in OBJECTS
    )
    assert [each["id"] for each in coco["annotations"]] == [1, 2, 3, 4, 5]


def test_words_are_joined_by_category(slides, tmp_path):
    texts = ["--text", "roof", "--text", "barn"]
    assert annotate(slides / "cells.zarr", tmp_path / "out", *SMALL_TILES, *texts, task="words") == 0
    features = json.loads((tmp_path / "out/geojson/cells.geojson").read_text())["features"]
    assert [each["properties"]["category"] for each in features] == ["roof", "roof", "barn", "barn"]


def test_the_files_are_written_without_notes_about_axes_that_the_command_names(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(header, "_SAID", set())
    stack = np.stack([draw([SHED], (128, 128))[:, :, 0], draw([], (128, 128))[:, :, 0]])
    tifffile.imwrite(tmp_path / "stack.ome.tif", stack, metadata={"axes": "ZYX"}, tile=(32, 32))
    assert annotate(tmp_path / "stack.ome.tif", tmp_path / "out", "--index", "Z=0") == 0
    assert boxes(tmp_path / "out/geojson/stack.ome.geojson") == [pytest.approx(SHED, abs=0.5)]
    assert "is shown" not in caplog.text


def test_a_killed_run_goes_on_and_equals_an_undisturbed_one(slides, tmp_path):
    """The shards that were there when SIGKILL came are not made again."""
    whole, killed, slide = tmp_path / "whole", tmp_path / "killed", slides / "cells.zarr"
    options = ["--tile", "256", "--overlap", "64", "--threads", "1"]
    assert annotate(slide, whole, *options) == 0
    line = f"annotate {slide} --large --with everything --out {killed} -q"
    command = [sys.executable, "-m", "support.large_run", *line.split(), *options]
    with subprocess.Popen(command, env=with_support(TILES=str(SHARD_SIZE + 5))) as process:
        wait_until(lambda: process.poll() is not None or list(killed.glob("shards/[0-9]*.jsonl")))
        process.kill()
    assert process.returncode == -9
    kept = {file: file.stat().st_mtime_ns for file in killed.glob("shards/[0-9]*.jsonl")}
    assert 1 <= len(kept) < len(list(whole.glob("shards/*.jsonl")))
    assert annotate(slide, killed, *options) == 0
    assert files_of(killed) == files_of(whole)
    assert all(file.stat().st_mtime_ns == before for file, before in kept.items())


def test_parts_and_limits_equal_one_run(slides, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert annotate(slides, whole, *SMALL_TILES) == 0
    assert annotate(slides, parts, *SMALL_TILES, "--limit", "5") == 0
    assert boxes(parts / "geojson/cells.geojson") != boxes(whole / "geojson/cells.geojson")
    for part in ("0/2", "1/2"):
        assert annotate(slides, parts, *SMALL_TILES, "--part", part) == 0
    assert annotate(slides, parts, *SMALL_TILES) == 0
    assert files_of(parts) == files_of(whole)


def test_a_tile_that_fails_is_one_line(slides, tmp_path, monkeypatch):
    monkeypatch.setattr(ColourServer, "refused", 1)
    assert annotate(slides / "cells.zarr", tmp_path / "out", *SMALL_TILES, "--threads", "1") == 0
    assert lines_of(tmp_path / "out/errors.jsonl") == [
        {"image": "cells.zarr#0,0,512,512", "error": "the model failed", "shard": "shards/00000000.jsonl"}
    ]
    assert boxes(tmp_path / "out/geojson/cells.geojson") == [pytest.approx(HOUSE, abs=0.5)]


def test_boxes_and_points_are_sent_to_the_tile_that_shows_most_around_them(slides, tmp_path):
    document = {
        "images": [{"id": 4, "file_name": "maps/town.tif", "width": SIZE[0], "height": SIZE[1]}],
        "categories": [{"id": 7, "name": "roof"}],
        "annotations": [
            {"id": number, "image_id": 4, "category_id": 7, "bbox": box}
            for number, box in enumerate([[690, 900, 420, 410], [50, 50, 60, 50], [10, 10, 1200, 900], [-9, 1, 5, 5]])
        ],
    }
    (slides / "boxes.json").write_text(json.dumps(document))
    out, tiles = tmp_path / "out", ["--tile", "1024", "--overlap", "500"]
    assert annotate(slides / "boxes.json", out, *tiles, "--format", "coco-polygons", task="boxes") == 0
    found = json.loads((out / "coco_polygons.json").read_text())
    assert [(each["image_id"], each["category_id"], each["bbox"]) for each in found["annotations"]] == [
        (4, 7, [60, 60, 40, 30]),
        (4, 7, [700, 905, 400, 395]),
    ]
    assert [each["what"] for each in lines_of(out / "skipped.jsonl")] == ["annotation 3", "annotation 2"]
    (slides / "clicks.csv").write_text("image,x,y\nmaps/town.tif,900,1000\nmaps/town.tif,70,70\n")
    clicks = ["--prompts", str(slides / "clicks.csv"), "--level", "1", "--tile", "300", "--overlap", "150"]
    assert annotate(slides, tmp_path / "points", *clicks, task="points") == 0
    assert not boxes(tmp_path / "points/geojson/cells.geojson")
    found = boxes(tmp_path / "points/geojson/maps/town.geojson")
    assert found == [
        pytest.approx(box, abs=2) for box in ([500030, 5399955, 500050, 5399970], [500350, 5399350, 500550, 5399547.5])
    ]


def test_prompts_that_fit_into_no_tile_are_reported(slides, tmp_path):
    clicks = [{"image": "cells.zarr", "points": points} for points in ([[10, 10], [1400, 1300]], [[80, 80]])]
    (tmp_path / "clicks.json").write_text(json.dumps(clicks))
    options = ["--prompts", tmp_path / "clicks.json", *SMALL_TILES]
    assert annotate(slides, tmp_path / "out", *options, task="points") == 0
    first, *left_out = lines_of(tmp_path / "out/skipped.jsonl")
    assert all(each["image"].startswith("*.") for each in left_out)  # other files of the folder
    assert "it does not fit into one tile: give a larger --overlap" in first["why"]


def test_damaged_images_and_those_without_the_level_are_skipped(slides, tmp_path):
    write_tiff(tmp_path / "in.tif", draw([], (300, 300)), levels=1)
    (tmp_path / "bad.svs").write_bytes(b"II*\0damaged")
    write_zarr(tmp_path / "good.zarr", draw([SHED], (300, 300)), levels=2)
    assert annotate(tmp_path, tmp_path / "out", "--level", "1") == 0
    damaged, flat = lines_of(tmp_path / "out/skipped.jsonl")
    assert (damaged["image"], flat["image"]) == ("bad.svs", "in.tif")
    assert flat["why"] == "there is no level 1: the last one is 0"
    assert len(boxes(tmp_path / "out/geojson/good.geojson")) == 1


def test_what_is_shown_is_an_option_and_decides_about_the_results(slides, tmp_path, capsys):
    assert annotate(slides, tmp_path / "out", "--limit", "1", "--stretch", "1,99") == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["tiling"]["stretch"] == [1, 99]
    assert "index" not in manifest["tiling"]  # so that runs of earlier versions go on
    for options, words in (
        (["out"], "holds a run with other tiling: results do not mix"),
        (["out", "--stretch", "1,99", "--channels", "0"], "holds a run with other tiling: results do not mix"),
        (["other", "--index", "Z=3"], "there is no position 3 along the axis Z"),
    ):
        assert annotate(slides, tmp_path / options[0], "--limit", "1", *options[1:]) == 1
        assert words in capsys.readouterr().err


def test_geopackages_hold_the_objects_of_geojson(slides, tmp_path):
    pytest.importorskip("pyogrio")
    for out in (tmp_path / "a", tmp_path / "b"):
        assert annotate(slides, out, *SMALL_TILES, "--format", "gpkg", "geojson") == 0
    assert (tmp_path / "a/gpkg/maps/town.gpkg").read_bytes() == (tmp_path / "b/gpkg/maps/town.gpkg").read_bytes()
    from pyogrio import raw

    meta, _, geometry, fields = raw.read(tmp_path / "a/gpkg/maps/town.gpkg", layer="objects")
    assert meta["crs"] == "EPSG:32633"
    town = json.loads((tmp_path / "a/geojson/maps/town.geojson").read_text())
    assert [bytes(each) for each in geometry] == [_wkb(each["geometry"]["coordinates"]) for each in town["features"]]
    assert fields[3].tolist() == [each["properties"]["area"] for each in town["features"]]
    with sqlite3.connect(tmp_path / "a/gpkg/cells.gpkg") as tables:
        assert tables.execute("select count(*) from objects").fetchone() == (2,)
    unknown = LargeResult(1, "a.tif", (9, 9), Georeference((1, 0, 0, 0, 1, 0), 99999), [], [])
    assert write_gpkg(tmp_path / "c", lambda: [unknown], {}, trace_polygons) == []
    assert raw.read(tmp_path / "c/gpkg/a.gpkg", layer="objects")[0]["crs"] is None


# `triton-sam large`

BARN = (1510, 905, 1700, 1300)


@pytest.fixture
def plain(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "SamTritonClient", ColourClient)
    return write_tiff(tmp_path / "image.tif", draw([BARN, SHED]))


def corners(document: dict, number: int = 0) -> list[float]:
    points = np.array([point for ring in document["features"][number]["geometry"]["coordinates"][0] for point in ring])
    return [*points.min(axis=0), *points.max(axis=0)]


def test_a_click_prints_geojson_in_pixels(plain, capsys):
    assert call(f"large {plain} --point 1600,1000") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert corners(document) == pytest.approx(BARN, abs=0.5)  # the tolerance of outlines
    assert "crs" not in document
    assert printed.err.splitlines()[-1] == "1 object"


def test_a_map_answers_in_its_coordinates(plain, tmp_path):
    place, out = write_tiff(tmp_path / "map.tif", draw([BARN, SHED]), extratags=PLACE), tmp_path / "house.geojson"
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
    assert found == [pytest.approx(SHED, abs=0.5), pytest.approx(BARN, abs=0.5)]
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
