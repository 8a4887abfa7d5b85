"""The files of a tracked video: masks that are written and read again are the same, and wrong prompts are errors."""

import io
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks
from support.tracked import HEIGHT, SIDE, disc

from triton_sam.errors import InputError, PromptError
from triton_sam.masks.label_map import davis_palette
from triton_sam.masks.segment import VideoSegment
from triton_sam.tracks import formats
from triton_sam.tracks.formats import TRACK_FORMATS, TrackedVideo, coco_video, label_map, write_gif, write_mp4
from triton_sam.tracks.prompts import ObjectPrompt, merge, read_mask, read_prompts
from triton_sam.tracks.records import MaskRecord, append_records, read_records

NOTHING = VideoSegment(np.zeros((HEIGHT, SIDE), bool), 0.1, None, object_score=-3.0)


def test_palette_has_the_colours_of_davis():
    palette = davis_palette()
    assert len(palette) == 768
    assert palette[:15] == bytes([0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0, 0, 0, 128])
    assert tuple(palette[3 * 8 : 3 * 9]) == (64, 0, 0)
    assert tuple(palette[3 * 22 : 3 * 23]) == (0, 192, 128)
    assert tuple(palette[3 * 255 :]) == (224, 224, 192)


def test_png_keeps_ids_up_to_255():
    masks = {1: disc(10, 10), 2: disc(30, 30), 255: disc(50, 15)}
    image = Image.open(io.BytesIO(TRACK_FORMATS["png"].write_image(masks)))
    assert image.mode == "P"
    assert bytes(image.getpalette()) == davis_palette()
    pixels = np.asarray(image)
    for object_id, found in masks.items():
        assert np.array_equal(pixels == object_id, found.mask)


@pytest.mark.parametrize("object_id", [0, 256, -1])
def test_png_refuses_other_ids(object_id):
    with pytest.raises(InputError, match=r"1\.\.255"):
        label_map({object_id: disc(10, 10)})


def test_pixel_of_several_masks_goes_to_the_highest_logit():
    left, right = disc(28, 20, radius=12), disc(36, 20, radius=12)
    labels = label_map({1: left, 2: right})
    assert (left.mask & right.mask).sum() > 50
    assert (labels[:, :32][left.mask[:, :32]] == 1).all()
    assert (labels[:, 33:][right.mask[:, 33:]] == 2).all()
    assert (labels[20, 32]) == 2  # equal logits: the later object
    assert np.array_equal(labels > 0, left.mask | right.mask)


def test_without_logits_the_later_object_wins():
    one, two = (replace(disc(x, 20, radius=12), logits=None) for x in (28, 36))
    assert np.array_equal(label_map({1: one, 2: two}) == 2, two.mask)
    mixed = label_map({1: disc(28, 20, radius=12), 2: two})
    assert np.array_equal(mixed == 1, one.mask)


def test_records_round_trip(tmp_path):
    path = tmp_path / "masks.jsonl"
    written = [
        tuple(MaskRecord.of(frame, object_id, found) for object_id, found in ((1, disc(10 + frame, 9)), (7, NOTHING)))
        for frame in range(3)
    ]
    for group in written:
        append_records(path, group)
    assert list(read_records(path)) == [record for group in written for record in group]
    first = json.loads(path.read_text().splitlines()[0])
    assert list(first) == ["frame", "object_id", "rle", "score", "object_score", "box", "area"]
    assert np.array_equal(coco_masks.decode(first["rle"]).astype(bool), disc(10, 9).mask)
    assert first["area"] == disc(10, 9).mask.sum()
    assert written[0][1].box is None


def test_a_damaged_file_of_records_is_an_error(tmp_path):
    path = tmp_path / "masks.jsonl"
    record = MaskRecord.of(0, 1, disc(9, 9)).to_line()
    for line in (b"{}", b"\xff", b'{"frame":0}', b"[" * 99_999, record.replace(":0,", ":1e999,", 1).encode().strip()):
        path.write_bytes(record.encode() + line + b"\n")
        with pytest.raises(InputError, match=f"^{path}, line 2: this is not the record of a mask: ") as caught:
            list(read_records(path))
        assert str(caught.value).isprintable()


def test_coco_video_decodes_with_pycocotools():
    masks = {(3, 1): disc(10, 9), (3, 2): NOTHING, (5, 1): disc(20, 9), (5, 2): disc(40, 30)}
    records = {frame: [MaskRecord.of(frame, number, masks[frame, number]) for number in (1, 2)] for frame in (5, 3)}
    document = json.loads(json.dumps(coco_video(TrackedVideo("clip", (SIDE, HEIGHT), Fraction(5), records, iter))))
    (video,) = document["videos"]
    assert (video["width"], video["height"], video["length"]) == (SIDE, HEIGHT, 2)
    assert video["file_names"] == ["clip/00003.jpg", "clip/00005.jpg"]
    assert [annotation["id"] for annotation in document["annotations"]] == [1, 2]
    for annotation in document["annotations"]:
        assert annotation["video_id"] == video["id"]
        assert annotation["category_id"] in [category["id"] for category in document["categories"]]
        for index, frame in enumerate((3, 5)):
            found = masks[frame, annotation["id"]]
            rle = annotation["segmentations"][index]
            if not found.mask.any():
                assert rle is annotation["bboxes"][index] is annotation["areas"][index] is None
                continue
            assert np.array_equal(coco_masks.decode(rle).astype(bool), found.mask)
            assert annotation["areas"][index] == int(coco_masks.area(rle))
            assert annotation["bboxes"][index] == coco_masks.toBbox(rle).tolist()


@pytest.mark.parametrize("encoders", [("libx264", "mpeg4"), ("there is none", "mpeg4")])
@pytest.mark.parametrize("size", [(64, 48), (63, 47)])
def test_mp4_has_the_frames_the_rate_and_even_sides(tmp_path, monkeypatch, encoders, size):
    av = pytest.importorskip("av")
    monkeypatch.setattr(formats, "_CODECS", encoders)
    colors = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
    rate = Fraction(30000, 1001)
    path = tmp_path / "overlay.mp4"
    write_mp4(path, (Image.new("RGB", size, color) for color in colors), rate)
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264" if "libx264" in encoders else "mpeg4", rate)
        assert stream.sample_aspect_ratio in (1, None)
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 3
    for frame, color in zip(frames, colors, strict=True):
        assert np.abs(frame.reshape(-1, 3).mean(axis=0) - color).max() < 16
        for edge in (frame[0], frame[-1], frame[:, 0], frame[:, -1]):  # odd sides get their last pixels twice
            assert np.abs(edge.mean(axis=0) - color).max() < 32


def test_mp4_of_nothing_or_of_two_sizes_leaves_no_file(tmp_path):
    pytest.importorskip("av")
    path = tmp_path / "overlay.mp4"
    with pytest.raises(InputError, match="no image"):
        write_mp4(path, [], Fraction(25))
    with pytest.raises(InputError, match="one size"):
        write_mp4(path, [Image.new("RGB", (64, 48)), Image.new("RGB", (32, 48))], Fraction(25))
    assert list(tmp_path.iterdir()) == []


def test_gif_has_all_frames(tmp_path):
    path = tmp_path / "overlay.gif"
    images = [Image.new("RGB", (32, 32), (60 * number, 0, 0)) for number in range(4)]
    write_gif(path, images, Fraction(10))
    with Image.open(path) as image:
        assert image.n_frames == 4
        assert (image.info["duration"], image.info["loop"]) == (100, 0)
    with pytest.raises(InputError, match="no image"):
        write_gif(path, [], Fraction(10))


def test_overlay_draws_the_masks_in_their_frames(tmp_path):
    av = pytest.importorskip("av")
    records = {frame: (MaskRecord.of(frame, 1, disc(10 + 20 * frame, 20)),) for frame in range(2)}
    grey = [Image.new("RGB", (SIDE, HEIGHT), (90, 90, 90)) for _ in records]
    ratio = Fraction(64, 45)
    video = TrackedVideo("clip", (SIDE, HEIGHT), Fraction(5), records, lambda frames: iter(grey[: len(frames)]), ratio)
    TRACK_FORMATS["overlay"].write_video(tmp_path / "overlay.mp4", video)
    with av.open(str(tmp_path / "overlay.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == ratio  # players stretch it as they do the video
        frames = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]
    for frame, pixels in enumerate(frames):
        inside, outside = pixels[20, 10 + 20 * frame], pixels[20, 10 + 20 * (1 - frame)]
        assert inside[2] - inside[0] > 60  # the first colour is a blue
        assert np.abs(outside - 90).max() < 20


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('{"frame": 0, "points": [[1, 1]]}', "entry 0 is not a prompt: it has no object_id"),
        ('{"object_id": 1, "frame": 0, "points": [1, 1]}', "entry 0 is not a prompt: object_id, frame and labels"),
        ('{"object_id": true, "frame": 0, "points": [[1, 1]]}', "entry 0 is not a prompt: object_id, frame and labels"),
        ('{"object_id": 1, "frame": 0.5, "points": [[1, 1]]}', "entry 0 is not a prompt: object_id, frame and labels"),
    ],
)
def test_a_wrong_entry_is_named_in_plain_words(tmp_path, entry, message):
    path = tmp_path / "prompts.json"
    path.write_text(f"[{entry}]")
    with pytest.raises(PromptError, match=message):
        read_prompts(path)


@pytest.mark.parametrize("written", ["[]", "{}", "[1]"])
def test_a_file_without_prompts_is_an_error(tmp_path, written):
    path = tmp_path / "prompts.json"
    path.write_text(written)
    with pytest.raises(PromptError, match="must hold a list such as"):
        read_prompts(path)


def test_points_without_labels_are_foreground_and_masks_lie_beside_their_file(tmp_path):
    (tmp_path / "m\u00e4sk.png").touch()
    path = tmp_path / "prompts.json"
    entries = [{"points": [[1, 2]]}, {"mask": "ma\u0308sk.png"}, {"mask": "none.png"}]
    path.write_text(json.dumps([{"object_id": 1, "frame": 0, **entry} for entry in entries]))
    points, mask, missing = read_prompts(path)
    assert (points.points, points.labels) == (((1.0, 2.0),), (1,))
    assert (mask.mask, missing.mask) == (tmp_path / "m\u00e4sk.png", tmp_path / "none.png")


def test_points_and_boxes_of_an_object_are_merged_and_a_mask_is_alone():
    point, box, mask = (
        ObjectPrompt(1, 0, points=((1.0, 2.0),), labels=(0,)),
        ObjectPrompt(1, 0, box=(1.0, 2.0, 3.0, 4.0)),
        ObjectPrompt(1, 0, mask=Path("mask.png")),
    )
    assert merge([point, box, replace(mask, frame=1), point]) == [
        ObjectPrompt(1, 0, point.points * 2, (0, 0), box.box),
        replace(mask, frame=1),
    ]
    for pair in ((box, box), (mask, mask), (mask, point), (box, mask)):
        with pytest.raises(PromptError, match="object 1, frame 0: give"):
            merge(pair)


@pytest.mark.parametrize(
    ("mode", "value"),
    [
        ("L", 1),
        ("P", 1),
        ("1", 1),
        ("I", 1),
        ("I;16", 256),
        ("F", 0.5),
        ("LA", (1, 255)),
        ("RGB", (0, 0, 1)),
        ("RGBA", (0, 1, 0, 255)),
    ],
)
def test_a_mask_is_where_any_channel_but_the_opacity_is_not_0(tmp_path, mode, value):
    black = (*(0,) * (len(mode) - 1), 255) if mode.endswith("A") else 0
    image = Image.new(mode, (3, 2), black)
    image.putpixel((1, 0), value)
    image.save(tmp_path / "mask.tif")
    assert read_mask(tmp_path / "mask.tif").tolist() == [[False, True, False], [False, False, False]]
