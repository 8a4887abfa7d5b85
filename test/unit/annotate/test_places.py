"""Sources that are not plain local files: URLs that fsspec reads, and videos."""

import gc
import importlib.util
import io
import json
import pickle
import tempfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from support.annotated import SIZE, files_of, lines_of, servers, write_data_set, write_images
from support.commands import call
from support.file_server import web

from triton_sam.annotate.sources import read_source
from triton_sam.errors import (
    ConfigurationError,
    DownloadError,
    ImageError,
    InputError,
    MissingDependencyError,
    VideoError,
)
from triton_sam.inputs import remote

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("upath")
__all__ = ["servers", "web"]


def names(source: str, **options) -> list[str]:
    return [item.name for item in read_source(source, **options).items]


@pytest.fixture
def bucket():
    """A folder of fsspec's file system in memory, which lists its files as an object store does."""
    system = fsspec.filesystem("memory")
    content = io.BytesIO()
    Image.new("RGB", SIZE).save(content, "PNG")
    for name in ("b/000.png", "b-c/000.png", "000.png", "notes.txt", "b/deep/001.png"):
        system.pipe(f"/bucket/photos/{name}", content.getvalue())
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


def write_video(path: Path, frames: int) -> Path:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for index in range(frames):
            frame = av.VideoFrame.from_image(Image.new("RGB", SIZE, (0, 10 * index, 0)))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_the_frames_of_a_video_are_images(servers, tmp_path):
    video = write_video(tmp_path / "clip.mp4", 20)
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
    local = read_source(str(write_video(web.folder / "clip.mp4", 6)))
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
