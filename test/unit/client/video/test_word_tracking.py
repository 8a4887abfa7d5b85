"""Words in videos over a real session with trivial models: objects come and go by the rules, and sessions heal."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fake_tracking import FAMILY, FRAME_BYTES, SIZE, FakeModels, computed_by, frame_file

from triton_sam.client.video.sync import SAM2VideoClient
from triton_sam.client.video.video import Video
from triton_sam.client.video.word_tracking import track_words
from triton_sam.concepts.query import Query
from triton_sam.concepts.video_rules import Detections, VideoRules
from triton_sam.errors import VideoError
from triton_sam.sessions.video.memory import Limits
from triton_sam.sessions.video.model import VideoModelSettings
from triton_sam.verify.video_transport import VideoTransport
from triton_sam.wire.pair import ModelPair

LOW = FAMILY.mask_size
FRAMES = 10
RULES = VideoRules(hotstart_delay=4, hotstart_unmatch_thresh=2, hotstart_dup_thresh=2, recondition_every_nth_frame=3)


class Finder:
    """Finds one half of each frame, and in the first frames another part that the tracker does not confirm."""

    _pair = ModelPair(FAMILY, "words")

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def _detect(self, query: Query, image: bytes) -> Detections:
        assert query.texts == ("bus",)
        self.asked.append(image)
        lower, strip = np.full((2, LOW, LOW), -5, np.float32)
        lower[LOW // 2 :], strip[:2] = 5, 5
        if len(self.asked) == 2:
            return Detections(np.stack([strip, lower]), np.float32([0.8, 0.9]), np.array([0, 0]))
        return Detections(lower[None], np.float32([0.9]), np.array([0]))


@pytest.fixture
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture
def transport(models: FakeModels) -> VideoTransport:
    inner: Any = SimpleNamespace(
        infer=computed_by(models), close=lambda: None, one_call=contextlib.nullcontext, ready_models=dict
    )
    return VideoTransport(FAMILY, inner)


@pytest.fixture
def video(transport: VideoTransport) -> Iterator[Video]:
    with SAM2VideoClient(transport=transport) as client:
        client._model = type(client._model)(FAMILY)
        with client.open([frame_file(number) for number in range(FRAMES)]) as opened:
            yield opened


def followed(finder: Any, video: Video, **options: Any) -> list[tuple[int, dict[int, Any]]]:
    return list(track_words(finder, video, "bus", rules=RULES, **options))


def test_objects_come_and_go(video: Video, models: FakeModels) -> None:
    finder, done = Finder(), []
    shown = followed(finder, video, on_progress=lambda *each: done.append(each))
    assert [frame for frame, _ in shown] == list(range(FRAMES))
    assert len(finder.asked) == FRAMES
    assert done == [(number + 1, FRAMES) for number in range(FRAMES)]
    ids = {object_id for _, found in shown for object_id in found}
    assert set(video.object_ids) <= ids  # what is removed is never shown
    first = shown[0][1][1]
    assert (first.label, first.object_id, first.frame, first.mask.shape) == ("bus", 1, 0, SIZE[::-1])
    assert first.score == pytest.approx(0.9)
    assert first.mask[SIZE[1] // 2 + 1 :].all()
    assert not first.mask[: SIZE[1] // 2 - 1].any()
    # All objects of a frame are remembered once, after the rules; prompts are remembered when the next frame begins.
    assert [prompted for _, prompted in models.remembered].count(False) == FRAMES - 1


def test_a_range_of_frames_and_an_object_from_a_click(video: Video) -> None:
    video.add(2, 9, points=[[3, 4]])
    shown = followed(Finder(), video, start=2, count=3)
    assert [frame for frame, _ in shown] == [2, 3, 4]
    assert all(9 in found and 10 in found for _, found in shown)
    assert shown[0][1][9].label == ""


def test_cancelling_ends_the_search(video: Video) -> None:
    finder, seen = Finder(), []
    for frame, _ in track_words(finder, video, "bus", rules=RULES):
        seen.append(frame)
        video.cancel()
    assert len(finder.asked) < FRAMES
    assert seen == list(range(len(finder.asked)))


def test_an_error_in_a_late_frame_loses_no_earlier_one(video: Video) -> None:
    finder, seen = Finder(), []
    detect = finder._detect

    def fail(*asked: Any) -> Detections:
        if len(finder.asked) == 7:
            raise VideoError("damaged")
        return detect(*asked)

    finder._detect = fail  # type: ignore[method-assign]
    with pytest.raises(VideoError, match="damaged"):
        seen.extend(frame for frame, _ in track_words(finder, video, "bus", rules=RULES))
    assert seen == list(range(7))


@pytest.mark.slow
def test_memory_is_flat_over_2000_frames(models: FakeModels) -> None:
    """Client and session keep less than the results take: tables, and outputs up to the limit of the session."""
    inner: Any = SimpleNamespace(
        infer=computed_by(models), close=lambda: None, one_call=contextlib.nullcontext, ready_models=dict
    )
    transport, count = VideoTransport(FAMILY, inner), 2000
    transport._model._settings = VideoModelSettings(limits=Limits(session_bytes=1 << 16))
    transport._model.images.cache.limit = 8 * FRAME_BYTES
    models.attended, models.decoded, models.remembered = (deque(maxlen=1) for _ in range(3))  # they keep their calls
    finder, used, results = Finder(), [], 0
    finder.asked = deque(maxlen=3)  # type: ignore[assignment]
    with SAM2VideoClient(transport=transport) as client:
        client._model = type(client._model)(FAMILY)
        with client.open([frame_file(number) for number in range(count)]) as video:
            tracemalloc.start()
            try:
                for frame, found in track_words(finder, video, "bus", rules=RULES):
                    results += sum(each.logits.nbytes + each.mask.nbytes for each in found.values())
                    if frame % 100 == 99:
                        used.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
    assert results > 2 << 20
    assert max(used) < results // 4


def test_an_object_that_the_caller_adds_meanwhile_keeps_its_id(video: Video) -> None:
    for frame, found in track_words(Finder(), video, "bus", rules=VideoRules(hotstart_delay=0)):
        if frame == 0:
            video.add(0, max(found) + 1, points=[[3, 4]])
        elif frame == 1:
            assert found[2].label == ""
            assert any(object_id > 2 and segment.label == "bus" for object_id, segment in found.items())
