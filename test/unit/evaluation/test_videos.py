"""J and F against cases computed by hand, data sets of videos, and the measurement with a fake client."""

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.tracked import HEIGHT, SIDE, FakeVideo, disc

from triton_sam.errors import ConfigurationError, InputError
from triton_sam.evaluation.datasets import KnownVideo, is_video_dataset, open_videos
from triton_sam.evaluation.metrics import (
    TrackResult,
    contour,
    contour_accuracy,
    summarize_tracks,
)
from triton_sam.evaluation.video_runner import PROMPT_KINDS, VideoSettings, measure_video
from triton_sam.masks.label_map import label_map_png
from triton_sam.tracks.formats import label_map


def rectangle(top: int, left: int, height: int, width: int, shape: tuple[int, int] = (100, 100)) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[top : top + height, left : left + width] = True
    return mask


def test_contour_of_a_pixel_and_of_the_border():
    # One pixel differs from its lower right neighbour, and is the right, lower and lower right neighbour of three.
    assert np.argwhere(contour(rectangle(2, 2, 1, 1, (5, 5)))).tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert not contour(np.ones((4, 6), bool)).any()
    # A mask at the lower right corner has its contour outside only: the last row and column have no neighbours there.
    assert np.argwhere(contour(rectangle(3, 3, 2, 2, (5, 5)))).tolist() == [[2, 2], [2, 3], [2, 4], [3, 2], [4, 2]]


def test_f_of_a_mask_that_moved():
    truth = rectangle(40, 40, 20, 20)
    distance = math.ceil(0.008 * math.hypot(100, 100))
    assert distance == 2
    assert contour_accuracy(truth, truth) == 1
    assert contour_accuracy(rectangle(40, 42, 20, 20), truth) == 1
    moved = contour_accuracy(rectangle(40, 43, 20, 20), truth)
    # Both contours have 80 pixels: 21 in each of two rows, 19 more in each of two columns. Moved by 3 columns, the
    # rows stay within 2 pixels but for the last one, and the column but for its two ends and two pixels beside each.
    assert contour(truth).sum() == 80
    assert 0.45 < moved < 0.65
    assert contour_accuracy(rectangle(0, 0, 10, 10), rectangle(80, 80, 10, 10)) == 0


def test_f_counts_pixels_by_hand():
    # Vertical edges only: half planes whose contours are whole columns, 5 columns apart on 60 rows.
    left, right = rectangle(0, 0, 60, 30, (60, 80)), rectangle(0, 0, 60, 35, (60, 80))
    assert contour_accuracy(left, right, bound=5) == 1
    assert contour_accuracy(left, right, bound=4) == 0
    # A second piece that is not there in truth: precision 60/64 (a pixel has 4 contour pixels), recall 1.
    with_speck = left | rectangle(50, 70, 1, 1, (60, 80))
    precision = 60 / 64
    assert contour_accuracy(with_speck, left, bound=1) == pytest.approx(2 * precision / (precision + 1))
    assert contour_accuracy(left, with_speck, bound=1) == pytest.approx(2 * precision / (precision + 1))


def test_f_of_empty_masks():
    nothing, something = np.zeros((9, 9), bool), rectangle(3, 3, 2, 2, (9, 9))
    assert contour_accuracy(nothing, nothing) == 1
    assert contour_accuracy(nothing, something) == contour_accuracy(something, nothing) == 0
    with pytest.raises(InputError, match="cannot compare"):
        contour_accuracy(nothing, np.zeros((8, 9), bool))


def test_each_object_counts_once():
    long = TrackResult("a", 1, (1, 2, 3), (0.9, 0.9, 0.3), (0.6, 0.6, 0.0))
    short = TrackResult("b", 1, (1,), (0.1,), (1.0,))
    summary = summarize_tracks([long, short])
    assert (summary.objects, summary.frames) == (2, 4)
    assert summary.j == pytest.approx((0.7 + 0.1) / 2)
    assert summary.f == pytest.approx((0.4 + 1.0) / 2)
    assert summary.j_and_f == pytest.approx((0.4 + 0.7) / 2)
    assert summary.j_recall == pytest.approx((2 / 3 + 0) / 2)
    with pytest.raises(InputError, match="at least one"):
        summarize_tracks([])


def _davis(folder: Path, resolution: str, frames: int = 5, void: bool = False) -> None:
    for frame in range(frames):
        image = folder / "JPEGImages" / resolution / "ball" / f"{frame:05d}.jpg"
        label = folder / "Annotations" / resolution / "ball" / f"{frame:05d}.png"
        for path in (image, label):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE, HEIGHT)).save(image)
        labels = label_map({1: disc(12 + frame, 12), 2: disc(40 + frame, 30)})
        labels[0, 0] = 255 if void else 0
        label.write_bytes(label_map_png(labels))


@pytest.mark.parametrize("resolution", ["", "480p"])
def test_folder_in_the_layout_of_davis(tmp_path, resolution):
    _davis(tmp_path, resolution, void=True)
    dataset = open_videos(f"davis:{tmp_path}")
    ((name, load),) = dataset.loaders
    known = load()
    assert name == known.name == "ball"
    assert [Path(str(image)).name for image in known.images] == [f"{frame:05d}.jpg" for frame in range(5)]
    assert sorted(known.truth) == list(range(5))
    assert np.unique(known.truth[0]()).tolist() == [0, 1, 2]


def test_wrong_data_sets_are_one_clear_error(tmp_path):
    for name, options, kind, words in (
        (f"davis:{tmp_path}/none", {}, ConfigurationError, "there is no data set"),
        (f"davis:{tmp_path}", {}, InputError, "no video with annotations"),
        ("clips", {"count": 0}, ConfigurationError, "at least"),
        ("clips", {"seed": 10_000}, ConfigurationError, "training"),
    ):
        with pytest.raises(kind, match=words):
            open_videos(name, **options)
    assert is_video_dataset("clips")
    assert not is_video_dataset("my_clips")


@pytest.mark.parametrize("prompt", PROMPT_KINDS)
def test_perfect_tracker_scores_one(tmp_path, prompt):
    _davis(tmp_path, "")
    known = open_videos(f"davis:{tmp_path}").loaders[0][1]()
    video = FakeVideo(5)
    results = measure_video(lambda _images: contextlib.nullcontext(video), known, VideoSettings(prompt))
    expected = pytest.approx((1, 1, 1), abs=0.12 if prompt == "box" else 1e-9)  # the middle of a box of pixels
    assert [(each.object_id, each.frames, each.j, each.f) for each in results] == [
        (number, (1, 2, 3), expected, pytest.approx((1, 1, 1))) for number in (1, 2)
    ]


def test_worse_tracker_scores_less_and_later_objects_start_later():
    truth = {
        frame: (lambda number=frame: label_map({1: disc(12 + number, 12)} | ({2: disc(40, 30)} if number > 1 else {})))
        for frame in range(5)
    }
    known = KnownVideo("late", [np.zeros((HEIGHT, SIDE, 3), np.uint8)] * 5, truth)
    video = FakeVideo(5, shift=4)
    results = measure_video(lambda _images: contextlib.nullcontext(video), known, VideoSettings("click"))
    assert [(each.object_id, each.frames) for each in results] == [(1, (1, 2, 3)), (2, (3,))]
    assert all(0.3 < j < 0.9 for each in results for j in each.j)
    assert {number: frame for number, (frame, _, _) in video.prompts.items()} == {1: 0, 2: 2}


def test_videos_without_objects_or_frames_are_errors():
    image = np.zeros((HEIGHT, SIDE, 3), np.uint8)
    for labels, words in ((image[..., 0], "no objects"), (label_map({1: disc(9, 9)}), "no frame to measure")):
        known = KnownVideo("video", [image] * 2, {0: lambda labels=labels: labels})
        with pytest.raises(InputError, match=words):
            measure_video(lambda _: contextlib.nullcontext(FakeVideo(2)), known, VideoSettings())
    with pytest.raises(ConfigurationError, match="click"):
        VideoSettings("word")
