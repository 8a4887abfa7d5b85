"""The command `track` with a client that needs no server: prompts, ranges, formats, going on after interruptions."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.tracked import HEIGHT, SIDE, FakeVideo, disc

from triton_sam.cli import main
from triton_sam.commands import _video
from triton_sam.errors import ModelNotReadyError, ServerUnreachableError
from triton_sam.tracks.records import RecordFile, read_records

FRAMES = 6
POINTS = ("--object", "1", "--point", "0:12,12", "--object", "2", "--point", "0:30,30")


class Client:
    """Opens fake videos. Its attributes say how the next one behaves."""

    def __init__(self) -> None:
        self.breaks_at: int | None = None
        self.shift = 0
        self.error: type[BaseException] = KeyboardInterrupt
        self.refusal: Exception | None = None
        self.length = 10_000
        self.opened: list[FakeVideo] = []

    @contextlib.contextmanager
    def open(self, source: Any, *, quality: int | None, every: int) -> Iterator[FakeVideo]:
        if self.refusal is not None:
            raise self.refusal
        video = FakeVideo(
            source.num_frames, self.breaks_at, self.shift, every=every, length=self.length, error=self.error
        )
        self.opened.append(video)
        yield video

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    fake = Client()
    monkeypatch.setattr(_video, "make_client", lambda *_: fake)
    return fake


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    folder = tmp_path / "clip"
    folder.mkdir()
    for frame in range(FRAMES):
        Image.new("RGB", (SIDE, HEIGHT), (20 * frame, 60, 90)).save(folder / f"{frame:05d}.png")
    return folder


def track(*options: object) -> int:
    return main(["track", *map(str, options), "-q"])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_format_of_two_objects(client: Client, clip: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("av")
    out = tmp_path / "out"
    formats = [part for name in ("png", "rle", "coco", "overlay") for part in ("--format", name)]
    assert track(clip, *POINTS, "--out", out, *formats) == 0
    assert capsys.readouterr().out.splitlines() == [
        "object 1: in 6 of 6 frames, mean score 0.900",
        "object 2: in 6 of 6 frames, mean score 0.900",
    ]
    names = [f"masks/{frame:05d}.png" for frame in range(FRAMES)]
    assert sorted(files(out)) == sorted([*names, "annotations.json", "masks.jsonl", "overlay.mp4", "track.json"])
    for record in read_records(out / "masks.jsonl"):
        x, y = {1: (12, 12), 2: (30, 30)}[record.object_id]
        assert np.array_equal(record.mask, disc(x + record.frame, y).mask)
    labels = np.asarray(Image.open(out / "masks/00003.png"))
    assert labels[12, 15] == 1
    assert labels[30, 33] == 2
    assert json.loads((out / "annotations.json").read_text())["videos"][0]["length"] == FRAMES


@pytest.mark.parametrize("error", [KeyboardInterrupt, ServerUnreachableError])
@pytest.mark.parametrize("reverse", [False, True])
def test_interrupted_at_any_frame_goes_on_with_equal_files(
    client: Client, clip: Path, tmp_path: Path, reverse: bool, error: type[BaseException], capsys: Any
) -> None:
    options = [clip, *POINTS, "--format", "png", "--format", "coco"]
    if reverse:
        options += ["--reverse", "--range", f"0:{FRAMES}"]
    assert track(*options, "--out", tmp_path / "whole") == 0
    expected = files(tmp_path / "whole")
    client.error = error
    for frame in range(FRAMES):
        out = tmp_path / f"broken_{frame}"
        client.breaks_at = frame
        assert main(["track", *map(str, [*options, "--out", out])]) == (130 if error is KeyboardInterrupt else 1)
        done = FRAMES - 1 - frame if reverse else frame
        hint = f"{done} of {FRAMES} frames are in {out}: the same command goes on where it stopped"
        assert (hint in capsys.readouterr().err) == (done > 0)
        assert len(list((out / "masks").iterdir())) == done
        assert not (out / "annotations.json").exists()
        client.breaks_at = None
        assert track(*options, "--out", out) == 0
        assert files(out) == expected


def test_killed_between_the_files_of_a_frame(
    client: Client, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert track(clip, *POINTS, "--format", "png", "--out", tmp_path / "whole") == 0
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        append = RecordFile.append

        def half(file: RecordFile, records: Any) -> None:
            if records[0].frame == 3:
                with file.path.open("a") as stream:
                    stream.write(records[0].to_line() + records[1].to_line()[:50])
                raise KeyboardInterrupt
            append(file, records)

        patch.setattr(RecordFile, "append", half)
        assert track(clip, *POINTS, "--format", "png", "--out", out) == 130
    assert (out / "masks/00003.png").exists()
    assert track(clip, *POINTS, "--format", "png", "--out", out) == 0
    assert files(out) == files(tmp_path / "whole")


def test_complete_run_asks_the_server_nothing(client: Client, clip: Path, tmp_path: Path) -> None:
    options = (clip, *POINTS, "--out", tmp_path / "out", "--format", "png")
    assert track(*options) == 0
    assert track(*options, "--format", "coco") == 0
    assert len(client.opened) == 1
    assert (tmp_path / "out/annotations.json").exists()


def test_lost_file_is_made_again(client: Client, clip: Path, tmp_path: Path) -> None:
    options = (clip, *POINTS, "--out", tmp_path / "out", "--format", "png")
    assert track(*options) == 0
    before = files(tmp_path / "out")
    (tmp_path / "out/masks/00002.png").unlink()
    assert track(*options) == 0
    assert files(tmp_path / "out") == before


def test_other_parameters_are_refused_and_overwritten(client: Client, clip: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert track(clip, *POINTS, "--out", out, "--format", "png") == 0
    (out / "masks/notes.txt").write_text("mine")
    other = (clip, "--point", "0:20,20", "--range", "0:3", "--out", out, "--format", "png")
    assert track(*other) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("results of another prompts and --range: give another --out, or --overwrite to start again")
    assert track(*other, "--overwrite") == 0
    pngs = [f"masks/0000{frame}.png" for frame in range(3)]
    assert sorted(files(out)) == sorted([*pngs, "masks/notes.txt", "masks.jsonl", "track.json"])


@pytest.mark.parametrize("text", ['{"version": 1, "parameters": 5}', '{"version": 1}'])
def test_a_damaged_manifest_is_refused_and_overwritten(
    client: Client, clip: Path, tmp_path: Path, capsys: Any, text: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "track.json").write_text(text)
    options = (clip, "--point", "0:20,20", "--format", "rle", "--out", out, "-q")
    assert track(*options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{out}/track.json is damaged: give another --out, or --overwrite to start again" in line
    assert track(*options, "--overwrite") == 0


def test_other_weights_are_refused(client: Client, clip: Path, tmp_path: Path, capsys: Any) -> None:
    options = (clip, *POINTS, "--out", tmp_path / "out", "--format", "png")
    client.breaks_at = 3
    assert track(*options) == 130
    before = files(tmp_path / "out")
    client.breaks_at, client.shift = None, 5
    capsys.readouterr()
    assert track(*options) == 1
    assert "frame 0, object 1: this server finds another mask" in capsys.readouterr().err
    assert files(tmp_path / "out") == before


def test_foreign_files_are_not_touched(client: Client, clip: Path, tmp_path: Path, capsys: Any) -> None:
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
def test_tracked_frames(client: Client, clip: Path, tmp_path: Path, options: tuple[str, ...], asked: list[int]) -> None:
    assert track(clip, *options, "--out", tmp_path / "out", "--format", "rle") == 0
    assert client.opened[0].asked == asked
    assert [record.frame for record in read_records(tmp_path / "out/masks.jsonl")] == asked


def test_prompts_of_all_kinds_reach_the_client(client: Client, clip: Path, tmp_path: Path) -> None:
    Image.fromarray(disc(40, 20).mask).save(tmp_path / "mask.png")
    sent: list[dict[str, Any]] = []
    add = FakeVideo.add

    def note(video: FakeVideo, frame: int, object_id: int, **prompt: Any) -> Any:
        sent.append({"frame": frame, "object_id": object_id} | {k: v for k, v in prompt.items() if v is not None})
        return add(video, frame, object_id, **prompt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeVideo, "add", note)
        options = ["--point", "0:12,12", "--object", "3", "--box", "1:2,3,20,21", "--negative-point", "1:4,5"]
        options += ["--object", "1", "--negative-point", "0:30,30", "--object", "9", "--mask", f"2:{tmp_path}/mask.png"]
        assert track(clip, *options, "--out", tmp_path / "out", "--format", "rle") == 0
        rows = [
            {"object_id": 1, "frame": 0, "points": [[12, 12], [30, 30]], "labels": [1, 0]},
            {"object_id": 3, "frame": 1, "points": [[4, 5]], "labels": [0], "box": [2, 3, 20, 21]},
            {"object_id": 9, "frame": 2, "mask": "mask.png"},
        ]
        (tmp_path / "prompts.json").write_text(json.dumps(rows))
        more = ["--prompts", tmp_path / "prompts.json", "--out", tmp_path / "other", "--format", "rle"]
        assert track(clip, *more) == 0
    by_options, by_file = sent[:3], sent[3:]
    for prompts in (by_options, by_file):
        assert np.array_equal(prompts[2].pop("mask"), disc(40, 20).mask)
    assert by_options == by_file
    assert by_options[0] == {"frame": 0, "object_id": 1, "points": [[12, 12], [30, 30]], "labels": [1, 0]}
    assert by_options[1]["box"] == [2, 3, 20, 21]
    assert files(tmp_path / "out") == files(tmp_path / "other")


def test_stream_ends_cleanly_with_all_files(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    av = pytest.importorskip("av")
    stream = io.BytesIO()
    for frame in range(FRAMES):
        Image.new("RGB", (SIDE, HEIGHT), (30 * frame, 60, 90)).save(stream, format="JPEG")
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(stream.getvalue())}))
    client.breaks_at, out = 4, tmp_path / "out"
    options = ["-", "--point", "0:12,12", "--format", "png", "--format", "overlay", "--out", str(out)]
    assert main(["track", *options]) == 0
    assert "stopped after 4 frames" in capsys.readouterr().err
    assert len(list((out / "masks").iterdir())) == 4
    with av.open(str(out / "overlay.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 4
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(stream.getvalue())}))
    assert main(["track", *options]) == 1
    assert "a stream, which cannot go on" in capsys.readouterr().err


def test_stream_that_breaks_keeps_what_was_tracked(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("av")
    stream = io.BytesIO()
    for frame in range(FRAMES):
        Image.new("RGB", (SIDE, HEIGHT), (30 * frame, 60, 90)).save(stream, format="JPEG")
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(stream.getvalue())}))
    client.breaks_at, client.error, out = 2, ServerUnreachableError, tmp_path / "out"
    assert track("-", "--point", "0:12,12", "--format", "coco", "--out", out) == 1
    assert json.loads((out / "annotations.json").read_text())["videos"][0]["length"] == 2


def test_logits_travel_only_for_label_maps_of_several_objects(client: Client, clip: Path, tmp_path: Path) -> None:
    asked: list[bool] = []
    propagate = FakeVideo.propagate

    def note(video: FakeVideo, *, logits: bool, **options: Any) -> Any:
        asked.append(logits)
        return propagate(video, logits=logits, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeVideo, "propagate", note)
        for number, options in enumerate(
            ((*POINTS, "--format", "png"), (*POINTS, "--format", "rle"), (*POINTS[2:4], "--format", "png"))
        ):
            assert track(clip, *options, "--out", tmp_path / str(number)) == 0
    assert asked == [True, False, False]


def test_missing_video_models_say_where_they_come_from(client: Client, clip: Path, tmp_path: Path, capsys: Any) -> None:
    client.refusal = ModelNotReadyError("the model sam2_video is not ready")
    assert track(clip, *POINTS, "--out", tmp_path / "out", "--format", "rle") == 1
    assert "triton-sam setup sam2 tiny --video" in capsys.readouterr().err
