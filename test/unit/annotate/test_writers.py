"""The contents of the files of each output format. test_read_back.py reads hard masks back."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from support.rectangles import mask

from triton_sam.annotate.records import ImageRecord
from triton_sam.annotate.sources import ImageItem, Skipped
from triton_sam.annotate.writers import WRITERS
from triton_sam.masks import Segment, main_polygons

SIZE = (40, 30)
CATEGORIES = {3: "cat", 7: "dog: big"}
LARGE = mask((2, 3, 22, 23), size=SIZE[::-1])
SMALL = mask((10, 10, 14, 13), (30, 20, 33, 24), size=SIZE[::-1])
EMPTY = np.zeros(SIZE[::-1], bool)


def record(number: int, name: str, *masks: np.ndarray) -> ImageRecord:
    item = ImageItem(number, name, Path(name))
    categories = [3, 7, 3][: len(masks)]
    return ImageRecord.of(item, SIZE, [Segment(each, 0.75, None) for each in masks], categories)


RECORDS = [record(5, "a/one.jpg", LARGE, SMALL, EMPTY), record(2, "two.png")]


def write(name: str, folder: Path, records=RECORDS) -> Path:
    WRITERS[name].write(folder, lambda: records, CATEGORIES, main_polygons)
    return folder


def test_a_record_survives_its_line() -> None:
    for each in (*RECORDS, ImageRecord(1, "x", (0, 0), skipped=(Skipped("x", "box", "why"),), error="bad")):
        assert ImageRecord.from_line(each.to_line()) == each
    for line in ("", "{}", "[]", '{"size": [1]}', '{"size": [1, 2], "objects": [], "skipped": []}'):
        with pytest.raises(ValueError, match=r".+"):
            ImageRecord.from_line(line)


def test_voc_has_boxes_from_one_and_two_label_images(tmp_path: Path) -> None:
    folder = write("voc", tmp_path) / "voc"
    root = ElementTree.fromstring((folder / "Annotations/a/one.xml").read_text())
    boxes = [[int(value.text) for value in each.find("bndbox")] for each in root.findall("object")]
    assert boxes == [[3, 4, 22, 23], [11, 11, 33, 24]]
    assert [each.findtext("name") for each in root.findall("object")] == ["cat", "dog: big"]
    objects = np.asarray(Image.open(folder / "SegmentationObject/a/one.png"))
    classes = np.asarray(Image.open(folder / "SegmentationClass/a/one.png"))
    np.testing.assert_array_equal(objects, np.where(SMALL, 2, np.where(LARGE, 1, 0)))
    np.testing.assert_array_equal(classes, objects)  # cat is class 1, dog is class 2
    assert not np.asarray(Image.open(folder / "SegmentationObject/two.png")).any()
    assert (folder / "classes.txt").read_text() == "cat\ndog: big\n"


def test_labelme_has_polygons_beside_the_image(tmp_path: Path) -> None:
    document = json.loads((write("labelme", tmp_path) / "labelme/a/one.json").read_text())
    assert (document["imagePath"], document["imageWidth"], document["imageHeight"]) == ("one.jpg", *SIZE)
    assert [(each["label"], each["group_id"]) for each in document["shapes"]] == [
        ("cat", 1),
        ("dog: big", 2),
        ("dog: big", 2),
    ]
    assert json.loads((tmp_path / "labelme/two.json").read_text())["shapes"] == []


def test_geojson_has_a_feature_for_each_object(tmp_path: Path) -> None:
    ring = LARGE & ~mask((5, 6, 12, 15), size=SIZE[::-1])
    path = write("geojson", tmp_path, [record(1, "one.jpg", ring)]) / "geojson/one.geojson"
    (feature,) = json.loads(path.read_text())["features"]
    qupath = {"objectType": "annotation", "classification": {"name": "cat"}}
    known = {"category": "cat", "category_id": 3, "score": 0.75, "area": int(ring.sum())}
    assert feature["properties"] == {**qupath, **known}
    ((outer, inner),) = feature["geometry"]["coordinates"]
    assert feature["geometry"]["type"] == "MultiPolygon"
    assert outer[0] == outer[-1]
    assert inner[0] == inner[-1]


def test_davis_has_its_palette_and_no_more_objects_than_it_holds(tmp_path: Path) -> None:
    with Image.open(write("davis", tmp_path) / "davis/Annotations/a/one.png") as image:
        assert image.mode == "P"
        assert image.getpalette()[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]
        np.testing.assert_array_equal(np.asarray(image), np.where(SMALL, 2, np.where(LARGE, 1, 0)))
    scores = [0.5, 0.1, *[0.7] * 253]
    segments = [Segment(SMALL if number else LARGE, score, None) for number, score in enumerate(scores)]
    many = ImageRecord.of(ImageItem(1, "x.png", Path("x.png")), SIZE, segments, [3] * 255)
    (left,) = WRITERS["davis"].write(tmp_path, lambda: [many], CATEGORIES, main_polygons)
    assert (left.image, left.what) == ("x.png", "object 2")  # the one with the lowest score


def test_parquet_has_a_row_for_each_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("triton_sam.annotate.parquet_writer.ROWS_AT_ONCE", 2)
    rows = parquet.read_table(write("parquet", tmp_path) / "objects.parquet").to_pylist()
    assert [(each["image_id"], each["file_name"], each["category"]) for each in rows] == [
        (5, "a/one.jpg", "cat"),
        (5, "a/one.jpg", "dog: big"),
    ]
    assert [rows[1][name] for name in ("x", "y", "box_width", "box_height", "area")] == [10, 10, 23, 14, 24]
    rle = {"size": [rows[1]["height"], rows[1]["width"]], "counts": rows[1]["counts"]}
    from triton_sam.masks import rle_to_mask

    np.testing.assert_array_equal(rle_to_mask(rle), SMALL)


@pytest.mark.parametrize("name", WRITERS)
def test_names_that_lead_out_of_their_folder_lead_into_no_other(name: str, tmp_path: Path) -> None:
    names = ("../../up.png", "/photos/../root.png", "../a/../up.png", "a/up.png")
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    records = [record(number, each, LARGE) for number, each in enumerate(names, 1)]
    left = WRITERS[name].write(out, lambda: records, CATEGORIES, main_polygons)
    found = [path.relative_to(out) for path in tmp_path.rglob("*") if path.is_file()]  # raises for one beside it
    assert {path.parts[0] for path in found if len(path.parts) > 1} <= {name}
    assert {path.stem.removesuffix(".png") for path in found if len(path.parts) > 2} <= {"up", "root"}
    assert [(each.image, each.what) for each in left] in ([], [("../a/../up.png", "image")])


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_writes_a_run_without_objects(name: str, tmp_path: Path) -> None:
    write(name, tmp_path, [])
    write(name, tmp_path, [record(1, "one.jpg")])


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("parquet", "pyarrow", "parquet"), ("yolo", "contourpy", "polygons")]
)
def test_a_missing_package_is_named_before_the_run(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from triton_sam.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"\[{extra}\]"):
        WRITERS[name].check()
