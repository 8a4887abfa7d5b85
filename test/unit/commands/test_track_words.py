"""`triton-sam track --text` with a finder and a tracker whose server is in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.annotated import lines_of
from support.commands import call
from support.tracked import DiscServer, write_clip

from triton_sam.client.video import word_tracking
from triton_sam.errors import VideoError
from triton_sam.families import get_family
from triton_sam.masks.segment import VideoSegment
from triton_sam.wire import video as wire

SCENE = {0: [("bus", 12.0, 12.0, 0.9)], 4: [("bus", 12.0, 12.0, 0.9), ("bus", 40.0, 34.0, 0.8)]}
EVERY = ("--text", "bus", "--text-every", "4", "--format", "rle")


@pytest.fixture
def disc_server():
    with DiscServer(SCENE) as disc_server:
        yield disc_server


def add_rules(server: DiscServer) -> None:
    """Serve the video model of SAM3, whose rules for words then run."""
    server.add_video_model("sam3", **{each.name: each.value for each in wire.parameters(get_family("sam3"))})


@pytest.fixture
def clip(tmp_path):
    return write_clip(tmp_path / "clip", 6)


def track(server: DiscServer, *options: object) -> int:
    return call(f"track --url {server.url}", *options)


def rows_of(out: Path) -> list[tuple[int, int]]:
    """Return frame and object of each line."""
    return [(row["frame"], row["object_id"]) for row in lines_of(out / "masks.jsonl")]


def found_in(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "found/found.json").read_text())["objects"]


def segment(frame: int, object_id: int, left: int = 0) -> VideoSegment:
    """Return a mask of 90 pixels."""
    mask = np.zeros((48, 64), bool)
    mask[10:20, left : left + 9] = True
    return VideoSegment(mask, 0.9, None, object_id=object_id, frame=frame, object_score=3.0, label="bus")


def test_objects_that_words_find_are_tracked(disc_server, clip, tmp_path, capsys):
    out = tmp_path / "out"
    assert track(disc_server, clip, *EVERY, "--out", out) == 0
    printed = capsys.readouterr()
    assert "object 1 (bus): in 6 of 6 frames" in printed.out
    assert "object 2 (bus)" in printed.out
    assert "searched frame 4: 2 objects so far" in printed.err
    assert rows_of(out) == [(frame, id_) for frame in range(6) for id_ in (1, 2)]
    assert [(each["frame"], each["text"]) for each in found_in(out)] == [(0, "bus"), (4, "bus")]
    assert sorted(disc_server.prompted()) == [1, 2]


def test_the_same_command_goes_on_and_another_one_is_refused(disc_server, clip, tmp_path, capsys):
    out = tmp_path / "out"
    assert track(disc_server, clip, *EVERY, "--out", out, "-q") == 0
    requests = len(disc_server.requests)
    assert track(disc_server, clip, *EVERY, "--format", "coco", "--out", out, "-q") == 0
    assert len(disc_server.requests) == requests
    assert track(disc_server, clip, "--text", "car", "--out", out, "--format", "rle") != 0
    assert "the results of another --text, of another video or of other options" in capsys.readouterr().err
    assert track(disc_server, clip, "--text", "bus", "--out", out, "--format", "rle", "--overwrite", "-q") == 0
    assert len(found_in(out)) == 1


@pytest.mark.parametrize(("has_rules", "more"), [(False, ", or search more frames with --text-every"), (True, "")])
def test_nothing_is_found_and_no_folder_left(has_rules, more, disc_server, clip, tmp_path, capsys, monkeypatch):
    if has_rules:
        add_rules(disc_server)
    monkeypatch.setattr(word_tracking, "track_words", lambda *_, **__: iter([(0, {}), (1, {})]))
    assert track(disc_server, clip, "--text", "car", "--format", "rle", "--out", tmp_path / "out", "-q") == 1
    assert f"clip shows no car in the searched frames: lower --threshold{more}\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def by_rules(monkeypatch):
    """Stand for track_words(), which holds back more frames than the clip has; return the arguments of its calls."""
    asked: list[dict[str, Any]] = []

    def track_words(finder: Any, video: Any, text: Any, **options: Any) -> Iterator[tuple[int, dict]]:
        asked.append({"text": text, **options})
        for frame in range(options["start"], 6 if options["count"] is None else options["start"] + options["count"]):
            options["on_progress"](len(asked), 6)
            numbers = (2, 5) if frame >= 4 else (2,)
            yield frame, {number: segment(frame, number, frame + 5 * number) for number in numbers}

    monkeypatch.setattr(word_tracking, "track_words", track_words)
    return asked


def test_the_rules_for_words_run_where_their_tracker_is(disc_server, by_rules, clip, tmp_path, capsys):
    add_rules(disc_server)
    command = [clip, "--text", "bus", "--limit", "3", "--threshold", "0.4", "--out", tmp_path / "out"]
    assert track(disc_server, *command, "--format", "rle") == 0
    printed = capsys.readouterr()
    assert "words are searched in every frame, by the rules of SAM3 for videos" in printed.err
    assert "object 2 (bus): in 6 of 6 frames" in printed.out
    assert "object 5 (bus): in 2 of 6 frames" in printed.out
    assert disc_server.searches() == 0
    (asked,) = by_rules
    assert (asked["text"], asked["limit"], asked["rules"].score_threshold_detection) == (["bus"], 3, 0.4)
    assert rows_of(tmp_path / "out") == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2), (4, 5), (5, 2), (5, 5)]
    assert track(disc_server, *command, "--format", "coco", "-q") == 0  # no tracking
    assert len(by_rules) == 1
    assert track(disc_server, *command, "--format", "png", "-q") == 0  # tracks again, by the same rules
    assert len(by_rules) == 2
    assert len(list((tmp_path / "out/masks").iterdir())) == 6


@pytest.mark.parametrize(
    ("options", "has_rules", "says", "runs"),
    [
        (("--model", "sam3"), True, "every frame, by the rules of SAM3", True),
        ((), False, "the first frame; the rules of SAM3 for videos do not run", False),
        (("--model", "sam2"), True, "the first frame; the rules of SAM3", False),
        (("--text-every", "2"), True, "every 2 frames; the rules of SAM3", False),
        (("--range", "2:4"), True, "every frame, by the rules of SAM3", True),
    ],
)
def test_the_choice_of_rules(disc_server, by_rules, clip, tmp_path, capsys, options, has_rules, says, runs):
    if has_rules:
        add_rules(disc_server)
    disc_server.scene[2] = SCENE[0]
    assert track(disc_server, clip, "--text", "bus", *options, "--format", "rle", "--out", tmp_path / "out") == 0
    assert says in capsys.readouterr().err
    assert (bool(by_rules), bool(disc_server.searches())) == (runs, not runs)
    if "--range" in options:
        assert (by_rules[0]["start"], by_rules[0]["count"]) == (2, 2)


def test_masks_are_written_while_the_video_is_tracked(disc_server, clip, tmp_path, capsys, monkeypatch):
    add_rules(disc_server)
    out, is_damaged = tmp_path / "out", True

    def track_words(*_: Any, **options: Any) -> Iterator[tuple[int, dict]]:
        for frame in range(6):
            options["on_progress"](frame, 6)
            if frame > 2:
                assert rows_of(out)[-1][0] == frame - 1
                assert (out / f"masks/{frame - 1:05}.png").exists()
            if frame == 5 and is_damaged:
                raise VideoError("frame 5 is damaged")
            yield frame, {} if frame in (0, 3) else {1: segment(frame, 1)}

    monkeypatch.setattr(word_tracking, "track_words", track_words)
    command = (clip, "--text", "bus", "--range", "0:6", "--format", "png", "--out", out, "-q")
    assert track(disc_server, *command) == 1
    assert "frame 5 is damaged" in capsys.readouterr().err
    written = [(row["frame"], row["area"]) for row in lines_of(out / "masks.jsonl")]
    assert written == [(0, 0), (1, 90), (2, 90), (3, 0), (4, 90)]
    assert found_in(out)[0]["frame"] == 1
    is_damaged = False
    assert track(disc_server, *command) == 0
    assert [frame for frame, _ in rows_of(out)] == list(range(6))
    assert "object 1 (bus): in 4 of 6 frames" in capsys.readouterr().out


def test_ids_that_png_cannot_hold_end_png_alone(disc_server, clip, tmp_path, capsys, monkeypatch):
    add_rules(disc_server)
    out, runs = tmp_path / "out", []

    def track_words(*_: Any, **options: Any) -> Iterator[tuple[int, dict]]:
        runs.append(1)
        for frame in range(6):
            yield frame, {each: segment(frame, each) for each in ([7] if frame < 4 else [7, 256])}

    monkeypatch.setattr(word_tracking, "track_words", track_words)
    command = (clip, "--text", "bus", "--out", out, "-q")
    assert track(disc_server, *command, "--format", "png") == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--format png holds object ids up to 255, so it ends before frame 4. " in line
    assert f"{out}/masks.jsonl has all frames" in line
    assert rows_of(out) == [*((frame, 7) for frame in range(4)), (4, 7), (4, 256), (5, 7), (5, 256)]
    assert len(list((out / "masks").iterdir())) == 4
    assert track(disc_server, *command, "--format", "coco") == 0
    assert track(disc_server, *command, "--format", "png") == 1
    assert "use another --format" in capsys.readouterr().err
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("taken", "masks.jsonl"),
        ("file", "/file is a file: give a folder"),
        ("file/out", "/file is a file: give a folder"),
    ],
)
def test_the_folder_is_checked_before_the_video_is_searched(
    disc_server, by_rules, clip, tmp_path, capsys, place, words
):
    add_rules(disc_server)
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/masks.jsonl").write_text("by another program")
    assert track(disc_server, clip, "--text", "bus", "--format", "rle", "--out", tmp_path / place, "-q") == 1
    assert words in capsys.readouterr().err
    assert by_rules == []
