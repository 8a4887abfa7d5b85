"""Sessions choose memories, pointers, earlier masks and kinds of prompts as the official predictor's own code does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sam2")

import support.fake_tracking as fake
from support.fake_tracking import Server
from support.official_control import FAMILY, SIDE, HashingModels, Official

from triton_sam.sessions.video.model import VideoModel, VideoModelSettings

pytestmark = pytest.mark.export
FRAMES = 40


class Both:
    """Runs each operation with the official predictor and with a session, and compares all masks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_frames: int, prompted: int | None = None) -> None:
        self.official = Official(num_frames, monkeypatch)
        self.official.max_cond_frames_in_attn = -1 if prompted is None else prompted
        family = replace(FAMILY, tracking=replace(FAMILY.tracking, prompted_memories=prompted))
        self.state = self.official.state
        self.server = Server()
        threads = ThreadPoolExecutor(2)
        self.server.model = VideoModel(family, HashingModels(), 1 << 20, "weights", VideoModelSettings(), threads)
        self.num_frames = num_frames
        self.ours = self.server.start(num_frames=num_frames)
        self.compared = 0

    def points(self, frame, object_id=1, points=None, labels=None, box=None, clear=True):
        given = {"points": points, "labels": labels, "box": box}
        # The test's video has 4x4 pixels for the official predictor, which spares it a resize.
        scale = SIDE // 4 / np.array(fake.SIZE, np.float32)
        scaled = {
            "points": None if points is None else np.array(points, np.float32) * scale,
            "labels": None if labels is None else np.array(labels, np.int32),
            "box": None if box is None else np.array(box, np.float32) * np.tile(scale, 2),
        }
        expected = self.official.add_new_points_or_box(self.state, frame, object_id, clear_old_points=clear, **scaled)
        self.ours.add_frames(frame)
        self.same(
            self.ours.do("add_prompt", frame_index=frame, object_id=object_id, clear_old_points=clear, **given),
            expected,
        )

    def mask(self, frame, object_id, mask):
        expected = self.official.add_new_mask(self.state, frame, object_id, mask)
        self.ours.add_frames(frame)
        answer = self.ours.do("add_prompt", frame_index=frame, object_id=object_id, tensors={"mask": mask})
        self.same(answer, expected)

    def propagate(self, start=None, count=None, reverse=False):
        expected = list(self.official.propagate_in_video(self.state, start, count, reverse))
        first = True
        for each in expected:
            self.ours.add_frames(each[0])
            answer = self.ours.do("propagate", frame_index=each[0], reverse=reverse, first=first)
            first = False
            self.same(answer, each)

    def clear(self, frame, object_id=1):
        expected = self.official.clear_all_prompts_in_frame(self.state, frame, object_id)
        self.same(self.ours.do("clear_prompts", frame_index=frame, object_id=object_id), expected)

    def remove(self, object_id):
        ids, _ = self.official.remove_object(self.state, object_id)
        answer = self.ours.do("remove_object", object_id=object_id)
        assert answer["result"]["object_ids"] == list(ids)

    def same(self, answer, expected):
        frame, ids, masks = expected
        assert answer["frame_indexes"].tolist() == [frame] * len(ids)
        assert answer["object_ids"].tolist() == list(ids)
        np.testing.assert_array_equal(answer["masks"], masks.numpy(), err_msg=f"frame {frame}")
        self.compared += len(ids)


@pytest.fixture
def both(monkeypatch):
    return Both(monkeypatch, FRAMES)


def mask(*corner):
    array = np.zeros(fake.SIZE[::-1], bool)
    array[: corner[1], : corner[0]] = True
    return array


def test_one_object(both):
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate()
    assert both.compared == FRAMES + 1


@pytest.mark.parametrize("num_frames", [2, 5, 16, 17])
def test_short_videos(monkeypatch, num_frames):
    both = Both(monkeypatch, num_frames)
    both.points(1, points=[[3, 4]], labels=[1])
    both.propagate()
    both.propagate(num_frames - 1, reverse=True)
    both.points(0, points=[[5, 4]], labels=[0])
    both.propagate()


def test_three_objects_with_prompts_of_every_kind(both):
    both.points(0, 5, points=[[3, 4], [8, 8]], labels=[1, 0])
    both.points(0, 2, box=[1, 1, 9, 9], points=[[3, 4]], labels=[1])
    both.mask(0, 9, mask(12, 7))
    both.propagate()


def test_prompts_before_the_pass(both):
    both.points(3, points=[[3, 4]], labels=[1])
    both.points(3, points=[[5, 5]], labels=[0], clear=False)
    both.points(3, points=[[7, 7]], labels=[1])
    both.mask(3, 1, mask(5, 5))
    both.points(3, points=[[7, 7]], labels=[1], clear=False)
    both.points(20, points=[[7, 7]], labels=[1])
    both.points(11, points=[[2, 7]], labels=[1])
    both.propagate(count=25)
    both.propagate(30, reverse=True)


@pytest.mark.parametrize("prompted", [2, 4])
def test_only_the_closest_prompted_frames_count(monkeypatch, prompted):
    """The others count as frames without a prompt."""
    both = Both(monkeypatch, FRAMES, prompted)
    for frame in (20, 3, 30, 16, 17, 18):
        both.points(frame, points=[[frame % 12, 4]], labels=[1])
    both.propagate()
    both.propagate(39, reverse=True)
    both.points(17, points=[[9, 9]], labels=[0], clear=False)
    both.propagate(15, 10)


def test_both_directions(both):
    both.points(20, points=[[3, 4]], labels=[1])
    both.propagate()
    both.propagate(reverse=True)
    both.propagate(10, 5)


def test_a_correction_in_the_middle(both):
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate()
    both.points(17, points=[[9, 9]], labels=[0])
    both.points(17, points=[[2, 9]], labels=[1], clear=False)
    both.propagate(18)
    both.propagate(17, 4)
    both.propagate(17, reverse=True)
    both.points(12, points=[[2, 2]], labels=[1])
    both.mask(13, 1, mask(3, 3))
    both.propagate(12)


@pytest.mark.parametrize("point", [[9, 9], [2, 7], [6, 3], [11, 1]])  # one mask in 61 is equal by chance
def test_the_first_prompt_is_corrected(both, point):
    """A correction of a prompted frame attends to the memory and to the pointer, of age 0, of the same frame."""
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate(count=9)
    both.points(0, points=[point], labels=[0], clear=False)
    both.propagate(count=9)


def test_an_object_comes_midway(both):
    both.points(0, points=[[3, 4]], labels=[1])
    both.propagate(count=15)
    both.points(12, 2, points=[[9, 9]], labels=[1])
    both.points(30, 1, points=[[9, 1]], labels=[1])
    both.propagate(12)
    both.propagate(38, reverse=True)


def test_clear_and_remove(both):
    both.points(0, 1, points=[[3, 4]], labels=[1])
    both.points(4, 1, points=[[3, 5]], labels=[1])
    both.points(4, 2, points=[[8, 4]], labels=[1])
    both.propagate(count=12)
    both.clear(4, 1)
    both.points(4, 1, points=[[6, 6]], labels=[1])
    both.clear(4, 1)
    both.propagate(2, 12)
    both.points(4, 1, points=[[1, 1]], labels=[1])
    both.propagate()
    both.points(9, 2, points=[[1, 1]], labels=[1])
    both.clear(9, 2)
    both.remove(1)
    both.propagate()
