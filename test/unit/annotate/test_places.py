"""Sources that are not plain local images: URLs that fsspec reads, videos, and slides and maps at URLs."""

import gc
import importlib.util
import io
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from support.contents import encoded

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("upath")
pytest.importorskip("tifffile")
pytest.importorskip("zarr")

import tifffile  # noqa: E402
from support.annotated import SIZE, files_of, lines_of, servers, write_data_set, write_images  # noqa: E402
from support.commands import call, with_support  # noqa: E402
from support.file_server import web  # noqa: E402
from support.large_images import ColourServer, draw, write_tiff, write_zarr  # noqa: E402
from support.video_files import write_video  # noqa: E402

from triton_sam.annotate import job  # noqa: E402
from triton_sam.annotate.large import Tiling, read_large_source  # noqa: E402
from triton_sam.annotate.sources import read_source  # noqa: E402
from triton_sam.errors import (  # noqa: E402
    ConfigurationError,
    DownloadError,
    ImageError,
    InputError,
    MissingDependencyError,
    VideoError,
)
from triton_sam.inputs import remote  # noqa: E402
from triton_sam.masks.segment import Segment  # noqa: E402
from triton_sam.tiles import open_large_image  # noqa: E402

__all__ = ["servers", "web"]


def names(source: str, **options) -> list[str]:
    return [item.name for item in read_source(source, **options).items]


@pytest.fixture
def bucket():
    """A folder of fsspec's file system in memory, which lists its files as an object store does."""
    system = fsspec.filesystem("memory")
    content = encoded(Image.new("RGB", SIZE))
    for name in ("b/000.png", "b-c/000.png", "000.png", "notes.txt", "b/deep/001.png"):
        system.pipe(f"/bucket/photos/{name}", content)
    yield "memory://bucket/photos"
    system.rm("/bucket", recursive=True)


def test_a_folder_a_pattern_and_a_file_at_a_url(bucket):
    every = ["000.png", "b/000.png", "b/deep/001.png", "b-c/000.png"]
    assert names(bucket) == names(f"{bucket}/") == names(f"{bucket}/**/*.png") == every
    assert names(f"{bucket}/b*/*.png") == ["b/000.png", "b-c/000.png"]
    assert names(f"{bucket}/b/000.png") == ["000.png"]
    (item,) = read_source(f"{bucket}/b/000.png").items
    assert Image.open(io.BytesIO(item.content())).size == SIZE
    assert pickle.loads(pickle.dumps(item)).content() == item.content()


def test_every_leaves_images_out_and_a_comment_of_a_list_asks_no_storage(bucket, tmp_path, monkeypatch):
    assert names(bucket, every=2) == ["000.png", "b/deep/001.png"]
    write_images(tmp_path, 5)
    assert names(str(tmp_path), every=4) == ["000.png", "004.png"]
    monkeypatch.setattr("triton_sam.annotate.sources.find_file", lambda *_: pytest.fail("a request for a comment"))
    (tmp_path / "list.txt").write_text("# of July\n000.png\n")
    found = read_source(str(tmp_path / "list.txt"), remote.place_of(bucket))
    assert [item.name for item in found.items] == ["000.png"]


def test_a_data_set_at_a_url_gives_the_files_of_a_local_one(web, servers, tmp_path):
    local = write_data_set(tmp_path / "web", 5)
    common = "--with boxes -q --format coco labels"
    assert call(f"annotate {local} --out {tmp_path}/one {common}") == 0
    web.failures = [503, 429]  # the storage is away for a moment
    assert call(f"annotate {web.url}/boxes.json --out {tmp_path}/two {common}") == 0
    assert not web.failures
    (tmp_path / "boxes.json").write_bytes(local.read_bytes())
    assert call(f"annotate {tmp_path}/boxes.json --images {web.url} --out {tmp_path}/three {common}") == 0
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two") == files_of(tmp_path / "three")


def test_a_remote_image_that_is_not_there_is_one_line_of_errors(web, servers, tmp_path):
    write_data_set(tmp_path / "web", 3)
    (tmp_path / "web/001.png").unlink()
    assert call(f"annotate {web.url}/boxes.json --with boxes -q --out {tmp_path}/out") == 0
    (failed,) = lines_of(tmp_path / "out/errors.jsonl")
    assert failed["image"] == "001.png"
    assert f"{web.url}/001.png cannot be read: there is no such file" in failed["error"]
    assert sum(path == "/001.png" for path in web.asked) == 1


def test_a_storage_that_is_gone_ends_the_run_and_marks_no_image_as_bad(web, servers, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    source = write_data_set(tmp_path / "web", 3)
    web.failures = [500] * 100
    line = f"annotate {source} --images {web.url} --with boxes -q --out {tmp_path}/out"
    assert call(line) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert not list((tmp_path / "out/shards").iterdir())
    web.failures = []
    assert call(line) == 0
    assert len(json.loads((tmp_path / "out/coco.json").read_text())["annotations"]) == 3


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("s3://bucket/photos", MissingDependencyError, "s3fs is missing: pip install s3fs"),
        ("nope://bucket/photos", ConfigurationError, "nope"),
        ("memory://nobody/photos", InputError, "there is no image"),
        ("memory://nobody/clip.mp4", ImageError, "there is no such file"),
        ("memory://nobody/list.txt", ImageError, "there is no such file"),
    ],
)
def test_urls_that_cannot_be_read_are_one_clear_error(source, kind, message):
    if "s3fs" in message and importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(kind, match=message):
        read_source(source)


def test_a_storage_that_does_not_answer_is_asked_a_few_times(monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    late = Mock(side_effect=TimeoutError("too late"))
    with pytest.raises(DownloadError, match=r"x cannot be read: TimeoutError: too late"):
        remote.patiently("x", late)
    assert late.call_count == remote.ATTEMPTS


def write_clip(path: Path, frames: int) -> Path:
    pictures = [np.asarray(Image.new("RGB", SIZE, (0, 10 * index, 0))) for index in range(frames)]
    return write_video(path, pictures, width=SIZE[0], height=SIZE[1])


def test_the_frames_of_a_video_are_images(servers, tmp_path):
    video = write_clip(tmp_path / "clip.mp4", 20)
    source = read_source(str(video), every=8)
    assert [(item.id, item.name, item.size) for item in source.items] == [
        (index + 1, f"clip/{index:05}.png", SIZE) for index in (0, 8, 16)
    ]
    greens = [np.asarray(Image.open(io.BytesIO(item.content())))[..., 1].mean() for item in source.items]
    assert greens == pytest.approx([0, 80, 160], abs=6)
    clicks = tmp_path / "clicks.csv"
    clicks.write_text("image,x,y\n" + "".join(f"clip/{index:05}.png,20,12\n" for index in range(0, 20, 8)))
    given = f"--with points --prompts {clicks} --every 8"
    assert call(f"annotate {video} {given} -q --format davis coco --out {tmp_path}/out") == 0
    labels = np.asarray(Image.open(tmp_path / "out/davis/Annotations/clip/00016.png"))
    assert labels.shape == SIZE[::-1]
    assert labels.sum() == 9
    assert len(json.loads((tmp_path / "out/coco.json").read_text())["annotations"]) == 3


def test_a_video_at_a_url_is_copied_and_the_copy_removed(web, tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    local = read_source(str(write_clip(web.folder / "clip.mp4", 6)))
    web.failing, web.failures = ".mp4", [503]
    source = read_source(f"{web.url}/clip.mp4")
    copied, originals = ([(item.name, item.content()) for item in each.items] for each in (source, local))
    assert copied == originals
    assert list((tmp_path / "copies").iterdir())
    del source
    gc.collect()
    (web.folder / "bad.mp4").write_bytes(b"no video")
    with pytest.raises(VideoError, match="cannot be opened as a video"):
        read_source(f"{web.url}/bad.mp4")
    assert not list((tmp_path / "copies").iterdir())


LARGE_SIZE = (900, 600)
OBJECTS = [(200, 205, 500, 400), (60, 60, 100, 90), (650, 20, 690, 60)]
PIXELS = draw(OBJECTS, LARGE_SIZE)
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


def large_names(source: str) -> list[str]:
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
    assert large_names(storage.url) == ["cells.zarr", "maps/town.tif"]
    assert large_names(f"{storage.url}/maps/*.tif") == ["town.tif"]
    assert large_names(f"{storage.url}/cells.zarr") == ["cells.zarr"]
    assert large_names(f"{storage.url}/maps/town.tif") == ["town.tif"]
    shutil.copy(storage.folder / "maps/town.tif", storage.folder / "slide.svs")
    assert large_names(f"{storage.url}/slide.svs") == ["slide.svs"]
    (storage.folder / "all.txt").write_text("maps/town.tif\nmaps/gone.tif\n")
    source = read_large_source(f"{storage.url}/all.txt", None, 1, Tiling())
    assert [item.name for item in source.items] == ["maps/town.tif"]
    ((image, why),) = ((each.image, each.why) for each in source.skipped)
    assert (image, why.rpartition(": ")[2]) == ("maps/gone.tif", "there is no such file")


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
    code = "from triton_sam.inputs import remote; remote.PAUSE = 0.1; from support.large_run import main; main(); "
    # At its end, zarr waits for 0.2 s for its thread, and prints a warning if that takes longer.
    code += "from zarr.core.sync import iothread, loop; loop[0].call_soon_threadsafe(loop[0].stop); iothread[0].join()"
    words = f"annotate {storage.url}/cells.zarr --large --with everything --out {tmp_path}/out -q".split()
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=with_support(), capture_output=True, text=True, check=False)
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
def test_urls_of_large_images_that_cannot_be_read_are_one_clear_error(source, kind, message):
    with pytest.raises(kind, match=message):
        large_names(source)
