"""`triton-sam track --text` with a finder and a tracker that need no server."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.tracked import FakeVideo
from support.worded_video import FakeFinder, write_clip

from triton_sam.cli import main
from triton_sam.commands import _track_words, _video

SCENE = {0: [("bus", 12.0, 12.0, 0.9)], 4: [("bus", 12.0, 12.0, 0.9), ("bus", 40.0, 34.0, 0.8)]}
EVERY = ("--text", "bus", "--text-every", "4", "--format", "rle")


class Tracker:
    """Opens fake videos."""

    def __init__(self) -> None:
        self.opened: list[FakeVideo] = []
        self.families: list[str] = []

    def take(self, *arguments: Any) -> Tracker:
        """Stand for the client that a command makes."""
        self.families.append(arguments[-1])
        return self

    @contextlib.contextmanager
    def open(self, source: Any, *, quality: int | None, every: int):
        self.opened.append(FakeVideo(source.num_frames, every=every))
        yield self.opened[-1]

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Tracker:
    fake = Tracker()
    monkeypatch.setattr(_video, "make_client", fake.take)
    return fake


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> FakeFinder:
    fake = FakeFinder(SCENE)
    monkeypatch.setattr(_track_words, "make_finder", lambda *_: fake)
    return fake


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip", 6)


def track(*options: object) -> int:
    return main(["track", *map(str, options)])


def test_objects_that_words_find_are_tracked(
    tracker: Tracker, finder: FakeFinder, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert track(clip, *EVERY, "--out", out) == 0
    printed = capsys.readouterr()
    assert "object 1 (bus): in 6 of 6 frames" in printed.out
    assert "object 2 (bus)" in printed.out
    assert "searched frame 4: 2 objects so far" in printed.err
    rows = [json.loads(line) for line in (out / "masks.jsonl").read_text().splitlines()]
    assert [(row["frame"], row["object_id"]) for row in rows] == [(frame, id_) for frame in range(6) for id_ in (1, 2)]
    objects = json.loads((out / "found/found.json").read_text())["objects"]
    assert [(each["frame"], each["text"]) for each in objects] == [(0, "bus"), (4, "bus")]
    assert sorted(tracker.opened[-1].prompts) == [1, 2]


def test_another_family_tracks_what_words_find(
    tracker: Tracker, finder: FakeFinder, clip: Path, tmp_path: Path
) -> None:
    assert track(clip, *EVERY, "--model", "edgetam", "--out", tmp_path / "out", "-q") == 0
    assert set(tracker.families) == {"edgetam"}
    assert finder.asked


def test_the_same_command_goes_on_and_another_one_is_refused(
    tracker: Tracker, finder: FakeFinder, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert track(clip, *EVERY, "--out", out, "-q") == 0
    searches, sessions = len(finder.asked), len(tracker.opened)
    assert track(clip, *EVERY, "--format", "coco", "--out", out, "-q") == 0
    assert (len(finder.asked), len(tracker.opened)) == (searches, sessions)
    assert track(clip, "--text", "car", "--out", out, "--format", "rle") != 0
    assert "the results of another --text or of other options" in capsys.readouterr().err
    assert track(clip, "--text", "bus", "--out", out, "--format", "rle", "--overwrite", "-q") == 0
    assert len(json.loads((out / "found/found.json").read_text())["objects"]) == 1


def test_nothing_is_found(
    tracker: Tracker, finder: FakeFinder, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert track(clip, "--text", "car", "--format", "rle", "--out", tmp_path / "out") != 0
    assert "clip shows no car in the searched frames: lower --threshold" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
