"""Words in videos beside transformers' Sam3VideoModel: the same objects, and the same masks in each frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.export
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sam2")

from support.official_words import LOW, SIDE, Official, SceneFinder, client_of, official_model  # noqa: E402

from triton_sam.client.video.word_tracking import track_words  # noqa: E402
from triton_sam.concepts.video_rules import VideoRules  # noqa: E402

FRAMES = 12
TEXTS = ("bus", "traffic light")
RULES = VideoRules(
    hotstart_delay=4,
    hotstart_unmatch_thresh=4,
    hotstart_dup_thresh=2,
    assoc_iou_thresh=0.05,
    trk_assoc_iou_thresh=0.05,
    recondition_every_nth_frame=3,
    high_iou_thresh=0.05,
    high_conf_thresh=0.6,
)


def clip() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    ground = rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    return [np.roll(ground, 5 * frame, axis=1) for frame in range(FRAMES)]


def scene() -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Two buses, one of which comes later, a light, and in some frames a false detection."""
    rows, columns = np.mgrid[:LOW, :LOW]

    def disc(x: float, y: float, radius: float) -> np.ndarray:
        return (radius - np.hypot(columns - x, rows - y)).astype(np.float32)

    frames = []
    for frame in range(FRAMES):
        buses = [disc(20 + 2 * frame, 30, 14), *([disc(70, 60, 18)] if frame >= 3 else [])]
        lights = [disc(45, 15 + frame, 9)] if frame % 5 != 4 else []
        lights += [disc(80, 80, 6)] if frame == 2 else []
        bus_scores = np.linspace(0.95, 0.8, len(buses), dtype=np.float32)
        frames.append(
            {
                "bus": (np.array(buses, np.float32).reshape(-1, LOW, LOW), bus_scores),
                "traffic light": (
                    np.array(lights, np.float32).reshape(-1, LOW, LOW),
                    np.full(len(lights), 0.9, np.float32),
                ),
            }
        )
    return frames


def iou(one: np.ndarray, other: np.ndarray) -> float:
    union = (one | other).sum()
    return float((one & other).sum() / union) if union else 1.0


@pytest.mark.slow
def test_two_texts_over_12_frames() -> None:
    model: Any = official_model(RULES)
    official = Official(model, clip(), TEXTS, scene())
    expected = dict(official.run())
    finder: Any = SceneFinder(scene())
    with client_of(model) as client, client.open(clip()) as video:
        found = dict(track_words(finder, video, TEXTS, rules=RULES))
    assert list(found) == list(expected) == list(range(FRAMES))
    for frame, masks in expected.items():
        segments = found[frame]
        assert list(segments) == list(masks), frame
        for object_id, mask in masks.items():
            ours = segments[object_id].mask
            assert iou(ours, mask) > 0.9999 or (ours != mask).sum() <= 1, (frame, object_id)
    areas = [mask.mean() for masks in expected.values() for mask in masks.values()]
    assert len(areas) > 3 * FRAMES
    assert 0.05 < np.mean(areas) < 0.9
    assert any(len(frames) > 1 for frames in official.conditioned.values())  # an object was confirmed
