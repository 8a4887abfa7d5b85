"""Follows the objects that words find through a video: a detector searches each frame, a tracker follows its objects.

`concepts.video_rules` decides about the objects of each frame. The results of a frame are held back until the rules no
longer remove an object that was new there.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...concepts.instances import sigmoid
from ...concepts.query import Query, check_parameters
from ...concepts.video_rules import Detections, Plan, Tracks, VideoObjects, VideoRules, nms_masks, without_overlaps
from ...errors import ConfigurationError, SamError, VideoError
from ...families.base import FloatArray
from ...masks.resize import full_size_masks, resize_logits
from ...masks.rle import BoolArray
from ...masks.segment import VideoSegment
from ...transport.base import Tensors
from ...wire import video as wire
from ...wire.contract import MASKS
from ..concepts import read_detections
from ..sync import SamTritonClient
from .flows import WITH_LOGITS, Operation
from .frames import look_ahead
from .video import OnProgress, Segments, Video

logger = logging.getLogger(__name__)

PROMPT_LOGIT = 0.5
"""The pixels of a detection that are the prompt of a new object have at least this logit; see
Sam3VideoModel._tracker_add_new_objects."""


def track_words(
    finder: SamTritonClient,
    video: Video,
    text: str | Sequence[str],
    *,
    start: int = 0,
    count: int | None = None,
    rules: VideoRules | None = None,
    limit: int | None = None,
    on_progress: OnProgress | None = None,
) -> Generator[tuple[int, Segments], None, None]:
    """Follow every instance of words through a video, by SAM3's own rules.

    Each frame is searched. The rules of transformers' Sam3VideoModel compare the instances with the masks of the
    tracker: they add objects, remove those that are not confirmed within ``rules.hotstart_delay`` frames, hide one of
    two that overlap, and refresh the memory of objects that are detected well.

    The objects stay in the session of the video. Afterwards, ``video.add()`` corrects them by their ids, and
    ``video.propagate()`` tracks them again. Objects that the video has before are tracked too. The log (INFO) has the
    model that searches, and the rules.

    Args:
        finder: a client of SAM3, whose server has the models for words. If it has the name of the video's models
            ("sam3"), and the server of the video has the models for words, that server searches the frames itself,
            also if the finder has another server: one pass of the backbone for words and tracker.
        video: an open video, no stream. The rules are made for SAM3's tracker, SAM2VideoClient(model_type="sam3").
        text: one text or several, see SAM2TritonClient.find().
        start: index of the first frame.
        count: maximum number of frames; None: up to the end of the video.
        rules: the settings of the rules; None: those of SAM3.
        limit: maximum number of instances of each text in a frame; None: all, at most 200.
        on_progress: called after each frame with the number of frames done and of all frames.

    Yields:
        The index of a frame, and the visible objects by object id, in the order of frames and
        ``rules.hotstart_delay`` frames late. In a segment, ``label`` is the text, ``score`` the detector's score in
        the first frame of the object, and ``logits`` are float32 (h,w). No pixel belongs to two objects of one text, so
        the mask of an object inside another one may be empty. An error in a later frame is raised after the frames
        before it were yielded, as at the end of a video.

    Raises:
        PromptError: a text or a number is invalid, or a limit of the server is reached, for example ``max_objects``.
        VideoError: the video is a stream, or a frame cannot be read.
        ConfigurationError: there is no frame to track.
        ServerError: see triton_sam.errors.
    """
    chosen = rules or VideoRules()
    query = check_parameters(text, None, None, {"threshold": chosen.score_threshold_detection, "limit": limit})
    if video.num_frames is None or video._frames.count is None:
        raise VideoError("words cannot be searched in a stream: give a video file, a folder or a list of images")
    first = video._frames.inside(start)
    last = video._frames.count if count is None else min(first + count, video._frames.count)
    if first >= last:
        raise ConfigurationError(f"count must be at least 1 frame, not {count}")
    return _WordTracking(finder, video, query, chosen).run(range(first, last), on_progress)


@dataclass(frozen=True, eq=False)
class _Held:
    """The results of one frame, until they are shown.

    Args:
        scores: the tracker's logit of each object; of a new object, the logit of the detector's score.
        others: the objects that words did not find.
    """

    index: int
    plan: Plan
    scores: Mapping[int, float]
    others: Segments


class _WordTracking:
    """One run of track_words()."""

    def __init__(self, finder: SamTritonClient, video: Video, query: Query, rules: VideoRules) -> None:
        self._finder = finder
        self._video = video
        self._query = query
        self._is_one_model = wire.video_model(finder._pair.family, finder._pair.variant) == video._model.name
        self._objects = VideoObjects(rules)
        self._found_scores: dict[int, float] = {}
        self._searching = ""

    def run(self, indexes: range, on_progress: OnProgress | None) -> Generator[tuple[int, Segments], None, None]:
        """Track the frames of a session; yield each when the rules are done with it."""
        video, delay = self._video, self._objects.rules.hotstart_delay
        stop = video._new_stop()
        held: deque[_Held] = deque()
        read_and_send = partial(video._read_and_send, words=self._is_one_model)
        most = video._options.ahead
        if self._is_one_model and video._flows.finds_words:  # more would leave the cache before they are searched
            most = min(most, wire.SEARCHED_AHEAD - 1)
        ahead = look_ahead(iter(indexes), read_and_send, most, stop)
        failure: SamError | None = None
        with contextlib.closing(ahead):
            try:
                for done, index in enumerate(ahead, 1):
                    held.append(self._frame(index))
                    if on_progress is not None:
                        on_progress(done, len(indexes))
                    if len(held) >= delay:
                        yield self._shown(held.popleft())
            except SamError as error:
                failure = error
        for each in held:
            yield self._shown(each)
        if failure is not None:
            raise failure

    def _frame(self, index: int) -> _Held:
        """Search and track one frame, and change the objects of the session by the rules."""
        video, objects = self._video, self._objects
        frame, detections = video._frames.outside(index), self._detected(index)
        answer = self._propagated(index)
        # The logits of tracker and detector may differ in size.
        if answer is not None and (side := answer[MASKS].shape[-1]) != detections.masks.shape[-1]:
            detections = replace(detections, masks=resize_logits(detections.masks, (side, side)))
        if objects.rules.det_nms_thresh > 0:
            detections = nms_masks(detections, objects.rules.det_nms_thresh)
        tracks, others = self._sorted(answer, frame)
        objects.max_obj_id = max([objects.max_obj_id, *video.object_ids])  # the caller may have added objects
        plan = objects.plan(index, detections, tracks)
        if answer is not None:
            lists = {"absent": sorted(plan.absent), "confirmed": sorted(plan.reconditioned)}
            video._run(Operation(wire.UPDATE_MEMORIES, {"frame_index": index, **lists}, index))
        for object_id in plan.removed & set(video.object_ids):  # first, because they take room
            video.remove(object_id)
        for object_id, place in plan.new.items():
            self._found_scores[object_id] = float(detections.scores[place])
            if object_id not in plan.removed:
                mask = prompt_of(detections.masks[place], video.frame_size)
                video._run(video._prompt(frame, object_id, None, None, None, mask, True))
        scores = dict(zip(tracks.obj_ids, tracks.scores.tolist(), strict=True))
        new = {object_id: _logit(float(detections.scores[place])) for object_id, place in plan.new.items()}
        return _Held(index, plan, {**scores, **new}, others)

    def _detected(self, index: int) -> Detections:
        """Search one frame: the server of the video does, if it has the model, else the finder."""
        video = self._video
        if self._is_one_model and video._flows.finds_words:
            arguments = {"frame_index": index, "query": self._query.members()}
            try:
                answer = video._carry(Operation(wire.FIND, arguments, index, changes=False), (MASKS,))
            except SamError:
                # If this has changed, a server that cannot search has restored the lost session.
                if video._flows.finds_words:
                    raise
            else:
                self._log(video._model.name)
                return read_detections(answer[wire.RESULT], answer[MASKS], video._model.name)
        self._log(self._finder._pair.session_model)
        return self._finder._detect(self._query, video._frames.content(index))

    def _log(self, searching: str) -> None:
        """Log which model searches the frames, for the first one and after a change."""
        if searching != self._searching:
            self._searching = searching
            text = "%s searches each frame for %s, and the objects of %s follow %s"
            logger.info(text, searching, ", ".join(self._query.texts), self._video._model.name, self._objects.rules)

    def _propagated(self, index: int) -> Tensors | None:
        """Track the objects of the session into a frame, without encoding its memories."""
        if not self._video.object_ids:
            return None
        arguments = {"frame_index": index, "reverse": False, "first": True, "remember": False}
        return self._video._run(Operation(wire.PROPAGATE, arguments, index), WITH_LOGITS)

    def _sorted(self, answer: Tensors | None, frame: int) -> tuple[Tracks, Segments]:
        """Return the objects that words found, and the others."""
        if answer is None:
            return Tracks([], np.zeros((0, 1, 1), np.float32), np.zeros(0, np.float32)), {}
        ids = answer[wire.OBJECT_IDS].tolist()
        is_ours = np.array([object_id in self._objects.texts for object_id in ids], bool)
        others = self._video._read({name: answer[name][~is_ours] for name in WITH_LOGITS}, frame=frame)
        ours = [object_id for object_id, known in zip(ids, is_ours, strict=True) if known]
        masks, scores = answer[MASKS][is_ours, 0], answer[wire.OBJECT_SCORES][is_ours]
        return Tracks(ours, masks, scores), others

    def _shown(self, held: _Held) -> tuple[int, Segments]:
        """Return the masks of a frame."""
        objects, video = self._objects, self._video
        frame, masks = video._frames.outside(held.index), {}
        for object_id in sorted(held.plan.masks.keys() - held.plan.hidden - objects.removed_obj_ids):
            (mask,) = full_size_masks(held.plan.masks[object_id], video.frame_size, video._model.family)
            if mask.any():
                masks[object_id] = mask
        probabilities = sigmoid(np.array([held.scores[object_id] for object_id in masks]))
        apart = without_overlaps(list(masks.values()), probabilities, [objects.texts[object_id] for object_id in masks])
        segments = {
            object_id: VideoSegment(
                mask=mask,
                score=self._found_scores[object_id],
                logits=held.plan.masks[object_id],
                object_index=place,
                object_id=object_id,
                frame=frame,
                object_score=held.scores[object_id],
                label=self._query.texts[objects.texts[object_id]],
            )
            for place, (object_id, mask) in enumerate(zip(masks, apart, strict=True))
        }
        return frame, {**held.others, **segments}


def prompt_of(logits: FloatArray, size: tuple[int, int]) -> BoolArray:
    """Return the prompt of a new object, bool (H,W), from the logits (h,w) of its detection."""
    mask: BoolArray = resize_logits(logits >= PROMPT_LOGIT, size) >= PROMPT_LOGIT
    return mask


def _logit(score: float) -> float:
    """Return the logit of a score within 0..1, at most 20."""
    share = min(max(score, 2e-9), 1 - 2e-9)
    return float(np.log(share / (1 - share)))
