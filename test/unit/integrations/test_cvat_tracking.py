"""The tracking function for CVAT's agents: frame by frame, it gives the masks of a video that is tracked at once.

The server's masks depend on everything before. The two parts of CVAT's SDK that the function needs are made here; the
slow tests use the SDK itself.
"""

import gc
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.conditions import wait_until
from support.video_server import VideoServer, open_video

from triton_sam import SAM2VideoClient
from triton_sam.errors import PromptError, VideoError
from triton_sam.integrations import cvat
from triton_sam.integrations.cvat import Tracker
from triton_sam.masks import mask_to_box
from triton_sam.masks.segment import Segment

COUNT = 24
FRAMES = [np.full((48, 64, 3), 3 * index, np.uint8) for index in range(COUNT)]
DRAWN = np.zeros((48, 64), bool)
DRAWN[10:20, 15:40] = True
BOX = [5.0, 6.0, 30.0, 40.0]


@pytest.fixture(autouse=True)
def sdk(monkeypatch):
    """The classes and functions of CVAT's SDK that the tracker uses; a mask keeps its pixels."""
    root, annotation, masks = (ModuleType(name) for name in ("cvat_sdk", "cvat_sdk.auto_annotation", "cvat_sdk.masks"))
    root.auto_annotation, root.masks = annotation, masks
    annotation.TrackableShape = annotation.TrackingFunctionSpec = SimpleNamespace
    annotation.DetectionFunctionSpec = SimpleNamespace
    annotation.label_spec = lambda name, number, **_: name
    annotation.mask = lambda label, points: (label, "mask", points)
    annotation.polygon = lambda label, points: (label, "polygon", points)
    masks.encode_mask = np.asarray
    masks.decode_mask = lambda points, **_: np.asarray(points)
    for module in (root, annotation, masks):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def video_server():
    with VideoServer() as video_server:
        yield video_server


@pytest.fixture
def tracker(video_server):
    return Tracker(SAM2VideoClient(video_server.url, retries=0))


@pytest.fixture(scope="module")
def expected():
    """The masks of both objects in all frames, tracked at once."""
    with VideoServer() as server, open_video(server, FRAMES) as video:
        video.add(0, 1, mask=DRAWN)
        video.add(0, 2, box=BOX)
        return [{number: found.mask for number, found in masks.items()} for _, masks in video.propagate(logits=False)]


def shape(kind, points):
    return SimpleNamespace(type=kind, points=points)


def frame_of(tracker, index):
    return tracker.preprocess_image(None, Image.fromarray(FRAMES[index]))


def begin(tracker, index=0):
    frame = frame_of(tracker, index)
    shapes = shape("mask", DRAWN), shape("rectangle", BOX)
    return [tracker.init_tracking_state(None, frame, each) for each in shapes]


def follow(tracker, states, index):
    frame = frame_of(tracker, index)
    return [tracker.track(None, frame, state) for state in states]


def is_equal(found, masks):
    drawn, boxed = found
    box = mask_to_box(masks[2])
    same = np.array_equal(drawn.points, masks[1]) if masks[1].any() else drawn is None
    return same and (boxed is None if box is None else boxed.points == list(box))


@pytest.mark.parametrize("lost", [(), (3, 11, 20)])
def test_masks_equal_those_of_the_video_at_once_also_after_lost_sessions(tracker, video_server, expected, lost):
    states = begin(tracker)
    for index in range(1, COUNT):
        if index in lost:
            video_server.lose_sessions()
            video_server.lose_frames()
        assert is_equal(follow(tracker, states, index), expected[index]), index
    assert len(video_server.sessions) == 1


def test_each_frame_is_tracked_once_for_all_its_objects(tracker, video_server):
    states = begin(tracker)
    for index in (1, 2, 3):
        follow(tracker, states, index)
        follow(tracker, states[:1], index)  # once more
    assert video_server.tracked == [1, 2, 3]


def test_an_object_cannot_leave_the_frames_of_the_others(tracker):
    drawn, boxed = begin(tracker)
    for index in (1, 2, 3):
        follow(tracker, [drawn], index)
    with pytest.raises(VideoError, match="draw the object again, alone"):
        follow(tracker, [boxed], 9)
    follow(tracker, [boxed], 1)


def test_sessions_end_with_their_states(tracker, video_server):
    states = begin(tracker)
    assert len(video_server.sessions) == 1
    del states
    gc.collect()
    wait_until(lambda: not video_server.sessions)


def test_shapes_and_frames_that_cannot_be_tracked(tracker):
    frame = frame_of(tracker, 0)
    with pytest.raises(PromptError, match="no pixel"):
        tracker.init_tracking_state(None, frame, shape("mask", np.zeros((48, 64), bool)))
    with pytest.raises(PromptError):
        tracker.init_tracking_state(None, frame, shape("rectangle", [99.0, 99.0, 120.0, 120.0]))
    state = tracker.init_tracking_state(None, frame, shape("polygon", [1, 1, 30, 1, 30, 30]))
    with pytest.raises(VideoError, match="one size"):
        tracker.track(None, tracker.preprocess_image(None, Image.new("RGB", (9, 9))), state)
    assert tracker.track(None, frame_of(tracker, 1), state).type == "polygon"


class Finder:
    """A client that finds a rectangle for the second word, and nothing for the first one."""

    def find(self, words, image, **options):
        self.asked = [words, options]
        return [Segment(DRAWN, 0.9, None, 1), Segment(DRAWN & False, 0.8, None, 0)]


def test_words_become_shapes_under_labels_of_their_own():
    words = cvat.Words(Finder(), " dog, cat,dog", limit=3)
    context = SimpleNamespace(conf_threshold=0.6, conv_mask_to_poly=False)
    [(label, kind, mask)] = words.detect(context, None)
    assert (label, kind, words.spec.labels) == (1, "mask", ["dog", "cat"])
    assert np.array_equal(mask, DRAWN)
    assert words._client.asked == [["dog", "cat"], {"limit": 3, "threshold": 0.6}]
    context.conv_mask_to_poly = True
    assert [(label, kind) for label, kind, _ in words.detect(context, None)] == [(1, "polygon")]
