"""Words in videos whose server searches the frames itself: one pass of the backbone for words, tracker and clicks.

Clients, transport, session model and video model are the product's, in one process, over trivial models.
"""

from __future__ import annotations

import json
import math
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.in_process import InProcess, write_one_pass

from triton_sam import SAM2TritonClient, SAM2VideoClient, VideoRules, track_words
from triton_sam.client.video import frames, word_tracking
from triton_sam.client.video.flows import Operation
from triton_sam.client.video.video import Video
from triton_sam.concepts.query import Query
from triton_sam.concepts.video_rules import Detections
from triton_sam.errors import ModelNotReadyError, PromptError, VideoError
from triton_sam.families import get_family
from triton_sam.wire import contract
from triton_sam.wire import video as wire
from triton_sam.wire.pair import ModelPair

FAMILY = get_family("sam3")
assert FAMILY.tracking is not None
LOW, QUERIES, FRAMES = FAMILY.mask_size, 2, 5
RULES = VideoRules(hotstart_delay=2, hotstart_unmatch_thresh=2, hotstart_dup_thresh=2, recondition_every_nth_frame=2)
LOWER = np.full((LOW, LOW), -5, np.float32)
LOWER[LOW // 2 :] = 5
Arrays = dict[str, npt.NDArray[Any]]


def tracked(role: str, inputs: Arrays, wanted: tuple[str, ...]) -> Arrays:
    """Compute the models of a tracker, which sees the lower half of each frame."""
    (objects,) = {len(array) for name, array in inputs.items() if name in ("memories", "masks", "point_coords", "mask")}
    if role == "memory_attention":
        return {wanted[0]: np.ones(objects, np.float32)}
    if role == "memory_encoder":
        return {wanted[0]: np.zeros((objects, *FAMILY.tracking.memory_shape), np.float32)}
    if role == "mask_prompt":
        return dict.fromkeys(wanted, np.tile(LOWER, (objects, 1, 1, 1)))
    frame, clicks = inputs["image_embeddings.0"][0], inputs["point_coords"].sum((1, 2))
    value = (frame + clicks / 1e6).astype(np.float32)
    return {
        "masks": np.tile(LOWER, (objects, 1, 1, 1)) + value.reshape(-1, 1, 1, 1),
        "iou_predictions": np.full((objects, 1), 0.9, np.float32),
        "object_score_logits": np.full((objects, 1), 4, np.float32),
        "object_pointers": np.zeros((objects, 256), np.float32),
    }


def computed(model: str, inputs: Arrays, wanted: tuple[str, ...]) -> Arrays:
    """Compute a model. The detector finds the lower half for each text."""
    role = model.removeprefix("sam3_")
    if "backbone_states" in inputs:
        return dict.fromkeys(wanted, inputs["backbone_states"])
    if role in ("encoder", "concept_encoder"):
        (pixels,) = inputs.values()
        return {name: np.full(4, pixels.mean(), np.float32) for name in wanted}
    if role == "text_encoder":
        return {wanted[0]: np.zeros((len(inputs["input_ids"]), 2, 4), np.float32)}
    if role == "mask_head":
        return {wanted[0]: LOWER[None, None] + inputs["concept_features.0"][0]}
    if role != "detector":
        return tracked(role, inputs, wanted)
    count = len(inputs["text_features"])
    return {
        "pred_boxes": np.tile(np.array([0, 0.5, 1, 1], np.float32), (count, QUERIES, 1)),
        "pred_logits": np.tile(np.array([[-9, 3]], np.float32), (count, 1)),
        "presence_logits": np.full((count, 1), 9, np.float32),
        "mask_queries": np.zeros((count, QUERIES, 4), np.float32),
        "mask_features": np.zeros((count, 4), np.float32),
    }


class WordServer(InProcess):
    """A server with ``sam3`` and ``sam3_video``.

    Args:
        parameters: parameters of ``sam3_video``.
    """

    def __init__(self, **parameters: str) -> None:
        super().__init__(computed, {"sam3": "sam3"})
        names = {contract.CONCEPT_MODELS: " ".join(f"sam3_{role}" for role in FAMILY.concepts)}
        images = self.add_session_model("sam3", kind="GPU", **names)
        given = {each.name: each.value for each in wire.parameters(FAMILY)}
        self.videos = self.add_video_model("sam3", **{**given, "kind": "GPU", **parameters})
        for program in (images, self.videos):
            program.concept_models.tokenizer = self

    def tokens(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Replace the tokenizer."""
        if any(len(text) > 20 for text in texts):
            raise PromptError("too long")
        return np.ones((len(texts), 2), np.int64), np.ones((len(texts), 2), np.int64)

    @property
    def passes(self) -> Counter[str]:
        """The passes of the backbone so far, by the encoder."""
        return Counter(
            call.model for call in self.triton.calls if call.model.endswith(("3_encoder", "concept_encoder"))
        )

    def finds(self) -> list[str]:
        """Return the models that were asked to search, in order."""
        found = [(each.model, each.inputs) for each in self.requests]
        return [model for model, inputs in found if contract.FIND in inputs or inputs.get("operation") == [b"find"]]


def clip() -> list[Image.Image]:
    """Return frames in the size of the encoder's image, which both models read alike."""
    return [Image.new("RGB", (1008, 1008), (10 * frame, 60, 90)) for frame in range(FRAMES)]


@pytest.fixture
def word_server() -> Iterator[WordServer]:
    with WordServer() as word_server:
        yield word_server


def open_video(server: WordServer) -> Any:
    return SAM2VideoClient(server.url, model_type="sam3", retries=0).open(clip())


def followed(server: WordServer, video: Video, **options: Any) -> dict[int, Any]:
    with SAM2TritonClient(server.url, "sam3", retries=0) as finder:
        return dict(track_words(finder, video, ["bus", "car"], rules=RULES, **options))


def assert_equal(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert list(found) == list(expected) == list(range(FRAMES))
    for frame, segments in expected.items():
        assert list(found[frame]) == list(segments)
        for object_id, segment in segments.items():
            other = found[frame][object_id]
            assert (other.label, other.score) == (segment.label, segment.score)
            np.testing.assert_array_equal(other.mask, segment.mask)
            np.testing.assert_array_equal(other.logits, segment.logits)


@pytest.mark.parametrize("earlier", [False, True])
def test_one_pass_serves_words_tracker_and_clicks(tmp_path: Path, earlier: bool) -> None:
    repository = {} if earlier else {"repository": write_one_pass(tmp_path)}
    with WordServer(**repository) as server, open_video(server) as video:
        found = followed(server, video)
        assert {segment.label for segments in found.values() for segment in segments.values()} == {"bus", "car"}
        video.add(FRAMES - 1, 1, points=[[500, 900]], labels=[1])
        dict(video.propagate(start=1))
        video.add(0, 1, points=[[500, 900]], labels=[1])
    encoders = ["sam3_concept_encoder"] if earlier else ["sam3_encoder", "sam3_concept_encoder"]
    assert server.passes == dict.fromkeys(encoders, FRAMES)
    assert server.finds() == ["sam3_video"] * FRAMES


def test_the_objects_are_those_of_two_passes(word_server: WordServer) -> None:
    with open_video(word_server) as video:
        found = followed(word_server, video)
    with WordServer(cache_bytes=str(150 << 20)) as small, open_video(small) as video:  # no room for three frames
        assert_equal(found, followed(small, video))
        assert small.passes == {"sam3_encoder": FRAMES, "sam3_concept_encoder": FRAMES}
        assert small.finds() == ["sam3"] * FRAMES


def test_the_finder_searches_if_it_has_other_models(word_server: WordServer) -> None:
    with (
        open_video(word_server) as video,
        SAM2TritonClient(word_server.url, "sam3", model_name="lite", retries=0) as finder,
    ):
        tracked = track_words(finder, video, "bus")
        with pytest.raises(ModelNotReadyError, match="lite"):
            next(tracked)
    assert word_server.finds() == []


def test_the_finder_searches_if_the_server_of_the_video_lacks_the_models() -> None:
    with WordServer() as server:
        server.triton.missing.add("sam3_detector")
        with open_video(server) as video:
            server.triton.missing.clear()
            assert len(followed(server, video)) == FRAMES
        assert server.finds() == ["sam3"] * FRAMES


def test_lost_sessions_and_evicted_frames_change_nothing(word_server: WordServer) -> None:
    with open_video(word_server) as video:
        expected = followed(word_server, video)
        video.reset()

        def lose(done: int, _: int) -> None:
            if done == 1:
                word_server.videos._model.sessions.by_id.clear()
            while done == 3 and word_server.videos._model.images.cache.remove_oldest():
                pass

        assert_equal(followed(word_server, video, on_progress=lose), expected)
        assert video.restored == 1


def test_the_finder_goes_on_if_the_server_that_restores_the_session_cannot_search(
    word_server: WordServer, caplog: pytest.LogCaptureFixture
) -> None:
    with open_video(word_server) as video:
        expected = followed(word_server, video)
        video.reset()
        caplog.set_level("INFO", "triton_sam.client.video.word_tracking")

        def lose(done: int, _: int) -> None:
            if done == 2:
                word_server.videos._model.sessions.by_id.clear()
                word_server.videos._model._words = None

        assert_equal(followed(word_server, video, on_progress=lose), expected)
    assert word_server.finds()[-4:] == ["sam3_video", *["sam3"] * (FRAMES - 2)]
    logged = [text.partition(" searches each frame for bus, car, ") for text in caplog.messages]
    assert [model for model, _, rest in logged if rest.endswith(str(RULES))] == ["sam3_video", "sam3"]


def test_no_more_frames_are_sent_ahead_than_the_cache_holds(
    word_server: WordServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = []

    def look_ahead(order: Iterator[int], prepare: Any, most: int, stop: Any) -> Iterator[int]:
        ahead.append(most)
        return frames.look_ahead(order, prepare, most, stop)

    monkeypatch.setattr(word_tracking, "look_ahead", look_ahead)
    with (
        SAM2VideoClient(word_server.url, model_type="sam3", retries=0) as client,
        client.open(clip(), ahead=9) as video,
    ):
        assert len(followed(word_server, video)) == FRAMES
        video._flows.finds_words = False  # the finder searches
        followed(word_server, video)
    assert ahead == [wire.SEARCHED_AHEAD - 1, 9]


class Finder:
    """Finds the lower half of each frame, and in the second one a strip that the tracker does not confirm."""

    _pair = ModelPair(FAMILY, "other")

    def __init__(self) -> None:
        self.asked = 0

    def _detect(self, query: Query, image: bytes) -> Detections:
        self.asked += 1
        strip = np.full_like(LOWER, -5)
        strip[:2] = 5
        masks = np.stack([strip, LOWER]) if self.asked == 2 else LOWER[None]
        return Detections(masks, np.full(len(masks), 0.9, np.float32), np.zeros(len(masks), np.int64))


def test_an_object_that_the_rules_remove_is_never_shown_and_leaves_the_session(word_server: WordServer) -> None:
    rules = VideoRules(hotstart_delay=4, hotstart_unmatch_thresh=2, hotstart_dup_thresh=2)
    finder: Any = Finder()
    with open_video(word_server) as video:
        shown = dict(track_words(finder, video, "bus", rules=rules))
        assert set(video.object_ids) == {object_id for found in shown.values() for object_id in found}
    assert finder.asked == len(shown) == FRAMES


def test_a_range_of_frames_and_an_object_from_a_click(word_server: WordServer) -> None:
    with open_video(word_server) as video:
        video.add(1, 9, points=[[500, 900]])
        shown = followed(word_server, video, start=1, count=3)
    assert list(shown) == [1, 2, 3]
    assert all({9, 10} <= found.keys() for found in shown.values())
    assert shown[1][9].label == ""


def test_an_object_that_the_caller_adds_meanwhile_keeps_its_id(word_server: WordServer) -> None:
    finder: Any = Finder()  # finds another object in frame 1
    labels = {}
    with open_video(word_server) as video:
        for frame, found in track_words(finder, video, "bus", rules=VideoRules(hotstart_delay=0)):
            if frame == 0:
                assert list(found) == [1]
                video.add(0, 2, points=[[500, 100]])
            elif frame == 1:
                labels = {object_id: segment.label for object_id, segment in found.items()}
    assert labels == {1: "bus", 2: "", 3: "bus"}


@pytest.mark.slow
def test_memory_is_flat_over_200_frames() -> None:
    """Client and session keep fewer than 100 frames, with the limits of this server."""
    finder: Any = Finder()
    used, results = [], 0
    with WordServer(session_bytes=str(12 << 20), cache_bytes=str(64 << 20)) as server:

        def forget(done: int, _: int) -> None:
            server.requests.clear()
            server.triton.calls.clear()
            if done in (100, 200):
                used.append(tracemalloc.get_traced_memory()[0])

        with SAM2VideoClient(server.url, model_type="sam3", retries=0) as client, client.open(clip() * 40) as video:
            tracemalloc.start()
            try:
                for _, found in track_words(finder, video, "bus", rules=RULES, on_progress=forget):
                    results += sum(each.logits.nbytes + each.mask.nbytes for each in found.values())
            finally:
                tracemalloc.stop()
    first, last = used
    assert last - first < results // 20


def test_an_error_in_a_late_frame_loses_no_earlier_one(word_server: WordServer, tmp_path: Path) -> None:
    (tmp_path / "damaged.png").write_bytes(b"no image")
    seen: list[int] = []
    with (
        SAM2VideoClient(word_server.url, model_type="sam3", retries=0) as client,
        SAM2TritonClient(word_server.url, "sam3", retries=0) as finder,
        client.open([*clip()[:4], tmp_path / "damaged.png"]) as video,
        pytest.raises(VideoError, match="frame 4"),
    ):
        seen.extend(frame for frame, _ in track_words(finder, video, "bus", rules=RULES))
    assert seen == [0, 1, 2, 3]


def test_cancelling_ends_the_search(word_server: WordServer) -> None:
    seen = []
    with open_video(word_server) as video, SAM2TritonClient(word_server.url, "sam3", retries=0) as finder:
        for frame, _ in track_words(finder, video, "bus", rules=RULES):
            seen.append(frame)
            video.cancel()
    assert seen == list(range(len(seen)))
    assert len(seen) < FRAMES


def search(video: Video, frame: int = 0, **query: Any) -> Any:
    operation = Operation(wire.FIND, {"frame_index": frame, "query": query}, frame, changes=False)
    return video._carry(operation, (contract.MASKS,))


def test_an_answer(word_server: WordServer) -> None:
    with open_video(word_server) as video:
        answer = search(video, text=["bus", "car"])
        objects = json.loads(answer[wire.RESULT][0])["objects"]
        assert [(each["text_index"], each["proposal"]) for each in objects] == [(0, 1), (1, 1)]
        assert objects[0]["box"] == [0, 504, 1008, 1008]
        assert objects[0]["score"] == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-3)
        assert answer[contract.MASKS].shape == (2, 1, LOW, LOW)
        assert search(video, text=["bus"], threshold=0.99)[contract.MASKS].shape == (0, 1, LOW, LOW)
        # The feature maps of a frame leave the cache after its search, so another one encodes it again.
        assert word_server.passes == {"sam3_concept_encoder": 2}


def test_a_wrong_query_is_refused(word_server: WordServer) -> None:
    with open_video(word_server) as video:
        with pytest.raises(PromptError, match="treshold"):
            search(video, text="bus", treshold=1)
        assert len(followed(word_server, video)) == FRAMES  # the session lives on
        assert video.restored == 0
