"""Files of prompts under generated changes: they are read, with a report of what is skipped, or refused as a whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from support.annotated import SIZE, write_images
from support.spoiled import junk, spoil

from triton_sam.annotate.reading import read_boxes, read_clicks, read_masks
from triton_sam.annotate.segmenting import together
from triton_sam.annotate.sources import Source, read_source
from triton_sam.errors import InputError
from triton_sam.families import get_family
from triton_sam.inputs.prompts import check_prompts

FAMILY = get_family("sam2")
ABSENT = dict.fromkeys(("point_coords", "point_labels", "box", "mask_input"))
NAMES = ["000.png", "001.png"]
RLE = {"size": [SIZE[1], SIZE[0]], "counts": [0, 10, SIZE[0] * SIZE[1] - 10]}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    write_images(tmp_path / "images", 2)
    return read_source(str(tmp_path / "images"))


def coco(rng: random.Random) -> str:
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


def points(rng: random.Random) -> str:
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


def yolo(rng: random.Random) -> str:
    values = ["0", "1", "0.5", "0.2", "nan", "inf", "-1", "1e999", "x", "9" * 30]
    return "\n".join(" ".join(rng.choices(values, k=rng.choice([5, 5, 5, 6, 3]))) for _ in range(4))


@pytest.mark.parametrize(("kind", "count"), [("boxes", 400), ("masks", 400), ("clicks", 400), ("yolo", 200)])
def test_any_file_of_prompts_is_read_or_refused(source: Source, tmp_path: Path, kind: str, count: int) -> None:
    rng, counts = random.Random(kind), Counter()
    make = {"clicks": points, "yolo": yolo}.get(kind, coco)
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
def test_odd_json_is_one_clear_error(source: Source, tmp_path: Path, content: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    for read in (read_boxes, read_clicks):
        with pytest.raises(InputError, match=r"prompts\.json"):
            read(path, source)
