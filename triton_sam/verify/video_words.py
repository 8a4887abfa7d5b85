"""Compare words in videos with the official model: same weights, same frames, same texts and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..client.sync import SamTritonClient
from ..client.video.sync import SAM2VideoClient
from ..client.video.word_tracking import track_words
from ..concepts.video_rules import VideoRules
from ..export.reference import FollowedObject, Frames, VideoWordsReference
from ..families.base import FloatArray
from ..masks.boxes import intersection_over_union
from ..masks.resize import resize_logits
from ..masks.segment import VideoSegment

Clients = tuple[SamTritonClient, SAM2VideoClient]
"""A finder and a tracker of the same models."""
TEXTS = ("post", "disc")
_INSTANCES, _OBJECTS = 3, 6
"""Maximum numbers of instances in the first frame, of the text with the lower scores, and of objects at a time."""


@dataclass(frozen=True)
class Answer:
    """The objects that the official model found in each frame, by object id, and the rules that it used."""

    frames: Sequence[Mapping[int, FollowedObject]]
    rules: VideoRules


@dataclass(frozen=True)
class Limits:
    """The thresholds of a comparison.

    Args:
        iou: smallest allowed IoU of two whole masks, unless few pixels differ.
        pixels: number of pixels of a whole mask that may differ. Rounding decides where a logit is almost 0, and new
            objects of random weights have long outlines: 20 pixels are 2e-5 of a frame of 1008x1008 pixels.
        logit: largest allowed difference of low-resolution logits, exclusive.
    """

    iou: float
    pixels: int = 20
    logit: float = 0.01

    def __str__(self) -> str:
        return (
            f"the same objects in each frame, IoU of whole masks >= {self.iou:g} or {self.pixels} pixels, logit "
            f"difference < {self.logit:g}, remainders differ only where whole masks do"
        )


@dataclass(frozen=True)
class VideoWordsRow:
    """The objects of all texts in a video, from one runner and from the official model.

    Where two objects of a text overlap, the better one keeps the pixels. Each mask is compared whole, before it loses
    pixels, and as a remainder, after that. A remainder may be a sliver, whose IoU would say little, so its pixels may
    differ only where a whole mask differs.

    Args:
        objects: number of objects that are visible in any frame.
        texts: number of texts with such an object.
        masks: number of compared masks, one for each object and frame.
        wrong: number of frames whose objects, or the texts of objects, differ.
        logit_diff: largest absolute difference of the low-resolution logits, both clamped to +-32.
        iou: IoU of the whole masks in the size of the frames, the smallest of all objects and frames, 0..1.
        pixels: pixels that differ in a whole mask, the most of all objects and frames.
        remainders: pixels that differ in the remainders of a frame although its whole masks agree there, in total.
    """

    runner: str
    frames: int
    objects: int
    texts: int
    masks: int
    wrong: int
    logit_diff: float
    iou: float
    pixels: int
    remainders: int

    HEAD: ClassVar[tuple[str, ...]] = (
        "runner",
        "frames",
        "objects",
        "texts",
        "masks",
        "wrong frames",
        "max |logit diff|",
        "whole mask IoU",
        "pixels",
        "in remainders",
    )

    def cells(self) -> tuple[str, ...]:
        counts = map(str, (self.frames, self.objects, self.texts, self.masks, self.wrong))
        numbers = f"{self.logit_diff:.1e}", f"{self.iou:.6f}", str(self.pixels), str(self.remainders)
        return (self.runner, *counts, *numbers)

    def passes(self, limits: Limits) -> bool:
        """Return whether there are objects, all are the same, and their masks meet the limits. NaN never does."""
        if not self.masks or self.wrong or self.remainders or not self.logit_diff < limits.logit:
            return False
        return self.iou >= limits.iou or self.pixels <= limits.pixels


def limits(frames: int) -> Limits:
    """Return the thresholds. Differences grow along a video, because each frame depends on earlier ones."""
    return Limits(0.9999 if frames <= 12 else 0.999)


def official_answer(reference: VideoWordsReference) -> Answer:
    """Follow the objects of all texts with the official model.

    The threshold of scores is in the widest gap between the best scores of the first frame, so that each text has an
    instance with any weights, and rounding does not matter. Doubles stay, because the official model drops them only
    with a CUDA kernel.
    """
    best = [np.sort(scores)[: -_INSTANCES - 2 : -1] for scores in reference.scores(TEXTS)]
    weakest = min(best, key=lambda scores: float(scores[0]))
    place = int(np.argmax(weakest[:-1] - weakest[1:]))
    least = float(weakest[place : place + 2].mean())
    rules = VideoRules(
        score_threshold_detection=least,
        new_det_thresh=least,
        high_conf_thresh=least,
        det_nms_thresh=0,
        assoc_iou_thresh=0.05,
        trk_assoc_iou_thresh=0.05,
        high_iou_thresh=0.05,
        hotstart_delay=4,
        hotstart_unmatch_thresh=3,
        hotstart_dup_thresh=3,
        recondition_every_nth_frame=3,
        max_num_objects=_OBJECTS,
    )
    return Answer([objects for _, objects in reference.follow(TEXTS, rules)], rules)


def verify_video_words(official: Answer, runner: str, clients: Clients, frames: Frames) -> VideoWordsRow:
    """Compare the clients of a server, or of models in this process, with the official model."""
    finder, tracker = clients
    with tracker.open(frames) as video:
        found = [segments for _, segments in track_words(finder, video, TEXTS, rules=official.rules)]
    height, width = frames[0].shape[:2]
    wrong, differences, ious, pixels, remainders = 0, [0.0], [1.0], [0], 0
    for ours, theirs in zip(found, official.frames, strict=True):
        labels = [(object_id, segment.label) for object_id, segment in ours.items()]
        if labels != [(object_id, TEXTS[known.text_index]) for object_id, known in theirs.items()]:
            wrong += 1
            continue
        unequal = np.zeros((height, width), bool)
        for object_id, segment in ours.items():
            pair = _logits(segment), theirs[object_id].logits
            differences.append(float(np.abs(np.subtract(*(np.clip(each, -32, 32) for each in pair))).max()))
            whole, official_whole = (resize_logits(each, (width, height)) > 0 for each in pair)
            ious.append(intersection_over_union(whole, official_whole))
            pixels.append(int(np.count_nonzero(whole != official_whole)))
            unequal |= whole != official_whole
        for object_id, segment in ours.items():
            remainders += int(np.count_nonzero((segment.mask != theirs[object_id].mask) & ~unequal))
    texts = {object_id: known.text_index for objects in official.frames for object_id, known in objects.items()}
    return VideoWordsRow(
        runner,
        len(found),
        len(texts),
        len(set(texts.values())),
        len(ious) - 1,
        wrong,
        float(np.max(differences)),  # unlike max(), NaN is the maximum
        min(ious),
        max(pixels),
        remainders,
    )


def _logits(segment: VideoSegment) -> FloatArray:
    assert segment.logits is not None  # noqa: S101 - for the type checker: track_words() returns them
    return segment.logits
