"""The prompts of a run: readers of each kind of file, prompts that cannot be used, files under generated changes."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.annotated import SIZE, coco, write_images
from support.fuzzing import junk, spoil
from support.rectangles import mask

from triton_sam.annotate.job import together
from triton_sam.annotate.prompts import mask_logits
from triton_sam.annotate.reading import read_boxes, read_clicks, read_masks
from triton_sam.annotate.sources import Source, read_source
from triton_sam.errors import InputError
from triton_sam.families import get_family
from triton_sam.inputs.prompts import check_prompts
from triton_sam.masks import mask_to_rle

FAMILY = get_family("sam2")


@pytest.fixture
def source(tmp_path):
    write_images(tmp_path / "images", 2)
    return read_source(str(tmp_path / "images"))


def written(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def usable(prompts, source: Source, number: int = 0):
    kept, skipped = prompts.of(source.items[number], SIZE)
    return kept, [(each.what, each.why) for each in skipped]


def test_boxes_that_lie_are_skipped_with_a_reason(source, tmp_path):
    boxes = [[0, 0, 5, 5], [0, 0, 5, 5], [50, 0, 5, 5], [1, 1, 0, 5], [float("nan"), 0, 5, 5], [-9, -9, 99, 99]]
    document = coco(["000.png", "gone.png"], [(1, box) for box in boxes])
    document["annotations"] += [
        {"id": 80, "image_id": 1, "category_id": 9, "bbox": [0, 0, 5, 5]},
        {"id": 81, "image_id": 1, "category_id": 7, "bbox": "wide"},
        {"id": 82, "image_id": 1, "category_id": 7},
        {"id": 83, "image_id": 2, "category_id": 7, "bbox": [0, 0, 5, 5]},
        {"id": 84, "image_id": 99, "category_id": 7, "bbox": [0, 0, 5, 5]},
        {"id": 85, "image_id": 1.0, "category_id": 7.0, "bbox": [0, 0, 6, 5]},
        {"id": 86, "image_id": 1, "category_id": 7.7, "bbox": [0, 0, 7, 5]},
        {"id": 87, "image_id": 1.7, "category_id": 7, "bbox": [0, 0, 8, 5]},
        "rubbish",
    ]
    prompts = read_boxes(written(tmp_path / "a.json", document), source)
    kept, skipped = usable(prompts, source)
    assert [each.what for each in kept] == ["annotation 1", "annotation 6", "annotation 85"]
    assert dict(skipped) == {
        "annotation 2": "an equal prompt of the same category precedes it",
        "annotation 3": "the box lies outside the image of 40 x 30 pixels",
        "annotation 4": "the box has no area",
        "annotation 5": "a number of the box is not finite",
        "annotation 80": "there is no category 9",
        "annotation 81": "it has no usable bbox, or its category_id is not a whole number",
        "annotation 82": "it has no usable bbox, or its category_id is not a whole number",
        "annotation 86": "it has no usable bbox, or its category_id is not a whole number",
    }
    assert [(each.image, each.what) for each in prompts.strays] == [
        ("gone.png", "annotation 83"),
        ("", "annotation 84"),
        ("", "annotation 87"),
        ("", "annotation 15"),
    ]


def test_annotations_of_an_id_with_several_images_belong_to_none(source, tmp_path):
    """Data sets that were joined without new ids. The annotations of all went to the last image."""
    document = coco(["000.png", "001.png"], [(1, [0, 0, 5, 5]), (2, [1, 1, 5, 5])])
    document["images"] += [{**document["images"][0], "file_name": "001.png"}, document["images"][1]]
    prompts = read_boxes(written(tmp_path / "a.json", document), source)
    assert usable(prompts, source, 0)[0] == []
    assert [each.what for each in usable(prompts, source, 1)[0]] == ["annotation 2"]
    assert [(each.what, each.why) for each in prompts.strays] == [("annotation 1", "several images have its image_id")]


def test_prompts_for_an_image_of_another_size_are_skipped(source, tmp_path):
    document = coco(["000.png"], [(1, [0, 0, 5, 5])])
    document["images"][0] |= {"width": 80, "height": 60}
    kept, skipped = usable(read_boxes(written(tmp_path / "a.json", document), source), source)
    assert (kept, skipped) == ([], [("annotation 1", "its file says 80 x 60 pixels, and the image has 40 x 30")])


def test_yolo_boxes_are_fractions_of_the_image(source, tmp_path):
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "000.txt").write_text("1 0.5 0.5 0.5 0.2\n0 0.5 0.5 0.5 0.2 0.97\n\n5 0.5 0.5 0.5 0.2\n0 0.5 0.5\nx\n")
    prompts = read_boxes(labels, source, ["dog", "cat"])
    kept, skipped = usable(prompts, source)
    assert [(each.box, each.category) for each in kept] == [((10, 12, 30, 18), 1), ((10, 12, 30, 18), 0)]
    assert [what for what, _ in skipped] == ["line 5", "line 6", "line 4"]
    assert usable(prompts, source, 1) == ([], [("boxes", "there is no file 001.txt")])
    with pytest.raises(InputError, match="--class-names"):
        read_boxes(labels, source)


def test_yolo_files_that_cannot_be_read_say_why(source, tmp_path):
    (tmp_path / "000.txt").write_bytes(b"0 0.5 0.5 0.5 0.2\n\xfcber")
    (tmp_path / "001.txt").mkdir()
    prompts = read_boxes(tmp_path, source, ["dog"])
    _, [(what, why)] = usable(prompts, source)
    assert what == "boxes"
    assert "000.txt cannot be read: line 2 is not text in UTF-8 (b'\\xfcber'): save the file as UTF-8" in why
    assert usable(prompts, source, 1) == ([], [("boxes", "there is no file 001.txt")])


def test_points_of_a_csv_file_are_joined_by_object(source, tmp_path):
    rows = ["000.png,5,6,1,a,", "000.png,7,8,0,a,cat", "000.png,9,9,1,,dog", "gone.png,1,1,1,,cat"]
    text = "\n".join(["image,x,y,label,object,category", *rows])
    prompts = read_clicks(written(tmp_path / "a.csv", text), source)
    kept, skipped = usable(prompts, source)
    assert prompts.categories == {1: "cat", 2: "dog"}
    assert [(each.what, each.points, each.category) for each in kept] == [
        ("object a", ((5, 6, 1), (7, 8, 0)), 1),
        ("line 4", ((9, 9, 1),), 2),
    ]
    assert not skipped
    assert [(each.image, each.what) for each in prompts.strays] == [("gone.png", "line 5")]
    assert together(kept, FAMILY) == {"point_coords": [[[5, 6], [7, 8]], [[9, 9]]], "point_labels": [[1, 0], [1]]}


def test_points_of_a_json_file(source, tmp_path):
    rows = [
        {"image": "000.png", "points": [[5, 6]]},
        {"image": "000.png", "points": [[50, 6]]},
        {"image": "000.png", "points": [[5, 6]], "labels": [0]},
        {"image": "000.png", "points": [[5, 6], [-1, 6], [40, 30]], "labels": [1, 0, 1]},
        {"image": "000.png", "points": [[5, 6], [-1, 6]], "labels": [0, 1]},
        {"image": "000.png", "points": [[5, 6]], "labels": [1, 1]},
        {"image": "000.png", "points": [[5, 6]], "labels": [3]},
        {"image": "000.png", "points": []},
        {"image": "000.png", "points": 5},
        {"image": "000.png", "points": [["a", 6]]},
        {"image": "000.png"},
        5,
    ]
    prompts = read_clicks(written(tmp_path / "a.json", rows), source)
    kept, skipped = usable(prompts, source)
    assert prompts.categories == {1: "object"}
    assert [each.points for each in kept] == [((5, 6, 1),), ((5, 6, 1), (40, 30, 1))]
    assert dict(skipped) == {
        "object 2": "the point 50,6 lies outside the image of 40 x 30 pixels",
        "object 3": "the object has no foreground point",
        "object 4": "the point -1,6 lies outside the image of 40 x 30 pixels",
        "object 5": "the point -1,6 lies outside the image of 40 x 30 pixels",
        "object 7": "a label is 3: 1 is foreground, 0 is background",
        **dict.fromkeys(
            ("object 6", "object 8", "object 9", "object 10", "object 11"),
            "its points are not numbers, or it has another number of labels",
        ),
    }
    assert [(each.image, each.what) for each in prompts.strays] == [("", "object 12")]


def test_a_category_may_be_the_number_0(source, tmp_path):
    rows = [{"image": "000.png", "points": [[5 + each, 6]], "category": each} for each in (0, 1)]
    prompts = read_clicks(written(tmp_path / "a.json", rows), source)
    kept, skipped = usable(prompts, source)
    assert prompts.categories == {1: "0", 2: "1"}
    assert ([each.category for each in kept], skipped) == ([1, 2], [])


def test_a_point_without_a_category_beside_others_is_skipped(source, tmp_path):
    rows = [{"image": "000.png", "points": [[5, 6]], "category": "cat"}, {"image": "000.png", "points": [[7, 6]]}]
    _, skipped = usable(read_clicks(written(tmp_path / "a.json", rows), source), source)
    assert skipped == [("object 2", "it has no category, and others have one")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", "{}", "is not a list"),
        ("a.csv", "image,x\n", "no column y"),
        ("a.csv", "", "no column image, x, y"),
        ("a.csv", "file|x|y\n000.png|1|2\n", r"no column image, x, y: .*and it is 'file\|x\|y'"),
        ("a.csv", 'image,x,y\n"000.png,1,2\n' + "000.png,1,2\n" * 20_000, r"a\.csv, line 2: invalid CSV"),
        ("a.csv", '"image,x,y\n' + "000.png,1,2\n" * 20_000, r"a\.csv, line 1: .*an unclosed quotation mark\?"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_damaged_file_of_points_is_one_clear_error(name, content, message, source, tmp_path):
    with pytest.raises(InputError, match=message):
        read_clicks(written(tmp_path / name, content), source)


def test_masks_are_sent_as_logits_with_their_box(source, tmp_path):
    drawn = mask((4, 6, 20, 18), size=SIZE[::-1])
    shapes = [
        mask_to_rle(drawn),
        mask_to_rle(drawn, compressed=False),
        [[5, 6, 20, 6, 20, 18, 5, 18]],
        mask_to_rle(np.zeros((5, 5), bool)),
        mask_to_rle(np.zeros(SIZE[::-1], bool)),
        {"size": [30, 40], "counts": "?"},
        [[1, 2]],
        5,
        {"size": [2_000_000, 2_000_000], "counts": [0, 4 * 10**12]},  # such a mask is never decoded
    ]
    document = coco(["000.png"], [])
    document["annotations"] = [
        {"id": number, "image_id": 1, "category_id": 7, "segmentation": shape} for number, shape in enumerate(shapes, 1)
    ]
    kept, skipped = usable(read_masks(written(tmp_path / "a.json", document), source), source)
    assert [each.what for each in kept] == ["annotation 1", "annotation 2", "annotation 3"]
    assert [what for what, _ in skipped] == [f"annotation {number}" for number in (7, 8, 4, 5, 6, 9)]
    assert skipped[-1][1].startswith("the mask has 2000000 x 2000000 pixels")
    arguments = together(kept, FAMILY)
    assert arguments["box"][:2] == [(4, 6, 20, 18)] * 2
    assert arguments["mask_input"].shape == (3, 1, 256, 256)
    assert arguments["box"][2] == (5, 6, 20, 18)


@pytest.mark.parametrize(("family", "side"), [("sam1", 256), ("sam2", 256)])
def test_the_logits_of_a_mask_lie_where_the_model_sees_it(family, side):
    """A mask that covers the left half covers the left half of the frame, without the padding of a family that pads."""
    drawn = mask((0, 0, 20, 30), size=SIZE[::-1])
    logits = mask_logits(drawn, get_family(family))
    height = round(side * 30 / 40) if get_family(family).keep_aspect else side
    assert logits.shape == (side, side)
    assert (logits[:height, : side // 2] == 10).all()
    assert (logits[:height, side // 2 :] == -10).all()
    assert (logits[height:] == -10).all()


# files under generated changes: they are read, with a report of what is skipped, or refused as a whole

ABSENT = dict.fromkeys(("point_coords", "point_labels", "box", "mask_input"))
NAMES = ["000.png", "001.png"]
RLE = {"size": [SIZE[1], SIZE[0]], "counts": [0, 10, SIZE[0] * SIZE[1] - 10]}


def spoiled_coco(rng: random.Random) -> str:
    """Return a COCO document, of which some parts may be wrong."""
    images = [spoil(rng, {"id": 1, "file_name": NAMES[0]}) if rng.random() < 0.1 else {"id": 1, "file_name": NAMES[0]}]
    images += [{"id": 2, "file_name": rng.choice([NAMES[1], "gone.png"])}]
    shapes = [[[1, 1, 9, 1, 9, 9]], [[1, 1, 9, 1]], RLE, {**RLE, "size": [3, 3]}, {**RLE, "counts": "a0"}, [[1, 1, 9]]]
    annotations = [
        spoil(
            rng,
            {
                "id": number,
                "image_id": rng.choice([1, 1, 2, 3]),
                "category_id": rng.choice([7, 7, 8]),
                "bbox": [rng.choice([1, 5, -3, 1e300]), 2, rng.choice([4, 0, 100]), 5],
                "segmentation": rng.choice(shapes),
            },
        )
        for number in range(rng.randrange(6))
    ]
    category = {"id": 7, "name": "cat"}
    document = {
        "images": images,
        "annotations": annotations,
        "categories": [spoil(rng, category) if rng.random() < 0.1 else category],
    }
    return json.dumps(spoil(rng, document) if rng.random() < 0.2 else document)


def spoiled_points(rng: random.Random) -> str:
    """Return points as JSON or as CSV, of which some may be wrong."""
    if rng.random() < 0.5:
        rows = [
            spoil(rng, {"image": rng.choice(NAMES), "points": [[3, 4]], "labels": [1], "category": "cat"})
            for _ in range(rng.randrange(4))
        ]
        return json.dumps(rows if rng.random() < 0.9 else junk(rng))
    values = ["3", "4.5", "", "nan", "inf", "1e999", "cat", NAMES[0], '"', "1", "\x00"]
    header = "image,x,y,label,object,category" if rng.random() < 0.9 else "image,x"
    lines = [",".join([rng.choice(NAMES), *rng.choices(values, k=rng.randrange(7))]) for _ in range(4)]
    return "\n".join([header, *lines])


def spoiled_yolo(rng: random.Random) -> str:
    values = ["0", "1", "0.5", "0.2", "nan", "inf", "-1", "1e999", "x", "9" * 30]
    return "\n".join(" ".join(rng.choices(values, k=rng.choice([5, 5, 5, 6, 3]))) for _ in range(4))


@pytest.mark.parametrize(("kind", "count"), [("boxes", 400), ("masks", 400), ("clicks", 400), ("yolo", 200)])
def test_any_file_of_prompts_is_read_or_refused(source, tmp_path, kind, count):
    rng, counts = random.Random(kind), Counter()
    make = {"clicks": spoiled_points, "yolo": spoiled_yolo}.get(kind, spoiled_coco)
    for _ in range(count):
        content = make(rng)
        if rng.random() < 0.05:
            content = content[: rng.randrange(len(content) + 1)]
        path = tmp_path / f"prompts{'.json' if content.startswith(('[', '{')) else '.csv'}"
        try:
            if kind == "yolo":
                (tmp_path / "yolo").mkdir(exist_ok=True)
                (tmp_path / "yolo" / "000.txt").write_text(content)
                prompts = read_boxes(tmp_path / "yolo", source, ["cat", "dog"])
            else:
                path.write_text(content)
                read = {"boxes": read_boxes, "masks": read_masks, "clicks": read_clicks}[kind]
                prompts = read(path, source)
        except InputError as error:
            counts["refused"] += 1
            assert "\n" not in str(error), content  # noqa: PT017 - any of them
            continue
        for item in source.items:
            kept, skipped = prompts.of(item, SIZE)
            counts["kept"] += len(kept)
            counts["skipped"] += len(skipped)
            assert all(each.why for each in skipped)
            if kept:  # one prompt that the client refuses would cost the image all of its objects
                check_prompts(**ABSENT | together(kept, FAMILY), image_size=SIZE, mask_size=FAMILY.mask_size)
    assert min(counts["kept"], counts["skipped"]) >= 5, counts


@pytest.mark.parametrize("content", ["[" * 200_000, '{"a":' * 200_000, "9" * 10_000, "", "\ufeff["])
def test_odd_json_is_one_clear_error(source, tmp_path, content):
    path = written(tmp_path / "prompts.json", content)
    for read in (read_boxes, read_clicks):
        with pytest.raises(InputError, match=r"prompts\.json"):
            read(path, source)
