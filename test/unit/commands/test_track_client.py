"""The command `track` with the real client, against a server of the contract whose masks depend on all before them."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.video_server import VideoServer, open_video

from triton_sam import SAM2VideoClient
from triton_sam.cli import main
from triton_sam.commands import _video
from triton_sam.tracks.overlay_video import write_mp4
from triton_sam.tracks.records import read_records

av = pytest.importorskip("av")

FRAMES = 12
PROMPTS = ("--point", "0:10,20", "--object", "2", "--box", "4:1,2,30,40", "--negative-point", "4:5,6")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[VideoServer]:
    with VideoServer() as server:
        monkeypatch.setattr(_video, "make_client", lambda *_: SAM2VideoClient(server.url, retries=0))
        yield server


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (48, 64, 3), np.uint8)) for _ in range(FRAMES)]
    write_mp4(tmp_path / "clip.mp4", images, Fraction(10))
    return tmp_path / "clip.mp4"


def masks(out: Path) -> dict[tuple[int, int], str]:
    return {(row.frame, row.object_id): row.rle["counts"] for row in read_records(out / "masks.jsonl")}


def test_video_file_with_two_objects(server: VideoServer, clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["track", str(clip), *PROMPTS, "--out", str(out), "-q"]) == 0
    with VideoServer() as other, open_video(other, clip) as video:
        video.add(0, 1, points=[[10, 20]], labels=[1])
        video.add(4, 2, points=[[5, 6]], labels=[0], box=[1, 2, 30, 40])
        expected = {
            (frame, number): segment.to_rle()["counts"]
            for frame, segments in video.propagate()
            for number, segment in segments.items()
        }
    assert len(expected) == 2 * FRAMES
    assert masks(out) == expected
    with av.open(str(out / "overlay.mp4")) as container:
        assert container.streams.video[0].average_rate == 10
        assert sum(1 for _ in container.decode(video=0)) == FRAMES


def test_an_anamorphic_video_of_variable_rate_keeps_its_shape_and_length(server: VideoServer, tmp_path: Path) -> None:
    ratio, times = Fraction(64, 45), [0, 40, 80, 500, 540, 1000, 1010, 1500, 3000, 3040]
    with av.open(str(tmp_path / "clip.mkv"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)  # which the file states
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base, stream.codec_context.sample_aspect_ratio = Fraction(1, 1000), ratio
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    command = ["track", str(tmp_path / "clip.mkv"), "--point", "0:60,40", "--out", str(tmp_path / "out"), "-q"]
    assert main(command) == 0
    with av.open(str(tmp_path / "out/overlay.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.sample_aspect_ratio) == (64, 48, ratio)
        assert float(stream.frames / stream.average_rate) == pytest.approx(3.04 * 10 / 9, rel=0.02)


@pytest.mark.parametrize("options", [(), ("--every", "4"), ("--reverse",)])
def test_interrupted_run_gives_the_masks_of_an_undisturbed_one(
    server: VideoServer, clip: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = ["track", str(clip), *PROMPTS, "--format", "png", *options, "-q", "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    expected = masks(tmp_path / "whole")
    requests = len(server.requests)

    def interrupt(number: int) -> None:
        if number - first == requests // 2:
            raise KeyboardInterrupt

    first = len(server.requests)
    server.before = interrupt
    assert main([*command, str(tmp_path / "out")]) == 130
    server.before = lambda number: None
    done = masks(tmp_path / "out")
    assert 0 < len(done) < len(expected)
    assert main([*command, str(tmp_path / "out")]) == 0
    assert masks(tmp_path / "out") == expected


def test_motion_jpeg_on_standard_input(server: VideoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    for frame in range(FRAMES):
        Image.new("RGB", (64, 48), (15 * frame, 60, 90)).save(stream, format="JPEG")
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(stream.getvalue())}))
    assert main(["track", "-", "--point", "0:10,20", "--out", str(tmp_path / "out"), "-q"]) == 0
    assert sorted({frame for frame, _ in masks(tmp_path / "out")}) == list(range(FRAMES))
    assert (tmp_path / "out/overlay.mp4").stat().st_size > 0
    assert len(list((tmp_path / "out/images").iterdir())) == FRAMES


def test_broken_and_missing_videos_are_one_line(server: VideoServer, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video" * 100)
    (tmp_path / "empty.mp4").write_bytes(b"")
    for name in ("broken.mp4", "empty.mp4", "none.mp4"):
        assert main(["track", str(tmp_path / name), "--point", "0:1,1", "--out", str(tmp_path / "out")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert name in line
    assert not server.requests
