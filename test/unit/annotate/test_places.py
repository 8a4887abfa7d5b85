"""Sources that are not plain local files: URLs that fsspec reads, and videos."""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.annotated import SIZE, FakeServers, coco, files_of, servers, write_data_set, write_images
from support.file_server import Storage, web

from triton_sam.annotate.sources import read_source
from triton_sam.cli import main
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
def bucket() -> Iterator[str]:
    """A folder of fsspec's file system in memory, which lists its files as an object store does."""
    system = fsspec.filesystem("memory")
    content = io.BytesIO()
    Image.new("RGB", SIZE).save(content, "PNG")
    for name in ("b/000.png", "b-c/000.png", "000.png", "notes.txt", "b/deep/001.png"):
        system.pipe(f"/bucket/photos/{name}", content.getvalue())
    yield "memory://bucket/photos"
    system.rm("/bucket", recursive=True)


def test_a_folder_a_pattern_and_a_file_at_a_url(bucket: str) -> None:
    every = ["000.png", "b/000.png", "b/deep/001.png", "b-c/000.png"]
    assert names(bucket) == names(f"{bucket}/") == names(f"{bucket}/**/*.png") == every
    assert names(f"{bucket}/b*/*.png") == ["b/000.png", "b-c/000.png"]
    assert names(f"{bucket}/b/000.png") == ["000.png"]
    (item,) = read_source(f"{bucket}/b/000.png").items
    assert Image.open(io.BytesIO(item.content())).size == SIZE
    assert pickle.loads(pickle.dumps(item)).content() == item.content()


def test_a_comment_of_a_list_asks_no_storage(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_sam.annotate.sources.find_file", lambda *_: pytest.fail("a request for a comment"))
    (tmp_path / "list.txt").write_text("# of July\n000.png\n")
    found = read_source(str(tmp_path / "list.txt"), remote.place_of(bucket))
    assert [item.name for item in found.items] == ["000.png"]


def test_every_leaves_images_out(bucket: str, tmp_path: Path) -> None:
    assert names(bucket, every=2) == ["000.png", "b/deep/001.png"]
    write_images(tmp_path, 5)
    assert names(str(tmp_path), every=4) == ["000.png", "004.png"]


def test_a_data_set_at_a_url_gives_the_files_of_a_local_one(web: Storage, servers: FakeServers, tmp_path: Path) -> None:
    local = write_data_set(tmp_path / "web", 5)
    common = ["--with", "boxes", "-q", "--format", "coco", "labels"]
    assert main(["annotate", str(local), *common, "--out", str(tmp_path / "one")]) == 0
    web.failures = [503, 429]  # the storage is away for a moment
    assert main(["annotate", f"{web.url}/boxes.json", *common, "--out", str(tmp_path / "two")]) == 0
    assert not web.failures
    elsewhere = tmp_path / "boxes.json"
    elsewhere.write_bytes(local.read_bytes())
    command = ["annotate", str(elsewhere), "--images", web.url, *common, "--out", str(tmp_path / "three")]
    assert main(command) == 0
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two") == files_of(tmp_path / "three")


def test_a_remote_image_that_is_not_there_is_one_line_of_errors(
    web: Storage, servers: FakeServers, tmp_path: Path
) -> None:
    write_images(tmp_path / "web", 2)
    document = coco(["000.png", "gone.png", "001.png"])
    (tmp_path / "web/set.json").write_text(json.dumps(document))
    source = f"{web.url}/set.json"
    assert main(["annotate", source, "--with", "boxes", "-q", "--out", str(tmp_path / "out")]) == 0
    (line,) = (tmp_path / "out/errors.jsonl").read_text().splitlines()
    assert json.loads(line)["image"] == "gone.png"
    assert f"{web.url}/gone.png cannot be read: there is no such file" in json.loads(line)["error"]
    assert sum(path == "/gone.png" for path in web.asked) == 1


def test_a_storage_that_is_gone_ends_the_run_and_marks_no_image_as_bad(
    web: Storage,
    servers: FakeServers,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    source = write_data_set(tmp_path / "web", 3)
    web.failures = [500] * 100
    command = ["annotate", str(source), "--images", web.url, "--with", "boxes", "-q", "--out", str(tmp_path / "out")]
    assert main(command) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert not list((tmp_path / "out/shards").iterdir())
    web.failures = []
    assert main(command) == 0
    assert len(json.loads((tmp_path / "out/coco.json").read_text())["annotations"]) == 3


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: read_source("s3://bucket/photos"), MissingDependencyError, "s3fs is missing: pip install s3fs"),
        (lambda: read_source("nope://bucket/photos"), ConfigurationError, "nope"),
        (lambda: read_source("memory://nobody/photos"), InputError, "there is no image"),
        (lambda: read_source("memory://nobody/clip.mp4"), ImageError, "there is no such file"),
        (lambda: read_source("memory://nobody/list.txt"), ImageError, "there is no such file"),
    ],
)
def test_urls_that_cannot_be_read_are_one_clear_error(call, kind: type[Exception], message: str) -> None:
    if "s3fs" in message and importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(kind, match=message):
        call()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(MissingDependencyError, match="remote"):
        read_source("memory://bucket/photos")


def test_a_storage_that_does_not_answer_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    calls = []

    def call() -> bytes:
        calls.append(1)
        raise TimeoutError("too late")

    with pytest.raises(DownloadError, match=r"x cannot be read: TimeoutError: too late"):
        remote.patiently("x", call)
    assert len(calls) == remote.ATTEMPTS


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


def test_the_frames_of_a_video_are_images(servers: FakeServers, tmp_path: Path) -> None:
    video = write_video(tmp_path / "clip.mp4", 20)
    source = read_source(str(video), every=8)
    assert [item.name for item in source.items] == ["clip/00000.png", "clip/00008.png", "clip/00016.png"]
    assert [item.id for item in source.items] == [1, 9, 17]
    assert {item.size for item in source.items} == {SIZE}
    greens = [np.asarray(Image.open(io.BytesIO(item.content())))[..., 1].mean() for item in source.items]
    assert greens == pytest.approx([0, 80, 160], abs=6)
    clicks = tmp_path / "clicks.csv"
    clicks.write_text("image,x,y\n" + "".join(f"clip/{index:05}.png,20,12\n" for index in range(0, 20, 8)))
    command = ["annotate", str(video), "--with", "points", "--prompts", str(clicks), "--every", "8", "-q"]
    assert main([*command, "--format", "davis", "coco", "--out", str(tmp_path / "out")]) == 0
    labels = np.asarray(Image.open(tmp_path / "out/davis/Annotations/clip/00016.png"))
    assert labels.shape == SIZE[::-1]
    assert labels.sum() == 9
    assert len(json.loads((tmp_path / "out/coco.json").read_text())["annotations"]) == 3


def test_a_video_at_a_url_is_copied_and_the_copy_removed(
    web: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    local = read_source(str(write_video(web.folder / "clip.mp4", 6)))
    web.failing, web.failures = ".mp4", [503]
    source = read_source(f"{web.url}/clip.mp4")
    assert [item.name for item in source.items] == [item.name for item in local.items]
    assert [item.content() for item in source.items] == [item.content() for item in local.items]
    assert list((tmp_path / "copies").iterdir())
    del source
    gc.collect()
    (web.folder / "bad.mp4").write_bytes(b"no video")
    with pytest.raises(VideoError, match="cannot be opened as a video"):
        read_source(f"{web.url}/bad.mp4")
    assert not list((tmp_path / "copies").iterdir())


def test_a_file_that_is_no_video_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    command = ["annotate", str(tmp_path / "clip.mp4"), "--with", "everything", "--out", str(tmp_path / "out")]
    assert main(command) == 1
    assert "cannot be opened as a video" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
