"""The data sets of `triton-sam evaluate`, and J and F of videos against cases computed by hand."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.commands import call
from support.tracked import HEIGHT, SIDE, DiscServer, disc
from support.video_server import open_video

from triton_sam.errors import ConfigurationError, ImageError, InputError

pytest.importorskip("scipy", reason="needs the evaluate extra")
pytest.importorskip("skimage", reason="needs the evaluate extra")
from triton_sam.evaluation.clicks import tight_box
from triton_sam.evaluation.datasets import (
    KnownVideo,
    coins,
    is_video_dataset,
    open_dataset,
    open_folder,
    open_videos,
    read_labels,
)
from triton_sam.evaluation.metrics import (
    TrackResult,
    contour,
    contour_accuracy,
    summarize_tracks,
)
from triton_sam.evaluation.video_runner import VideoSettings, measure_video
from triton_sam.masks.label_map import label_map_png
from triton_sam.tracks.formats import label_map

LABELS = np.zeros((20, 30), np.uint8)
LABELS[3:10, 2:9] = 4
LABELS[5:16, 15:26] = 9


def test_the_coins_are_24_round_objects():
    sample = coins()
    assert sample.image.size == (384, 303)
    areas = np.bincount(sample.labels.ravel())[1:]
    assert len(areas) == 24
    assert areas.min() == 1077
    for number, area in enumerate(areas, start=1):
        x1, y1, x2, y2 = tight_box(sample.labels == number)
        assert area / ((x2 - x1) * (y2 - y1)) == pytest.approx(np.pi / 4, abs=0.07)
        assert min(x1, y1, 384 - x2, 303 - y2) > 0


def test_synthetic_scenes_are_held_out():
    pytest.importorskip("cv2")
    scenes = pytest.importorskip("triton_sam.scenes.scenes")
    first, second = open_dataset("synthetic", 2)
    assert first.name == f"scene {scenes.HELD_OUT_SEED}"
    assert first.labels.shape == (first.image.height, first.image.width)
    assert first.labels.max() > 0
    assert next(iter(open_dataset("synthetic", 1, seed=1))).name not in (first.name, second.name)
    assert len(open_dataset("synthetic")) == 50


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere",), "there is no data set nowhere"),
        (("coins", 0), "count at least 1"),
        (("synthetic", 20_000), "at most"),
    ],
)
def test_an_unknown_data_set_and_a_wrong_count_are_refused(arguments, text):
    with pytest.raises(ConfigurationError, match=text):
        open_dataset(*arguments)


@pytest.fixture
def folder(tmp_path):
    """A folder with images and label masks in both layouts, and with files that have no partner."""
    (tmp_path / "labels").mkdir()
    image = Image.new("RGB", (30, 20), (40, 90, 40))
    for name in ("a.jpg", "b.tif", "c.png", "alone.png"):
        image.save(tmp_path / name)
    Image.fromarray(LABELS).save(tmp_path / "a_labels.png")
    Image.fromarray(LABELS.astype(np.uint16) * 1000).save(tmp_path / "b_labels.tif")
    Image.fromarray(LABELS.astype(np.int32)).save(tmp_path / "labels" / "c.tif")
    Image.fromarray(LABELS).save(tmp_path / "orphan_labels.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_a_folder_is_read_in_both_layouts(folder):
    data = open_folder(folder)
    assert [sample.name for sample in data] == ["a.jpg", "b.tif", "c.png"]
    assert [np.unique(sample.labels).tolist() for sample in data] == [[0, 4, 9], [0, 4000, 9000], [0, 4, 9]]
    assert data.unused == ("alone.png", "orphan_labels.png")
    assert len(open_dataset(str(folder), 2)) == 2


def test_the_orientation_of_a_photograph_is_followed(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 30)).save(folder / "a.jpg", exif=exif)
    sample = next(iter(open_folder(folder)))
    assert (sample.image.size, sample.labels.shape) == ((30, 20), (20, 30))


def test_photographs_are_not_read_before_the_measurement(folder, monkeypatch):
    read = Path.read_bytes

    def read_png(path: Path) -> bytes:
        assert path.suffix == ".png"  # its orientation may follow its pixels
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_png)
    assert len(open_folder(folder)) == 3


@pytest.mark.parametrize("second", ["a.tif", "a_labels.tif", "labels/a.png"])
def test_folders_without_pairs_and_two_files_for_one_image_are_refused(tmp_path, second):
    with pytest.raises(InputError, match=r"contains no image with a label mask: expected NAME\.jpg"):
        open_folder(tmp_path)
    (tmp_path / "labels").mkdir()
    for name in ("a.png", "a_labels.png", second):
        Image.new("L", (30, 20), 1).save(tmp_path / name)
    with pytest.raises(InputError, match=rf"{second.replace('.', '[.]')}.* both belong to 'a'"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize("name", ["a.jpg", "a_labels.png"])
def test_a_label_mask_of_another_size_and_a_damaged_file_are_refused(folder, name):
    Image.new("L", (31, 20)).save(folder / "b_labels.tif")
    with pytest.raises(InputError, match=r"b_labels.tif has 31x20 pixels, but b.tif has 30x20"):
        open_folder(folder)
    (folder / name).write_bytes(b"no image")
    with pytest.raises(ImageError, match=f"{name} is not an image"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("image", "text"),
    [(Image.new("RGB", (3, 3)), "colour image"), (Image.fromarray(np.zeros((3, 3), np.float32)), "floating-point")],
)
def test_label_masks_in_colour_or_with_floating_point_values_are_refused(tmp_path, image, text):
    image.save(tmp_path / "labels.tif")
    with pytest.raises(ImageError, match=text):
        read_labels(tmp_path / "labels.tif")


def test_label_masks_of_one_bit_or_with_a_palette_are_read(tmp_path):
    expected = LABELS > 0
    Image.fromarray(expected).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "bits.png"), expected.astype(np.uint8))
    palette = Image.fromarray(LABELS).convert("P")
    palette.putdata(LABELS.ravel().tolist())
    palette.save(tmp_path / "palette.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "palette.png"), LABELS)


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


def test_f_counts_pixels_by_hand():
    # Vertical edges only: half planes whose contours are whole columns. At this size, 1 pixel is allowed.
    left, near, far = (rectangle(0, 0, 60, width, (60, 80)) for width in (30, 31, 32))
    assert (contour_accuracy(left, near), contour_accuracy(left, far)) == (1, 0)
    # A second piece that is not there in truth: precision 60/64 (a pixel has 4 contour pixels), recall 1.
    with_speck = left | rectangle(50, 70, 1, 1, (60, 80))
    precision = 60 / 64
    assert contour_accuracy(with_speck, left) == pytest.approx(2 * precision / (precision + 1))
    assert contour_accuracy(left, with_speck) == pytest.approx(2 * precision / (precision + 1))


def test_f_allows_two_pixels_in_an_image_of_a_hundred():
    truth = rectangle(40, 40, 20, 20)
    assert contour_accuracy(rectangle(40, 42, 20, 20), truth) == 1
    assert 0.45 < contour_accuracy(rectangle(40, 43, 20, 20), truth) < 0.65


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
        Image.new("RGB", (SIDE, HEIGHT), (20 * frame, 60, 90)).save(image)
        labels = label_map({1: disc(12 + frame, 12), 2: disc(40 + frame, 30)})
        labels[0, 0] = 255 if void else 0
        label.write_bytes(label_map_png(labels))


@pytest.mark.parametrize("resolution", ["", "480p"])
def test_folder_in_the_layout_of_davis(tmp_path, resolution):
    _davis(tmp_path, resolution, void=True)
    for folder in ("JPEGImages", "Annotations"):
        for path in (tmp_path / folder / resolution / "ball").iterdir():
            path.with_name(f"._{path.name}").touch()  # as macOS writes them beside files
    dataset = open_videos(f"davis:{tmp_path}")
    ((name, load),) = dataset.loaders
    known = load()
    assert name == known.name == "ball"
    assert [Path(str(image)).name for image in known.images] == [f"{frame:05d}.jpg" for frame in range(5)]
    assert sorted(known.truth) == list(range(5))
    assert np.unique(known.truth[0]()).tolist() == [0, 1, 2]


def test_one_object_may_be_255_and_an_unusable_video_costs_itself_alone(tmp_path, capsys):
    _davis(tmp_path, "")
    shutil.copytree(tmp_path / "JPEGImages/ball", tmp_path / "JPEGImages/empty")
    shutil.copytree(tmp_path / "Annotations/ball", tmp_path / "Annotations/empty")
    for name, value in (("ball", 255), ("empty", 0)):
        for path in (tmp_path / "Annotations" / name).iterdir():
            with Image.open(path) as image:
                labels = np.where(np.asarray(image) == 1, value, 0).astype(np.uint8)
            Image.fromarray(labels).save(path)
    with DiscServer() as server:
        assert call(f"evaluate videos --url {server.url} --prompt click --json --dataset davis:{tmp_path}") == 0
        printed = capsys.readouterr()
        shutil.rmtree(tmp_path / "Annotations/ball")
        assert call(f"evaluate videos --url {server.url} --dataset davis:{tmp_path}") == 1
    (rows,) = (each["objects"] for each in json.loads(printed.out)["datasets"])
    assert [(row["video"], row["object_id"]) for row in rows] == [("ball", 255)]
    assert "empty is left out: empty contains no objects" in printed.err
    assert "error: empty contains no objects" in capsys.readouterr().err


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


@pytest.mark.parametrize("prompt", ["mask", "box", "click"])
def test_perfect_tracker_scores_one(tmp_path, prompt):
    _davis(tmp_path, "")
    known = open_videos(f"davis:{tmp_path}").loaders[0][1]()
    with DiscServer() as server:
        results = measure_video(functools.partial(open_video, server), known, VideoSettings(prompt))
    expected = pytest.approx((1, 1, 1), abs=1e-9 if prompt == "click" else 0.12)  # others have a middle of pixels
    assert [(each.object_id, each.frames, each.j, each.f) for each in results] == [
        (number, (1, 2, 3), expected, pytest.approx((1, 1, 1))) for number in (1, 2)
    ]


def test_worse_tracker_scores_less_and_later_objects_start_later():
    truth = {
        frame: (lambda number=frame: label_map({1: disc(12 + number, 12)} | ({2: disc(40, 30)} if number > 1 else {})))
        for frame in range(5)
    }
    images = [np.full((HEIGHT, SIDE, 3), 20 * frame, np.uint8) for frame in range(5)]
    tracked = {}
    with DiscServer(shift=4) as server:
        results = measure_video(
            functools.partial(open_video, server),
            KnownVideo("late", images, truth),
            VideoSettings("click"),
            lambda frame, masks: tracked.update({frame: sorted(masks)}),
        )
    assert tracked == {0: [1], 1: [1], 2: [1, 2], 3: [1, 2], 4: [1, 2]}
    assert [(each.object_id, each.frames) for each in results] == [(1, (1, 2, 3)), (2, (3,))]
    assert all(0.3 < j < 0.9 for each in results for j in each.j)
    assert server.prompted() == {1: 0, 2: 2}


def test_videos_without_objects_or_frames_are_errors():
    image = np.zeros((HEIGHT, SIDE, 3), np.uint8)
    for labels, words in ((image[..., 0], "no objects"), (label_map({1: disc(9, 9)}), "no frame to measure")):
        known = KnownVideo("video", [image] * 2, {0: lambda labels=labels: labels})
        with pytest.raises(InputError, match=words), DiscServer() as server:
            measure_video(functools.partial(open_video, server), known, VideoSettings())
