"""Objects of a video by words, with a finder and a tracker whose server is in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tracked import DiscServer, write_clip

from triton_sam import SAM2TritonClient, SAM2VideoClient, find_in_video
from triton_sam.concepts.instances import Instance, new_instances, without_doubles
from triton_sam.errors import ConfigurationError, PromptError, VideoError

FRAMES = 7
BUS, LATER, FAINT = ("bus", 12.0, 12.0, 0.9), ("bus", 40.0, 34.0, 0.8), ("bus", 40.0, 12.0, 0.6)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip", FRAMES)


def found(
    scene: dict, clip: Any, text: Any = "bus", **details: Any
) -> tuple[list[tuple[int, int, str, float]], list[int], DiscServer]:
    """Return the objects, the searched frames, and the server."""
    searched: list[int] = []
    with (
        DiscServer(scene) as server,
        SAM2TritonClient(server.url, "sam3", retries=0) as finder,
        SAM2VideoClient(server.url, retries=0) as tracker,
    ):
        objects = find_in_video(
            finder, tracker, clip, text, on_search=lambda frame, _: searched.append(frame), **details
        )
    return [(each.object_id, each.frame, each.text, round(each.score, 5)) for each in objects], searched, server


def test_the_first_frame_alone_needs_no_tracker(clip: Path) -> None:
    objects, searched, server = found({0: [BUS, FAINT]}, clip)
    assert objects == [(1, 0, "bus", 0.9), (2, 0, "bus", 0.6)]
    assert searched == [0]
    assert server.asked == ["sam3"]


def test_an_object_that_comes_later_is_new_and_one_that_moved_is_not(clip: Path) -> None:
    scene = {0: [BUS], 2: [BUS, FAINT], 4: [BUS, LATER], 6: [LATER]}
    objects, searched, server = found(scene, clip, every=2)
    assert objects == [(1, 0, "bus", 0.9), (2, 4, "bus", 0.8)]
    assert searched == [0, 2, 4, 6]
    assert server.searches() == 4
    assert server.prompted() == {1: 0, 2: 4}
    lower, _, _ = found(scene, clip, every=2, new_threshold=0.5)
    assert lower == [(1, 0, "bus", 0.9), (2, 2, "bus", 0.6), (3, 4, "bus", 0.8)]


def test_texts_do_not_take_objects_from_each_other(clip: Path) -> None:
    car = ("car", 12.0, 12.0, 0.95)
    objects, _, _ = found({0: [BUS], 3: [BUS, car]}, clip, ["bus", "car"], every=3)
    assert objects == [(1, 0, "bus", 0.9), (2, 3, "car", 0.95)]


def test_nothing_until_a_later_frame(clip: Path) -> None:
    objects, _, server = found({4: [FAINT]}, clip, every=2)
    assert objects == [(1, 4, "bus", 0.6)]  # no object is tracked, so the lower threshold holds
    assert server.prompted() == {1: 4}
    assert found({}, clip, every=2)[0] == []


def test_the_frames_to_search(clip: Path) -> None:
    _, searched, server = found({2: [BUS]}, clip, every=2, start=2, stop=5, step=2)
    assert searched == [2, 4]
    assert server.tracked == [1, 2]  # of every second frame


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": 3, "step": 2}, "every must be a multiple of step (2), not 3"),
        (
            {"every": 4, "step": 2, "start": 3},
            "the first frame must be a multiple of step (2), not 3: give another start or stop",
        ),
        ({"start": FRAMES}, "there is no frame to search from frame 7 on: the video has the frames 0 to 6"),
        (
            {"start": 2, "stop": 1},
            "no frame to search from frame 2 to 1: the video has the frames 0 to 6; give another start",
        ),
    ],
)
def test_frames_that_cannot_be_searched(clip: Path, wrong: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        found({}, clip, **wrong)


def test_mistakes(clip: Path) -> None:
    with pytest.raises(PromptError, match="threshold"):
        found({}, clip, threshold=2)
    with pytest.raises(PromptError, match="there is no parameter 'treshold'"):
        found({}, clip, treshold=0.2)
    with pytest.raises(VideoError, match="cannot be searched in a stream"):
        found({}, (np.zeros((48, 64, 3), np.uint8) for _ in range(3)))


def instance(columns: slice, text: int = 0, score: float = 0.9) -> Instance:
    mask = np.zeros((4, 20), bool)
    mask[:, columns] = True
    return Instance(mask, score, None, text)


def test_the_numbers_of_the_reference() -> None:
    """IoU 0.1 decides about doubles (above) and about tracked objects (from 0.1 on)."""
    wide, tenth, less = instance(slice(0, 10)), instance(slice(9, 10)), instance(slice(9, 11))
    assert without_doubles([wide, tenth]) == [wide, tenth]  # IoU is 0.1
    assert without_doubles([wide, instance(slice(8, 10))]) == [wide]
    assert len(without_doubles([wide, instance(slice(0, 10), text=1)])) == 2
    assert without_doubles([instance(slice(0, 0))]) == []
    assert new_instances([tenth, less], [(0, wide.mask)]) == [less]
    assert new_instances([wide], [(0, np.zeros((4, 20), bool))]) == [wide]
    assert new_instances([instance(slice(15, 20), score=0.69)], [(0, wide.mask)]) == []
