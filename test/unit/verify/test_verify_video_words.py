"""`verify video-words` without a model: rules, rows and verdicts."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from triton_sam.export.reference import FollowedObject
from triton_sam.verify import format_table, video_words

SIDE, LIMITS = 96, video_words.limits(12)
FRAMES = [np.zeros((SIDE, SIDE, 3), np.uint8)] * 2


def disc(x: float) -> np.ndarray:
    """Return logits (48,48)."""
    rows, columns = np.mgrid[:48, :48]
    return (12.3 - np.hypot(columns - x, rows - 24)).astype(np.float32)


def followed(text: int, logits: np.ndarray, without: np.ndarray | None = None) -> FollowedObject:
    """Return an object whose mask lacks the pixels of another one."""
    mask, other = (
        np.zeros((SIDE, SIDE), bool) if each is None else video_words.resize_logits(each, (SIDE, SIDE)) > 0
        for each in (logits, without)
    )
    return FollowedObject(text, logits, mask & ~other)


def objects() -> list[dict[int, FollowedObject]]:
    """Return two frames; in the second one, two objects of a text overlap."""
    first = disc(15)
    return [
        {1: followed(0, first), 2: followed(1, disc(30))},
        {1: followed(0, first), 2: followed(1, disc(31)), 3: followed(0, disc(18), without=first)},
    ]


class Reference:
    def scores(self, texts: Any) -> list[np.ndarray]:
        return [np.array([0.1, 0.4, 0.7, 0.5], np.float32), np.array([0.05, 0.9, 0.8, 0.75], np.float32)]

    def follow(self, texts: Any, rules: Any) -> Any:
        return enumerate(objects())


def row(monkeypatch: pytest.MonkeyPatch, frames: list[dict[int, FollowedObject]]) -> video_words.VideoWordsRow:
    """Return the row of a runner that finds the given objects."""
    official = video_words.official_answer(Reference())
    segments = [
        {
            object_id: SimpleNamespace(logits=each.logits, mask=each.mask, label=video_words.TEXTS[each.text_index])
            for object_id, each in found.items()
        }
        for found in frames
    ]
    monkeypatch.setattr(video_words, "track_words", lambda *_, rules: enumerate(segments))
    tracker: Any = SimpleNamespace(open=lambda _: contextlib.nullcontext())
    return video_words.verify_video_words(official, "inside", (tracker, tracker), FRAMES)


def test_equal_objects_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(monkeypatch, objects())
    assert (found.frames, found.objects, found.texts, found.masks) == (2, 3, 2, 5)
    assert (found.wrong, found.logit_diff, found.iou, found.pixels, found.remainders) == (0, 0, 1, 0, 0)
    assert found.passes(LIMITS)
    assert "ok" in format_table([found], LIMITS)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {3: followed(0, disc(18))},
        {3: followed(1, disc(18), without=disc(15))},
        {2: followed(1, disc(31.5))},
        {2: followed(1, np.where(disc(31) < -20, np.float32(np.nan), disc(31)))},
    ],
    ids=["missing", "overlap", "text", "mask", "no number"],
)
def test_each_kind_of_difference_fails(monkeypatch: pytest.MonkeyPatch, changed: dict[int, FollowedObject]) -> None:
    first, second = objects()
    if not changed:
        del second[3]
    assert not row(monkeypatch, [first, {**second, **changed}]).passes(LIMITS)


def test_a_remainder_may_differ_where_a_whole_mask_does(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = objects()
    logits = second[1].logits.copy()
    logits[24, 27] *= -1  # inside the disc, next to its right edge
    changed = {1: followed(0, logits), 3: followed(0, disc(18), without=logits)}
    found = row(monkeypatch, [first, {**second, **changed}])
    assert found.pixels > 1
    assert found.remainders == 0


def test_no_object_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reference, "follow", lambda *_: enumerate([{}, {}]))
    assert not row(monkeypatch, [{}, {}]).passes(LIMITS)


def test_each_text_has_an_instance_above_the_threshold_and_none_near_it() -> None:
    least = video_words.official_answer(Reference()).rules.score_threshold_detection
    scores = Reference().scores(video_words.TEXTS)
    assert [int((each > least).sum()) for each in scores] == [3, 3]
    assert min(np.abs(each - least).min() for each in scores) > 0.14
