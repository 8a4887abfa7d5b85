"""`triton-sam track --text` with a finder and a tracker that need no server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.annotated import lines_of
from support.commands import call
from support.tracked import FakeFinder, FakeVideo, write_clip

from triton_sam.client.video import word_tracking
from triton_sam.commands import _track_words, _video
from triton_sam.errors import VideoError
from triton_sam.masks.segment import VideoSegment

SCENE = {0: [("bus", 12.0, 12.0, 0.9)], 4: [("bus", 12.0, 12.0, 0.9), ("bus", 40.0, 34.0, 0.8)]}
EVERY = ("--text", "bus", "--text-every", "4", "--format", "rle")


class Tracker:
    """Opens fake videos."""

    def __init__(self) -> None:
        self.opened: list[FakeVideo] = []
        self.families: list[str] = []
        self.has_rules = False

    def take(self, *arguments: Any) -> Tracker:
        """Stand for the client that a command makes."""
        self.families.append(arguments[-1])
        return self

    def is_ready(self) -> bool:
        return self.has_rules

    @contextlib.contextmanager
    def open(self, source: Any, *, quality: int | None, every: int):
        self.opened.append(FakeVideo(source.num_frames, every=every))
        yield self.opened[-1]

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def tracker(monkeypatch):
    fake = Tracker()
    monkeypatch.setattr(_video, "make_client", fake.take)
    return fake


@pytest.fixture
def finder(monkeypatch):
    fake = FakeFinder(SCENE)
    monkeypatch.setattr(_track_words, "make_finder", lambda *_: fake)
    return fake


@pytest.fixture
def clip(tmp_path):
    return write_clip(tmp_path / "clip", 6)


def track(*options: object) -> int:
    return call("track", *options)


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


def test_objects_that_words_find_are_tracked(tracker, finder, clip, tmp_path, capsys):
    out = tmp_path / "out"
    assert track(clip, *EVERY, "--model", "edgetam", "--out", out) == 0
    printed = capsys.readouterr()
    assert "object 1 (bus): in 6 of 6 frames" in printed.out
    assert "object 2 (bus)" in printed.out
    assert "searched frame 4: 2 objects so far" in printed.err
    assert rows_of(out) == [(frame, id_) for frame in range(6) for id_ in (1, 2)]
    assert [(each["frame"], each["text"]) for each in found_in(out)] == [(0, "bus"), (4, "bus")]
    assert sorted(tracker.opened[-1].prompts) == [1, 2]
    assert set(tracker.families) == {"edgetam"}


def test_the_same_command_goes_on_and_another_one_is_refused(tracker, finder, clip, tmp_path, capsys):
    out = tmp_path / "out"
    assert track(clip, *EVERY, "--out", out, "-q") == 0
    searches, sessions = len(finder.asked), len(tracker.opened)
    assert track(clip, *EVERY, "--format", "coco", "--out", out, "-q") == 0
    assert (len(finder.asked), len(tracker.opened)) == (searches, sessions)
    assert track(clip, "--text", "car", "--out", out, "--format", "rle") != 0
    assert "the results of another --text or of other options" in capsys.readouterr().err
    assert track(clip, "--text", "bus", "--out", out, "--format", "rle", "--overwrite", "-q") == 0
    assert len(found_in(out)) == 1


@pytest.mark.parametrize(("has_rules", "more"), [(False, ", or search more frames with --text-every"), (True, "")])
def test_nothing_is_found_and_no_folder_left(has_rules, more, tracker, finder, clip, tmp_path, capsys, monkeypatch):
    tracker.has_rules = has_rules
    monkeypatch.setattr(word_tracking, "track_words", lambda *_, **__: iter([(0, {}), (1, {})]))
    assert track(clip, "--text", "car", "--format", "rle", "--out", tmp_path / "out", "-q") == 1
    assert f"clip shows no car in the searched frames: lower --threshold{more}\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def by_rules(monkeypatch):
    """Stand for the client's track_words(), and return the arguments of its calls."""
    asked: list[dict[str, Any]] = []

    def track_words(finder: Any, video: Any, text: Any, **options: Any) -> Iterator[tuple[int, dict]]:
        asked.append({"text": text, **options})
        for frame in range(options["start"], 6 if options["count"] is None else options["start"] + options["count"]):
            options["on_progress"](len(asked), 6)
            numbers = (2, 5) if frame >= 4 else (2,)
            yield frame, {number: segment(frame, number, frame + 5 * number) for number in numbers}

    monkeypatch.setattr(word_tracking, "track_words", track_words)
    return asked


def test_the_rules_for_words_run_where_their_tracker_is(tracker, finder, by_rules, clip, tmp_path, capsys):
    tracker.has_rules = True
    command = [clip, "--text", "bus", "--limit", "3", "--threshold", "0.4", "--out", tmp_path / "out"]
    assert track(*command, "--format", "rle") == 0
    printed = capsys.readouterr()
    assert "words are searched in every frame, by the rules of SAM3 for videos" in printed.err
    assert "object 2 (bus): in 6 of 6 frames" in printed.out
    assert "object 5 (bus): in 2 of 6 frames" in printed.out
    assert (tracker.families[-1], finder.asked) == ("sam3", [])
    (asked,) = by_rules
    assert (asked["text"], asked["limit"], asked["rules"].score_threshold_detection) == (["bus"], 3, 0.4)
    assert rows_of(tmp_path / "out") == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2), (4, 5), (5, 2), (5, 5)]
    assert track(*command, "--format", "coco", "-q") == 0  # no tracking
    assert len(by_rules) == 1
    assert track(*command, "--format", "png", "-q") == 0  # tracks again, by the same rules
    assert len(by_rules) == 2
    assert len(list((tmp_path / "out/masks").iterdir())) == 6


@pytest.mark.parametrize(
    ("options", "has_rules", "says", "runs"),
    [
        (("--model", "sam3"), False, "every frame, by the rules of SAM3", True),
        ((), False, "the first frame; the rules of SAM3 for videos do not run", False),
        (("--model", "sam2"), True, "the first frame; the rules of SAM3", False),
        (("--text-every", "2"), True, "every 2 frames; the rules of SAM3", False),
        (("--range", "2:4"), True, "every frame, by the rules of SAM3", True),
    ],
)
def test_the_choice_of_rules(tracker, finder, by_rules, clip, tmp_path, capsys, options, has_rules, says, runs):
    tracker.has_rules = has_rules
    finder.scene[2] = SCENE[0]
    assert track(clip, "--text", "bus", *options, "--format", "rle", "--out", tmp_path / "out") == 0
    assert says in capsys.readouterr().err
    assert (bool(by_rules), bool(finder.asked)) == (runs, not runs)
    if "--range" in options:
        assert (by_rules[0]["start"], by_rules[0]["count"]) == (2, 2)


def test_masks_are_written_while_the_video_is_tracked(tracker, finder, clip, tmp_path, capsys, monkeypatch):
    tracker.has_rules = True
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
    assert track(*command) == 1
    assert "frame 5 is damaged" in capsys.readouterr().err
    written = [(row["frame"], row["area"]) for row in lines_of(out / "masks.jsonl")]
    assert written == [(0, 0), (1, 90), (2, 90), (3, 0), (4, 90)]
    assert found_in(out)[0]["frame"] == 1
    is_damaged = False
    assert track(*command) == 0
    assert [frame for frame, _ in rows_of(out)] == list(range(6))
    assert "object 1 (bus): in 4 of 6 frames" in capsys.readouterr().out


def test_the_folder_is_checked_before_the_video_is_searched(tracker, finder, by_rules, clip, tmp_path, capsys):
    tracker.has_rules = True
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "masks.jsonl").write_text("by another program")
    assert track(clip, "--text", "bus", "--format", "rle", "--out", taken, "-q") == 1
    assert "masks.jsonl" in capsys.readouterr().err
    assert by_rules == []
