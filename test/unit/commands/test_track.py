"""The command `track` with the real client and the real video model: prompts, ranges, formats, interruptions.

The masks of the model's networks depend on all prompts and frames before them.
"""

import io
import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.commands import call
from support.contents import files_below
from support.in_process import InProcess
from support.tracked import write_clip
from support.video_files import write_video
from support.video_server import VideoServer, open_video

from triton_sam import SAM2VideoClient
from triton_sam.commands import _video
from triton_sam.errors import ServerUnreachableError
from triton_sam.tracks.records import read_records
from triton_sam.wire import video as wire

FRAMES, SIZE = 6, (64, 48)
POINTS = ("--object", "1", "--point", "0:12,12", "--object", "2", "--point", "0:30,30")


def use(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_video, "make_client", lambda *_: SAM2VideoClient(server.url, retries=0))


@pytest.fixture
def video_server(monkeypatch):
    with VideoServer() as video_server:
        use(video_server, monkeypatch)
        yield video_server


def breaks_at(server: VideoServer, frame: int | None, error: type[BaseException] = KeyboardInterrupt) -> None:
    """Let the next tracking be interrupted at a frame; None: no more."""

    def fail(number: int) -> None:
        if server.operation(number) == wire.PROPAGATE and server.arguments(number)["frame_index"] == frame:
            raise error("at this frame")

    server.before = fail


@pytest.fixture
def clip(tmp_path):
    return write_clip(tmp_path / "clip", FRAMES)


def track(*options: object) -> int:
    return call("track -q", *options)


def stream_of_frames() -> Any:
    """Return standard input with Motion JPEG."""
    stream = io.BytesIO()
    for frame in range(FRAMES):
        Image.new("RGB", SIZE, (30 * frame, 60, 90)).save(stream, format="JPEG")
    return type("Stdin", (), {"buffer": io.BytesIO(stream.getvalue())})


def test_every_format_of_two_objects(video_server, clip, tmp_path, capsys):
    av = pytest.importorskip("av")
    out = tmp_path / "out"
    formats = [part for name in ("png", "rle", "coco", "overlay") for part in ("--format", name)]
    assert track(clip, *POINTS, "--out", out, *formats) == 0
    with VideoServer() as other, open_video(other, clip) as video:
        for object_id, point in ((1, [12, 12]), (2, [30, 30])):
            video.add(0, object_id, points=[point], labels=[1])
        expected = {(frame, name): each for frame, found in video.propagate() for name, each in found.items()}
    lines = capsys.readouterr().out.splitlines()
    for object_id, line in zip((1, 2), lines, strict=True):
        shown = sum(expected[frame, object_id].mask.any() for frame in range(FRAMES))
        assert re.fullmatch(rf"object {object_id}: in {shown} of 6 frames, mean score 0\.\d{{3}}", line)
    names = [f"masks/{frame:05d}.png" for frame in range(FRAMES)]
    assert sorted(files_below(out)) == sorted([*names, "annotations.json", "masks.jsonl", "overlay.mp4", "track.json"])
    records = {(record.frame, record.object_id): record for record in read_records(out / "masks.jsonl")}
    assert records.keys() == expected.keys()
    for key, record in records.items():
        np.testing.assert_array_equal(record.mask, expected[key].mask)
    for frame in range(FRAMES):
        labels = np.asarray(Image.open(out / f"masks/{frame:05d}.png"))
        np.testing.assert_array_equal(labels > 0, expected[frame, 1].mask | expected[frame, 2].mask)
    assert json.loads((out / "annotations.json").read_text())["videos"][0]["length"] == FRAMES
    with av.open(str(out / "overlay.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == FRAMES


def test_an_anamorphic_video_of_variable_rate_keeps_its_shape_and_length(video_server, tmp_path):
    av = pytest.importorskip("av")
    ratio, times = Fraction(64, 45), [0, 40, 80, 500, 540, 1000, 1010, 1500, 3000, 3040]
    frames = [np.full((48, 64, 3), 20 * number, np.uint8) for number in range(len(times))]
    write_video(tmp_path / "clip.mkv", frames, times, rate=25, sample_aspect_ratio=ratio)  # the file states the rate
    assert track(tmp_path / "clip.mkv", "--point", "0:60,40", "--out", tmp_path / "out") == 0
    with av.open(str(tmp_path / "out/overlay.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.sample_aspect_ratio) == (*SIZE, ratio)
        assert float(stream.frames / stream.average_rate) == pytest.approx(3.04 * 10 / 9, rel=0.02)


@pytest.mark.parametrize(("error", "reverse"), [(KeyboardInterrupt, False), (ServerUnreachableError, True)])
def test_a_second_run_after_an_interruption_at_any_frame_writes_equal_files(
    video_server, clip, tmp_path, reverse, error
):
    options = [clip, *POINTS, "--format", "png", "--format", "coco"]
    if reverse:
        options += ["--reverse", "--range", f"0:{FRAMES}"]
    assert track(*options, "--out", tmp_path / "whole") == 0
    expected = files_below(tmp_path / "whole")
    for frame in range(FRAMES):
        out = tmp_path / f"broken_{frame}"
        breaks_at(video_server, frame, error)
        assert track(*options, "--out", out) == (130 if error is KeyboardInterrupt else 1)
        done = FRAMES - 1 - frame if reverse else frame
        assert len(list((out / "masks").iterdir())) == done
        assert not (out / "annotations.json").exists()
        breaks_at(video_server, None)
        assert track(*options, "--out", out) == 0
        assert files_below(out) == expected


def test_killed_between_the_files_of_a_frame(video_server, clip, tmp_path, monkeypatch):
    assert track(clip, *POINTS, "--format", "png", "--out", tmp_path / "whole") == 0
    out = tmp_path / "out"
    with monkeypatch.context() as patch:

        def half(path: Path, records: Any) -> None:
            with path.open("a") as stream:
                stream.write(records[0].to_line() + records[1].to_line()[:50])
            raise KeyboardInterrupt

        patch.setattr("triton_sam.tracks.folder.append_records", half)
        assert track(clip, *POINTS, "--format", "png", "--out", out) == 130
    assert (out / "masks/00000.png").exists()
    assert track(clip, *POINTS, "--format", "png", "--out", out) == 0
    assert files_below(out) == files_below(tmp_path / "whole")


def test_a_complete_run_is_repeated_only_for_a_lost_file(video_server, clip, tmp_path):
    out = tmp_path / "out"
    options = (clip, *POINTS, "--out", out, "--format", "png")
    assert track(*options) == 0
    assert track(*options, "--format", "coco") == 0
    assert video_server.operations().count("start_session") == 1
    before = files_below(out)
    assert "annotations.json" in before
    (out / "masks/00002.png").unlink()
    assert track(*options) == 0
    assert files_below(out) == before


def renamed(clip: Path, names: list[str]) -> Path:
    """Return a copy of the folder whose images have other names."""
    folder = clip.with_name("renamed")
    folder.mkdir()
    for path, name in zip(sorted(clip.iterdir()), names, strict=True):
        (folder / name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(
    "names",
    [
        [f"{frame + 1:05d}.png" for frame in range(FRAMES)],  # as FFmpeg numbers images
        [f"{5 * frame:05d}.png" for frame in range(FRAMES)],  # as in YouTube-VOS
        [f"street.{frame} {{}}.png" for frame in range(8, 8 + FRAMES)],
    ],
)
def test_masks_have_the_names_of_the_images(video_server, clip, tmp_path, names):
    options = (*POINTS, "--format", "png", "--format", "coco", "--out")
    assert track(clip, *options, tmp_path / "numbered") == 0
    numbered = files_below(tmp_path / "numbered")
    named, out = renamed(clip, names), tmp_path / "out"
    assert track(named, *options, out) == 0
    before = files_below(out)
    masks = {name: before[name] for name in before if name.startswith("masks/")}
    assert masks == {f"masks/{name}": numbered[f"masks/{frame:05d}.png"] for frame, name in enumerate(names)}
    assert before["masks.jsonl"] == numbered["masks.jsonl"]
    (video,) = json.loads(before["annotations.json"])["videos"]
    assert video["file_names"] == [f"renamed/{name}" for name in names]
    assert video["frames"] == list(range(FRAMES))
    for _ in range(2):
        video_server.requests.clear()
        assert track(named, *options, out) == 0
        assert files_below(out) == before
        assert not video_server.requests
    (out / "masks" / names[2]).unlink()
    assert track(named, *options, out) == 0
    assert files_below(out) == before


def test_images_of_one_stem_have_numbered_masks(video_server, clip, tmp_path, capsys):
    names = ["a.png", "A.tif", "b.png", "c.png", "d.png", "e.png"]
    options = (renamed(clip, names), *POINTS, "--format", "png", "--format", "coco", "--out", tmp_path / "out")
    assert call("track", *options) == 0
    assert capsys.readouterr().err.count("masks are numbered from 00000") == 1
    assert sorted(path.name for path in (tmp_path / "out/masks").iterdir()) == [f"0000{n}.png" for n in range(FRAMES)]
    (video,) = json.loads((tmp_path / "out/annotations.json").read_text())["videos"]
    assert video["file_names"] == [f"renamed/{name}" for name in sorted(names, key=str.lower)]


def test_overwriting_removes_the_named_masks_of_the_run_before_alone(video_server, clip, tmp_path):
    out, options = tmp_path / "out", ("--point", "0:12,12", "--format", "png", "--out", tmp_path / "out")
    assert track(renamed(clip, [f"{letter}.png" for letter in "abcdef"]), *options) == 0
    own = ["masks/a.json", "masks/mine.png", "masks/00009.png"]
    for name in own:
        (out / name).write_text("mine")
    assert track(clip, *options, "--overwrite") == 0
    assert "naming of masks" not in json.loads((out / "track.json").read_text())["parameters"]
    masks = [f"masks/{frame:05d}.png" for frame in range(FRAMES)]
    assert sorted(files_below(out)) == sorted([*own, *masks, "masks.jsonl", "track.json"])


def test_numbered_masks_of_an_earlier_version_are_not_mixed_with_named_ones(video_server, clip, tmp_path, capsys):
    out = tmp_path / "out"
    folder = renamed(clip, [f"{frame + 1:05d}.png" for frame in range(FRAMES)])
    options = (folder, *POINTS, "--format", "png", "--out", out)
    assert track(*options) == 0
    (out / "masks/00006.png").rename(out / "masks/00000.png")
    manifest = json.loads((out / "track.json").read_text())
    del manifest["parameters"]["naming of masks"]
    (out / "track.json").write_text(json.dumps(manifest))
    assert track(*options) == 1
    assert "has the results of another naming of masks: give another --out, or --over" in capsys.readouterr().err
    assert track(*options, "--overwrite") == 0
    assert sorted(path.name for path in (out / "masks").iterdir()) == sorted(path.name for path in folder.iterdir())


def test_other_images_of_the_same_names_are_another_video(video_server, clip, tmp_path, capsys):
    options = (clip, *POINTS, "--out", tmp_path / "out", "--format", "rle")
    assert track(*options) == 0
    first = min(clip.iterdir())
    with Image.open(first) as image:
        noise = np.random.default_rng(0).integers(0, 256, (image.height, image.width, 3), np.uint8)
    Image.fromarray(noise).save(first)
    assert track(*options) == 1
    assert "has the results of another video" in capsys.readouterr().err


def test_a_mistake_about_the_server_is_told_before_results_are_removed(video_server, clip, tmp_path):
    options = (clip, *POINTS, "--out", tmp_path / "out", "--format", "rle")
    assert track(*options) == 0
    before = files_below(tmp_path / "out")
    assert track(*options, "--overwrite", "--model-repository", tmp_path) == 1
    assert files_below(tmp_path / "out") == before


def test_other_parameters_are_refused_and_overwritten(video_server, clip, tmp_path, capsys):
    out = tmp_path / "out"
    assert track(clip, *POINTS, "--out", out, "--format", "png") == 0
    (out / "masks/notes.txt").write_text("mine")
    other = (clip, "--point", "0:20,20", "--range", "0:3", "--out", out, "--format", "png")
    assert track(*other) == 1
    (line,) = capsys.readouterr().err.splitlines()
    again = "give another --out, or --overwrite to start again"
    assert line.endswith(f"results of another prompts and --range: {again}")
    assert track(*other, "--overwrite") == 0
    pngs = [f"masks/0000{frame}.png" for frame in range(3)]
    assert sorted(files_below(out)) == sorted([*pngs, "masks/notes.txt", "masks.jsonl", "track.json"])
    for damaged in ('{"version": 1, "parameters": 5}', '{"version": 1}'):
        (out / "track.json").write_text(damaged)
        assert track(*other) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{out}/track.json is damaged: {again}" in line
        assert track(*other, "--overwrite") == 0


def test_foreign_files_are_not_touched(video_server, clip, tmp_path, capsys):
    out = tmp_path / "out"
    (out / "masks").mkdir(parents=True)
    (out / "masks/00000.png").write_text("mine")
    for more in ((), ("--overwrite",)):
        assert track(clip, *POINTS, "--out", out, *more) == 1
        assert "is not from `triton-sam track`" in capsys.readouterr().err
    assert (out / "masks/00000.png").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (("--point", "0:12,12"), [0, 1, 2, 3, 4, 5]),
        (("--point", "2:12,12"), [2, 3, 4, 5]),
        (("--point", "2:12,12", "--range", "1:4"), [1, 2, 3]),
        (("--point", "0:12,12", "--range", "3:"), [3, 4, 5]),
        (("--point", "0:12,12", "--range", ":99"), [0, 1, 2, 3, 4, 5]),
        (("--point", "4:12,12", "--reverse"), [4, 3, 2, 1, 0]),
        (("--point", "4:12,12", "--point", "1:9,12", "--reverse"), [4, 3, 2, 1, 0]),
        (("--point", "4:12,12", "--reverse", "--range", "2:6"), [5, 4, 3, 2]),
        (("--point", "0:12,12", "--every", "2"), [0, 2, 4]),
        (("--point", "0:12,12", "--every", "2", "--range", "1:5"), [2, 4]),
        (("--point", "4:12,12", "--every", "2", "--reverse", "--range", "0:6"), [4, 2, 0]),
    ],
)
def test_tracked_frames(video_server, clip, tmp_path, options, asked):
    assert track(clip, *options, "--out", tmp_path / "out", "--format", "rle") == 0
    assert len(video_server.tracked) == len(asked)
    assert [record.frame for record in read_records(tmp_path / "out/masks.jsonl")] == asked


def test_prompts_of_all_kinds_reach_the_server(video_server, clip, tmp_path):
    mask = np.zeros(SIZE[::-1], bool)
    mask[10:30, 31:49] = True
    Image.fromarray(mask).save(tmp_path / "mask.png")
    options = ["--point", "0:12,12", "--object", "3", "--box", "1:2,3,20,21", "--negative-point", "1:4,5"]
    options += [
        "--object",
        "1",
        "--negative-point",
        "0:30,30",
        "--object",
        f"{2**53 + 1}",
        "--mask",
        f"2:{tmp_path}/mask.png",
    ]
    assert track(clip, *options, "--out", tmp_path / "out", "--format", "rle") == 0
    rows = [
        {"object_id": 1, "frame": 0, "points": [[12, 12], [30, 30]], "labels": [1, 0]},
        {"object_id": 3, "frame": 1, "points": [[4, 5]], "labels": [0], "box": [2, 3, 20, 21]},
        {"object_id": 2**53 + 1, "frame": 2, "mask": "mask.png"},
    ]
    (tmp_path / "prompts.json").write_text(json.dumps(rows))
    more = ["--prompts", tmp_path / "prompts.json", "--out", tmp_path / "other", "--format", "rle"]
    assert track(clip, *more) == 0
    assert files_below(tmp_path / "out") == files_below(tmp_path / "other")
    numbers = [number for number, name in enumerate(video_server.operations()) if name == wire.ADD_PROMPT]
    first, second, third = (video_server.arguments(number) for number in numbers[:3])
    assert (first["frame_index"], first["points"], first["labels"]) == (0, [[12, 12], [30, 30]], [1, 0])
    assert (second["object_id"], second["box"], second["points"]) == (3, [2, 3, 20, 21], [[4, 5]])
    assert (third["object_id"], third["frame_index"]) == (2**53 + 1, 2)
    np.testing.assert_array_equal(video_server.requests[numbers[2]].inputs[wire.MASK], mask)


def test_stream_ends_cleanly_with_all_files(video_server, tmp_path, monkeypatch, capsys):
    av = pytest.importorskip("av")
    monkeypatch.setattr(sys, "stdin", stream_of_frames())
    breaks_at(video_server, 4)
    out = tmp_path / "out"
    line = f"track - --point 0:12,12 --format png --format overlay --out {out}"
    assert call(line) == 0
    assert "stopped after 4 frames" in capsys.readouterr().err
    assert len(list((out / "masks").iterdir())) == 4
    with av.open(str(out / "overlay.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 4
    monkeypatch.setattr(sys, "stdin", stream_of_frames())
    assert call(line) == 1
    assert "a stream, which cannot be continued" in capsys.readouterr().err


def test_logits_travel_only_for_label_maps_of_several_objects(video_server, clip, tmp_path):
    for number, (points, form, travel) in enumerate(
        ((POINTS, "png", True), (POINTS, "rle", False), (POINTS[2:4], "png", False))
    ):
        video_server.requests.clear()
        assert track(clip, *points, "--format", form, "--out", tmp_path / str(number)) == 0
        passed = [each for each in video_server.requests if each.inputs[wire.OPERATION][0] == wire.PROPAGATE.encode()]
        assert {"masks" in each.outputs for each in passed} == {travel}


def test_missing_video_models_say_where_they_come_from(clip, tmp_path, capsys, monkeypatch):
    with InProcess(lambda *_: {}) as empty:
        use(empty, monkeypatch)
        assert track(clip, *POINTS, "--out", tmp_path / "out", "--format", "rle") == 1
    assert "triton-sam setup sam2 --video" in capsys.readouterr().err
