"""The rules by which detections and tracked masks become the objects of a video, frame by frame.

A detector finds instances of texts in each frame, and a tracker follows the known objects. The rules compare their
masks: a detection without an object is a new object, an object that is not detected or detected twice soon after its
first frame is removed, and an object that is detected well is remembered as if it had been prompted again.

Pure logic over arrays. Reference: transformers 5, models/sam3_video/modeling_sam3_video.py; functions and settings have
its names. The settings `recondition_on_trk_masks=False`, `fill_hole_area` and tracking in reverse are not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .._common.checks import check_fields, number, switch
from ..errors import PromptError
from ..families.base import FloatArray
from ..masks.rle import BoolArray

NO_OBJ_LOGIT = np.float32(-10)
"""The logits of an object without a mask in a frame."""
SHRINK_THRESHOLD = 0.3
"""An object is remembered as invisible if a smaller share of its pixels remains where the highest logit wins."""
NEVER_OCCLUDED, ALWAYS_OCCLUDED = -1, 100_000


@dataclass(frozen=True)
class VideoRules:
    """The settings of the rules. Names and defaults are those of transformers' Sam3VideoConfig.

    Args:
        score_threshold_detection: detections need a higher score.
        det_nms_thresh: a detection is dropped if its mask has a higher IoU with a better one of the same text. 0: none.
        assoc_iou_thresh: minimum IoU at which a detection belongs to an object.
        trk_assoc_iou_thresh: minimum IoU at which an object counts as detected.
        new_det_thresh: minimum score of a new object in a frame with tracked objects.
        hotstart_delay: number of frames after its first one in which an object may be removed again, and for which
            results are held back.
        hotstart_unmatch_thresh: number of frames without detection after which an object is removed.
        hotstart_dup_thresh: number of frames with the detection of an earlier object after which one is removed.
        suppress_unmatched_only_within_hotstart: False also hides later objects whose counter of detections reaches 0.
        init_trk_keep_alive: start of this counter.
        max_trk_keep_alive: its maximum.
        min_trk_keep_alive: its minimum.
        suppress_overlapping_based_on_recent_occlusion_threshold: minimum IoU of two objects at which the one that was
            occluded last is hidden. 0: none.
        decrease_trk_keep_alive_for_empty_masklets: whether an empty mask counts as not detected.
        max_num_objects: maximum number of objects at a time.
        recondition_every_nth_frame: distance of the frames in which well-detected objects are confirmed. 0: none.
        high_conf_thresh: minimum score of a detection that confirms, and of the tracker, as a logit.
        high_iou_thresh: minimum IoU of a detection and the object that it confirms.
    """

    score_threshold_detection: float = number(0.5, 0, 1)
    det_nms_thresh: float = number(0.1, 0, 1)
    assoc_iou_thresh: float = number(0.1, 0, 1)
    trk_assoc_iou_thresh: float = number(0.5, 0, 1)
    new_det_thresh: float = number(0.7, 0, 1)
    hotstart_delay: int = number(15, 0, whole=True)
    hotstart_unmatch_thresh: int = number(8, 0, whole=True)
    hotstart_dup_thresh: int = number(8, 0, whole=True)
    suppress_unmatched_only_within_hotstart: bool = switch(True)
    init_trk_keep_alive: int = number(30, whole=True)
    max_trk_keep_alive: int = number(30, whole=True)
    min_trk_keep_alive: int = number(-1, whole=True)
    suppress_overlapping_based_on_recent_occlusion_threshold: float = number(0.7, 0, 1)
    decrease_trk_keep_alive_for_empty_masklets: bool = switch(False)
    max_num_objects: int = number(10_000, 1, whole=True)
    recondition_every_nth_frame: int = number(16, 0, whole=True)
    high_conf_thresh: float = number(0.8, 0, 1)
    high_iou_thresh: float = number(0.8, 0, 1)

    def __post_init__(self) -> None:
        check_fields(self, PromptError)
        for name in ("hotstart_unmatch_thresh", "hotstart_dup_thresh"):
            if 0 < self.hotstart_delay < getattr(self, name):
                raise PromptError(f"{name} must be at most hotstart_delay ({self.hotstart_delay})")


@dataclass(frozen=True, eq=False)
class Detections:
    """The instances of all texts in one frame, in the order of texts and of the detector's proposals.

    Args:
        masks: float32 (N,h,w) logits.
        scores: float32 (N,), 0..1.
        texts: (N,): the index of the text of each.
    """

    masks: FloatArray
    scores: FloatArray
    texts: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tracks:
    """The objects that the tracker followed into one frame.

    Args:
        obj_ids: the M ids.
        masks: float32 (M,h,w) logits.
        scores: float32 (M,) logits, above 0 if the object is visible.
    """

    obj_ids: Sequence[int]
    masks: FloatArray
    scores: FloatArray


@dataclass(frozen=True, eq=False)
class Association:
    """Which detections of a frame belong to which objects; see _associate_det_trk of the reference.

    Args:
        new: indices of the detections that are new objects.
        unmatched: the objects with a mask and without detection.
        matched: the objects of each detection.
        confirmed: the detection that confirms an object.
        empty: the objects without a mask.
    """

    new: list[int]
    unmatched: list[int]
    matched: Mapping[int, list[int]]
    confirmed: Mapping[int, int]
    empty: list[int]


@dataclass(frozen=True, eq=False)
class Plan:
    """The decisions about the objects of one frame.

    Args:
        new: the detection of each new object.
        removed: the objects that end here, with all their earlier masks.
        hidden: the objects whose masks are not shown in this frame.
        absent: the objects that the tracker remembers as invisible in this frame.
        reconditioned: the objects that the tracker remembers as prompted in this frame.
        masks: logits (h,w) of all objects of the frame, with those that are new or removed here.
    """

    new: Mapping[int, int]
    removed: set[int]
    hidden: set[int]
    absent: set[int]
    reconditioned: set[int]
    masks: Mapping[int, FloatArray]


@dataclass
class VideoObjects:
    """The objects of a video and what the rules know of them. Call plan() for each frame in order.

    Args:
        max_obj_id: the highest id that is taken.
    """

    rules: VideoRules = field(default_factory=VideoRules)
    max_obj_id: int = 0
    texts: dict[int, int] = field(default_factory=dict)
    """The index of the text of each object, also of the removed ones."""
    removed_obj_ids: set[int] = field(default_factory=set)
    obj_first_frame_idx: dict[int, int] = field(default_factory=dict)
    unmatched_frames: Counter[int] = field(default_factory=Counter)
    """The number of frames without detection of each object."""
    trk_keep_alive: dict[int, int] = field(default_factory=dict)
    doubled_frames: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The number of frames in which an earlier object and a later one had the same detection."""
    obj_id_to_last_occluded: dict[int, int] = field(default_factory=dict)

    def plan(self, frame_idx: int, detections: Detections, tracks: Tracks) -> Plan:
        """Decide about one frame; see run_tracker_update_planning_phase of the reference.

        Args:
            tracks: the objects from earlier plans that are not removed.
        """
        rules = self.rules
        found = self._associate_det_trk(detections, tracks)
        chosen = self._within_limit(found.new, detections, len(tracks.obj_ids))
        new = dict(enumerate(chosen, self.max_obj_id + 1))
        self.max_obj_id += len(new)
        self.texts.update({obj_id: int(detections.texts[index]) for obj_id, index in new.items()})
        removed, hidden = self._process_hotstart(frame_idx, found, list(new))
        reconditioned: set[int] = set()
        if rules.recondition_every_nth_frame and frame_idx % rules.recondition_every_nth_frame == 0:
            scores = dict(zip(tracks.obj_ids, tracks.scores > np.float32(rules.high_conf_thresh), strict=True))
            reconditioned = {obj_id for obj_id in found.confirmed if scores[obj_id]}
        masks = tracks.masks.copy()
        occluded: dict[int, int] = {}
        if len(masks) and rules.suppress_overlapping_based_on_recent_occlusion_threshold > 0:
            suppressed, occluded = self._suppress_overlapping(frame_idx, tracks, removed)
            masks[suppressed] = NO_OBJ_LOGIT
        self.obj_id_to_last_occluded = {each: frame for each, frame in occluded.items() if each not in removed}
        self.removed_obj_ids |= removed
        is_absent = ~(masks > 0).any(axis=(1, 2)) | self._shrunk(masks, tracks.obj_ids)
        shown = dict(zip(tracks.obj_ids, masks, strict=True))
        shown |= {obj_id: detections.masks[index] for obj_id, index in new.items()}
        shown |= {obj_id: detections.masks[found.confirmed[obj_id]] for obj_id in reconditioned}
        absent = {obj_id for obj_id, absent in zip(tracks.obj_ids, is_absent, strict=True) if absent}
        return Plan(new, removed, hidden, absent, reconditioned, shown)

    def _associate_det_trk(self, detections: Detections, tracks: Tracks) -> Association:
        rules = self.rules
        if not len(tracks.obj_ids):
            return Association(list(range(len(detections.scores))), [], {}, {}, [])
        ids = np.array(tracks.obj_ids)
        tracked = tracks.masks > 0
        is_nonempty = tracked.any(axis=(1, 2))
        if not len(detections.scores):
            return Association([], ids[is_nonempty].tolist(), {}, {}, ids[~is_nonempty].tolist())
        ious = mask_iou(detections.masks > 0, tracked)
        texts = np.array([self.texts[obj_id] for obj_id in tracks.obj_ids])
        ious = np.where(detections.texts[:, None] == texts, ious, np.float32(0))
        is_unmatched = is_nonempty & ~(ious >= rules.trk_assoc_iou_thresh).any(axis=0)
        belongs = ious >= rules.assoc_iou_thresh
        is_new = (detections.scores >= rules.new_det_thresh) & ~belongs.any(axis=1)
        confirms = (detections.scores >= rules.high_conf_thresh) & ~is_new & (ious.max(axis=1) >= rules.high_iou_thresh)
        best = ious.argmax(axis=1)
        return Association(
            np.flatnonzero(is_new).tolist(),
            ids[is_unmatched].tolist(),
            {index: ids[row].tolist() for index, row in enumerate(belongs)},
            {int(ids[best[index]]): int(index) for index in np.flatnonzero(confirms)},
            ids[~is_nonempty].tolist(),
        )

    def _within_limit(self, new: list[int], detections: Detections, known: int) -> list[int]:
        """Return the new detections, the best ones if there is no room for all."""
        room = self.rules.max_num_objects - known
        if len(new) <= room:
            return new
        order = np.argsort(-detections.scores[new], kind="stable")
        return [new[place] for place in order[: max(room, 0)]]

    def _process_hotstart(self, frame_idx: int, found: Association, new: list[int]) -> tuple[set[int], set[int]]:
        """Return the objects to remove, and those to hide in this frame."""
        for obj_id in new:
            self.obj_first_frame_idx[obj_id] = frame_idx
            self.trk_keep_alive[obj_id] = self.rules.init_trk_keep_alive
        self._note(found)
        often = {each for each, count in self.unmatched_frames.items() if count >= self.rules.hotstart_unmatch_thresh}
        often |= {each for (_, each), count in self.doubled_frames.items() if count >= self.rules.hotstart_dup_thresh}
        earliest = frame_idx - self.rules.hotstart_delay
        removed = {each for each in often - self.removed_obj_ids if self.obj_first_frame_idx[each] > earliest}
        if self.rules.suppress_unmatched_only_within_hotstart:
            return removed, set()
        gone = self.removed_obj_ids | removed
        return removed, {each for each in self.unmatched_frames if self.trk_keep_alive[each] <= 0} - gone

    def _note(self, found: Association) -> None:
        """Record which objects were detected in a frame, not detected, or detected together."""
        rules, alive = self.rules, self.trk_keep_alive
        for obj_id in {each for matched in found.matched.values() for each in matched}:
            alive[obj_id] = min(rules.max_trk_keep_alive, alive[obj_id] + 1)
        self.unmatched_frames.update(found.unmatched)
        fading = [*found.unmatched, *(found.empty if rules.decrease_trk_keep_alive_for_empty_masklets else ())]
        for obj_id in fading:
            alive[obj_id] = max(rules.min_trk_keep_alive, alive[obj_id] - 1)
        for matched in found.matched.values():
            first = min(matched, key=self.obj_first_frame_idx.__getitem__, default=None)
            for obj_id in matched:
                if first is not None and obj_id != first:
                    self.doubled_frames[first, obj_id] += 1

    def _suppress_overlapping(
        self, frame_idx: int, tracks: Tracks, removed: set[int]
    ) -> tuple[BoolArray, dict[int, int]]:
        """Return which objects to hide, and when each was occluded last.

        See _suppress_overlapping_based_on_recent_occlusion of the reference.
        """
        masks = tracks.masks > 0
        before = np.array(
            [
                self.obj_id_to_last_occluded.get(obj_id, ALWAYS_OCCLUDED if obj_id in removed else NEVER_OCCLUDED)
                for obj_id in tracks.obj_ids
            ]
        )
        threshold = self.rules.suppress_overlapping_based_on_recent_occlusion_threshold
        suppressed = np.zeros(len(masks), bool)
        for rows in self._same_text(tracks.obj_ids):
            overlapping = np.triu(mask_iou(masks[rows], masks[rows]) >= threshold, 1)
            one, other = before[rows][:, None], before[rows]
            first = overlapping & (one > other) & (other > NEVER_OCCLUDED)
            second = overlapping & (other > one) & (one > NEVER_OCCLUDED)
            suppressed[rows] = first.any(axis=1) | second.any(axis=0)
        is_occluded = ~masks.any(axis=(1, 2)) | suppressed
        after = np.where(is_occluded, frame_idx, before).tolist()
        return suppressed, dict(zip(tracks.obj_ids, after, strict=True))

    def _shrunk(self, masks: FloatArray, obj_ids: Sequence[int]) -> BoolArray:
        """Return which masks lose most of their pixels to others; see _suppress_object_pw_area_shrinkage."""
        shrunk = np.zeros(len(masks), bool)
        for rows in self._same_text(obj_ids):
            group = masks[rows] > 0
            highest = masks[rows].argmax(axis=0)
            remains = group & (highest == np.arange(len(group))[:, None, None])
            area = np.maximum(group.sum(axis=(1, 2)), 1).astype(np.float32)
            shrunk[rows] = remains.sum(axis=(1, 2)).astype(np.float32) / area < SHRINK_THRESHOLD
        return shrunk

    def _same_text(self, obj_ids: Sequence[int]) -> Iterable[npt.NDArray[np.intp]]:
        """Yield the places of the objects of each text that has several."""
        texts = np.array([self.texts[obj_id] for obj_id in obj_ids])
        for text in np.unique(texts):
            rows = np.flatnonzero(texts == text)
            if len(rows) > 1:
                yield rows


def nms_masks(detections: Detections, iou_threshold: float) -> Detections:
    """Return the detections whose masks overlap no better one of the same text."""
    ious = mask_iou(detections.masks > 0, detections.masks > 0)
    kept: list[int] = []
    for index in np.argsort(-detections.scores, kind="stable"):
        rivals = [other for other in kept if detections.texts[other] == detections.texts[index]]
        if (ious[index, rivals] <= iou_threshold).all():
            kept.append(int(index))
    kept.sort()
    return Detections(detections.masks[kept], detections.scores[kept], detections.texts[kept])


def mask_iou(pred_masks: BoolArray, gt_masks: BoolArray) -> FloatArray:
    """Return the IoU, float32 (N,M), of the masks (N,h,w) with the masks (M,h,w); 0 for two empty masks."""
    one, other = (each.reshape(len(each), -1).astype(np.float32) for each in (pred_masks, gt_masks))
    intersection = one @ other.T  # whole numbers below 2**24 are exact
    union = one.sum(axis=1)[:, None] + other.sum(axis=1) - intersection
    ious: FloatArray = intersection / np.maximum(union, np.float32(1))
    return ious


def without_overlaps(masks: Sequence[BoolArray], scores: FloatArray, texts: Sequence[int]) -> list[BoolArray]:
    """Return N masks (H,W) in which each pixel belongs to one object of a text at most, the one with the best score.

    Reference: _apply_object_wise_non_overlapping_constraints in processing_sam3_video.py.
    """
    apart = list(masks)
    taken: dict[int, BoolArray] = {}
    for index in np.argsort(-scores, kind="stable"):
        mask, others = masks[index], taken.get(texts[index])
        if others is not None:
            apart[index] = mask & ~others
        taken[texts[index]] = mask if others is None else others | mask
    return apart
