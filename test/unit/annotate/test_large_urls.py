"""Slides and maps at URLs: only the parts that a run needs are read, and a storage that is away is waited for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tifffile")
pytest.importorskip("zarr")
pytest.importorskip("upath")

import tifffile
from support.annotated import files_of, lines_of
from support.commands import call
from support.file_server import web
from support.large_images import ColourServer, draw, write_tiff, write_zarr

from triton_sam.annotate import job
from triton_sam.annotate.large import Tiling, read_large_source
from triton_sam.errors import ConfigurationError, DownloadError, ImageError, InputError
from triton_sam.inputs import remote
from triton_sam.masks.segment import Segment
from triton_sam.tiles import open_large_image

__all__ = ["web"]

SIZE = (900, 600)
OBJECTS = [(200, 205, 500, 400), (60, 60, 100, 90), (650, 20, 690, 60)]
PIXELS = draw(OBJECTS, SIZE)
SOURCES = ["maps/town.tif", "cells.zarr"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(job, "SamTritonClient", ColourServer)
    monkeypatch.setattr(remote, "PAUSE", 0.01)


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """A folder with a TIFF file in a subfolder, an OME-Zarr image, embeddings, and a file of another kind."""
    folder = tmp_path_factory.mktemp("slides")
    (folder / "maps").mkdir()
    write_tiff(folder / "maps/town.tif", PIXELS)
    write_zarr(folder / "cells.zarr", PIXELS)
    (folder / "cells.embeddings.zarr/features").mkdir(parents=True)
    (folder / "cells.embeddings.zarr/.zgroup").write_text("{}")
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.fixture
def storage(web, slides):
    """A web server with the slides."""
    shutil.copytree(slides, web.folder, dirs_exist_ok=True)
    return web


def names(source: str) -> list[str]:
    return [item.name for item in read_large_source(source, None, 1, Tiling()).items]


def annotate(source: str | Path, out: Path) -> int:
    cut = "--tile 512 --overlap 128 --format geojson coco-polygons -q"
    return call(f"annotate {source} --large --with everything --out {out} {cut}")


@pytest.mark.parametrize("name", SOURCES)
def test_parts_equal_those_of_a_local_file(storage, name):
    with open_large_image(f"{storage.url}/{name}") as image:
        assert [level.size for level in image.levels] == [(900, 600), (450, 300), (225, 150)]
        np.testing.assert_array_equal(image.levels[0].read(100, 300, 700, 600), PIXELS[300:600, 100:700])
        np.testing.assert_array_equal(image.levels[1].read(0, 0, 50, 50), PIXELS[::2, ::2][:50, :50])


def test_only_the_parts_that_are_needed_travel(web):
    """A noisy image cannot be compressed, so the bytes that travel tell which part was read."""
    noise = np.random.default_rng(0).integers(0, 255, (3000, 3000, 3), np.uint8)
    path = write_tiff(web.folder / "noise.tif", noise, levels=2)
    with open_large_image(f"{web.url}/noise.tif") as image:
        np.testing.assert_array_equal(image.levels[0].read(1000, 1000, 1100, 1100), noise[1000:1100, 1000:1100])
    assert 0 < web.sent < path.stat().st_size / 4


def test_a_folder_a_pattern_a_list_and_one_image(storage):
    assert names(storage.url) == ["cells.zarr", "maps/town.tif"]
    assert names(f"{storage.url}/maps/*.tif") == ["town.tif"]
    assert names(f"{storage.url}/cells.zarr") == ["cells.zarr"]
    assert names(f"{storage.url}/maps/town.tif") == ["town.tif"]
    shutil.copy(storage.folder / "maps/town.tif", storage.folder / "slide.svs")
    assert names(f"{storage.url}/slide.svs") == ["slide.svs"]
    (storage.folder / "all.txt").write_text("maps/town.tif\nmaps/gone.tif\n")
    source = read_large_source(f"{storage.url}/all.txt", None, 1, Tiling())
    assert [item.name for item in source.items] == ["maps/town.tif"]
    ((image, why),) = ((each.image, each.why) for each in source.skipped)
    assert (image, why.rpartition(": ")[2]) == ("maps/gone.tif", "there is no such file")


@pytest.mark.slow
def test_a_run_writes_the_files_of_a_local_one(storage, slides, tmp_path):
    assert annotate(slides, tmp_path / "local") == 0
    assert annotate(storage.url, tmp_path / "remote") == 0
    assert files_of(tmp_path / "remote") == files_of(tmp_path / "local")


@pytest.mark.parametrize("name", SOURCES)
def test_a_storage_that_is_away_for_a_moment_is_asked_again(storage, name):
    with open_large_image(f"{storage.url}/{name}") as image:
        storage.failing, storage.failures = name, [503, 429, 500]
        np.testing.assert_array_equal(image.levels[0].read(0, 0, 256, 256), PIXELS[:256, :256])
    assert not storage.failures or name.endswith(".tif")  # one block holds the whole file, which was read before


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_a_storage_that_is_lost_ends_the_run_and_marks_no_tile_as_bad(storage, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(remote, "_BLOCK", 1 << 10)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert annotate(f"{storage.url}/{name}", whole) == 0
    everything = ColourServer.everything

    def lose(self: ColourServer, pixels: np.ndarray, **options: Any) -> list[Segment]:
        storage.failing, storage.failures = name, [500] * 1000
        return everything(self, pixels, **options)

    with monkeypatch.context() as lost:
        lost.setattr(ColourServer, "everything", lose)
        assert annotate(f"{storage.url}/{name}", out) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "cannot be read" in line
    assert not list(out.glob("shards/0*"))
    storage.failures = []
    assert annotate(f"{storage.url}/{name}", out) == 0
    assert files_of(out) == files_of(whole)


@pytest.mark.slow
def test_a_process_that_loses_its_storage_prints_one_line(storage, tmp_path):
    """The chunks of a part are read at the same time: none is left behind when another one fails."""
    storage.failing, storage.failures = "/0/c/", [500] * 1000
    code = "from triton_sam.inputs import remote; remote.PAUSE = 0.1; from support.large_run import main; main()"
    words = f"annotate {storage.url}/cells.zarr --large --with everything --out {tmp_path}/out -q".split()
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, *words], env=path, capture_output=True, text=True, check=False)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("triton-sam: error: ")
    assert "cannot be read: ClientResponseError: 500" in line


@pytest.mark.parametrize("name", SOURCES)
def test_a_damaged_part_is_a_line_of_errors(storage, name, tmp_path):
    path = storage.folder / name
    if path.is_dir():
        (path / "0/c/0/0/0").write_bytes(b"damaged")
    else:
        with tifffile.TiffFile(path) as file:
            first = file.pages.first.dataoffsets[0]
        content = bytearray(path.read_bytes())
        content[first : first + 8] = b"damaged "
        path.write_bytes(content)
    assert annotate(f"{storage.url}/{name}", tmp_path / "out") == 0
    failed = lines_of(tmp_path / "out/errors.jsonl")
    lefts = {each["image"].removeprefix(f"{path.name}#").partition(",")[0] for each in failed}
    assert lefts == {"0", "194"}, "tiles from 388 on do not show the damaged part"


def test_a_server_without_parts_is_one_clear_error(storage, monkeypatch):
    monkeypatch.setattr(remote, "_BLOCK", 1 << 10)
    storage.ranges = False
    with pytest.raises(ImageError, match="cannot be read in parts: copy it to this machine"):
        open_large_image(f"{storage.url}/maps/town.tif")


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("memory://nobody/slides", ImageError, "there is no such file"),
        ("memory://nobody/slide.tif", InputError, "there is no large image"),
        ("nope://bucket/slide.tif", ConfigurationError, "nope"),
        ("http://localhost:9/slide.tif", DownloadError, "localhost:9/slide.tif cannot be read: ClientConnectorError"),
        ("http://localhost:9/slides", DownloadError, "localhost:9/slides"),
    ],
)
def test_urls_that_cannot_be_read_are_one_clear_error(source, kind, message):
    with pytest.raises(kind, match=message):
        names(source)
