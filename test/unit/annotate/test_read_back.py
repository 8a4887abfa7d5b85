"""Other programs can read the files of every writer: each file is read back by its format's reader, for hard masks.

Below are the contents beside the masks, and names of images that a format cannot write.
"""

import json
import ntpath
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from PIL import Image
from support.rectangles import mask

pytest.importorskip("contourpy")
shapely = pytest.importorskip("shapely")

from triton_sam.annotate.folder import ImageRecord  # noqa: E402
from triton_sam.annotate.large import LargeResult  # noqa: E402
from triton_sam.annotate.large_writers import LARGE_WRITERS  # noqa: E402
from triton_sam.annotate.sources import ImageItem, Skipped  # noqa: E402
from triton_sam.annotate.writers import WRITERS  # noqa: E402
from triton_sam.masks import Segment, fill_polygons, main_polygons, rle_to_mask, trace_polygons  # noqa: E402
from triton_sam.tiles import LargeObject  # noqa: E402

Mask = npt.NDArray[np.bool_]

SIZE = WIDTH, HEIGHT = 64, 48
CATEGORIES = {3: "cat", 7: 'dog: "big"\x01\nline', 9: "é"}
drawn = partial(mask, size=(HEIGHT, WIDTH))
WHOLE = np.ones((HEIGHT, WIDTH), bool)
HOLES = drawn((4, 4, 40, 40)) & ~drawn((8, 8, 20, 20), (24, 24, 36, 36))
ISLAND = HOLES | drawn((12, 12, 16, 16))
PARTS = drawn((1, 1, 9, 9), (20, 5, 31, 12), (50, 40, 64, 48))
DIAGONAL = np.eye(HEIGHT, WIDTH, dtype=bool)
PIXEL, CORNER = drawn((30, 20, 31, 21)), drawn((63, 47, 64, 48))
EMPTY = ~WHOLE
SQUARES = [drawn((x, y, x + 2, y + 2)) for y in range(0, 45, 3) for x in range(0, 60, 3)]
"""300 objects."""
CASES: dict[str, list[Mask]] = {
    "no object": [],
    "an empty mask": [PIXEL, EMPTY, PARTS],
    "one pixel": [PIXEL, CORNER],
    "holes": [HOLES, ISLAND],
    "parts": [PARTS, DIAGONAL],
    "the whole image": [WHOLE, WHOLE],
    "300 objects": SQUARES,
}
assert len(SQUARES) == 300


def record_of(masks: list[Mask], name: str = "in/a b.png", scores: list[float] | None = None) -> ImageRecord:
    scores = scores or [0.9 - number / 1000 for number in range(len(masks))]
    segments = [Segment(each, score, None) for each, score in zip(masks, scores, strict=True)]
    return ImageRecord.of(ImageItem(5, name, Path(name)), SIZE, segments, [(3, 7, 9)[n % 3] for n in range(len(masks))])


def strict(path: Path):
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def filled(shape) -> Mask:
    assert shape.is_valid
    assert not shape.is_empty
    parts = shape.geoms if shape.geom_type == "MultiPolygon" else [shape]
    area = EMPTY.copy()
    for part in parts:
        inside = fill_polygons([part.exterior.coords[:-1]], SIZE)
        area |= inside & ~fill_polygons([hole.coords[:-1] for hole in part.interiors], SIZE)
    return area


# Readers: each returns the masks of the objects, in their order, and checks what its program checks.


def read_coco(folder: Path, name: str = "coco.json") -> list[Mask]:
    coco = pytest.importorskip("pycocotools.coco")
    strict(folder / name)
    data = coco.COCO(str(folder / name))
    found = data.loadRes([each for each in data.dataset["annotations"] if "score" in each]) if data.anns else data
    for each in found.dataset.get("annotations", []):
        assert each["area"] > 0
        assert min(each["bbox"][2:]) > 0  # torchvision refuses other boxes
    return [data.annToMask(each).astype(bool) for each in data.dataset["annotations"]]


def read_coco_polygons(folder: Path) -> list[Mask]:
    found = read_coco(folder, "coco_polygons.json")
    annotations = strict(folder / "coco_polygons.json")["annotations"]
    for each, painted in zip(annotations, found, strict=True):
        assert all(len(ring) >= 6 for ring in each["segmentation"])
        assert painted.any()  # pycocotools paints in its own way; below, we read the same rings by their centres
    return [fill_polygons(each["segmentation"], SIZE) for each in annotations]


def read_yolo(folder: Path) -> list[Mask]:
    """The rules of https://docs.ultralytics.com/datasets/segment/, and those of its loader for one label file."""
    yaml = pytest.importorskip("yaml")
    described = yaml.safe_load((folder / "yolo/data.yaml").read_text())
    assert {"train", "val"} <= described.keys()
    assert list(described["names"]) == list(range(len(CATEGORIES)))
    found = []
    for line in (folder / "yolo/labels/in/a b.txt").read_text().splitlines():
        number, *values = map(float, line.split())
        assert number in described["names"]
        assert len(values) >= 6  # with fewer in all lines of a file, they would be boxes
        assert len(values) % 2 == 0
        assert 0 <= min(values) <= max(values) <= 1
        found.append(fill_polygons([np.reshape(values, (-1, 2)) * SIZE], SIZE))
    return found


def read_voc(folder: Path) -> list[Mask]:
    root = ElementTree.fromstring((folder / "voc/Annotations/in/a b.xml").read_bytes())
    listed = root.findall("object")
    assert len((folder / "voc/classes.txt").read_text().splitlines()) == len(CATEGORIES)
    with Image.open(folder / "voc/SegmentationObject/in/a b.png") as objects:
        assert (objects.mode, objects.size) == ("P", SIZE)
        numbers = np.asarray(objects)
    with Image.open(folder / "voc/SegmentationClass/in/a b.png") as classes:
        assert classes.mode == "P"
        assert np.asarray(classes).max(initial=0) <= len(CATEGORIES)
    assert numbers.max() <= 254  # 255 means "unknown"
    for each in listed:
        x1, y1, x2, y2 = (int(each.find("bndbox").findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
        assert 1 <= x1 <= x2 <= WIDTH
        assert 1 <= y1 <= y2 <= HEIGHT
    return [numbers == number for number in range(1, len(listed) + 1)]


def read_labelme(folder: Path) -> list[Mask]:
    """The checks of labelme/_label_file.py, 6.3."""
    document = strict(folder / "labelme/in/a b.json")
    assert (document["imagePath"], document["imageData"]) == ("a b.png", None)
    assert (document["imageWidth"], document["imageHeight"], document["flags"]) == (*SIZE, {})
    masks: dict[int, Mask] = {}
    for shape in document["shapes"]:
        assert isinstance(shape["label"], str)
        assert (shape["shape_type"], shape["flags"], shape["description"], shape["mask"]) == ("polygon", {}, "", None)
        assert len(shape["points"]) >= 3
        assert all(type(value) is float for point in shape["points"] for value in point)
        before = masks.get(shape["group_id"], EMPTY)
        masks[shape["group_id"]] = before | fill_polygons([shape["points"]], SIZE)
    assert list(masks) == list(range(1, len(masks) + 1))
    return list(masks.values())


def read_geojson(folder: Path) -> list[Mask]:
    path = folder / "geojson/in/a b.geojson"
    features = strict(path)["features"]
    for each in features:  # QuPath: without these, objects have no class
        assert each["properties"]["objectType"] == "annotation"
        assert each["properties"]["classification"] == {"name": each["properties"]["category"]}
        assert each["properties"]["classification"]["name"] in CATEGORIES.values()
    if features:
        raw = pytest.importorskip("pyogrio.raw")
        assert len(raw.read(path)[2]) == len(features)
    return [filled(shapely.from_geojson(json.dumps(each["geometry"]))) for each in features]


def read_gpkg(folder: Path) -> list[Mask]:
    raw = pytest.importorskip("pyogrio.raw")
    meta, _, geometries, values = raw.read(folder / "gpkg/in/a b.gpkg", layer="objects")
    assert list(meta["fields"]) == ["category", "category_id", "score", "area"]
    assert set(values[1]) <= set(CATEGORIES)
    return [filled(shapely.from_wkb(each)) for each in geometries]


def read_labels(folder: Path, name: str = "labels/in/a b.png.png") -> list[Mask]:
    with Image.open(folder / name) as image:
        numbers = np.asarray(image)
    return [numbers == number for number in range(1, numbers.max(initial=0) + 1)]


def read_davis(folder: Path) -> list[Mask]:
    with Image.open(folder / "davis/Annotations/in/a b.png") as image:
        assert image.mode == "P"
    return read_labels(folder, "davis/Annotations/in/a b.png")


def read_parquet(folder: Path) -> list[Mask]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(folder / "objects.parquet").to_pylist()
    return [rle_to_mask({"size": [row["height"], row["width"]], "counts": row["counts"]}) for row in rows]


def exact(masks: list[Mask]) -> list[Mask]:
    return masks


def without_holes(masks: list[Mask]) -> list[Mask]:
    ndimage = pytest.importorskip("scipy.ndimage")
    return [ndimage.binary_fill_holes(each, np.ones((3, 3))) for each in masks]


def without_overlaps(masks: list[Mask]) -> list[Mask]:
    """Each pixel belongs to the smallest object; the first one wins where they are equal."""
    order = sorted(range(len(masks)), key=lambda index: (masks[index].sum(), index))
    left, shown = WHOLE.copy(), [EMPTY] * len(masks)
    for index in order:
        shown[index], left = masks[index] & left, left & ~masks[index]
    return shown


def in_bytes(masks: list[Mask]) -> list[Mask]:
    return without_overlaps(masks[:254])


Reader = Callable[[Path], list[Mask]]
IMAGES: dict[str, tuple[Reader, Callable[[list[Mask]], list[Mask]]]] = {
    "coco": (read_coco, exact),
    "coco-polygons": (read_coco_polygons, without_holes),
    "yolo": (read_yolo, exact),
    "voc": (read_voc, in_bytes),
    "labelme": (read_labelme, without_holes),
    "geojson": (read_geojson, exact),
    "labels": (read_labels, without_overlaps),
    "davis": (read_davis, in_bytes),
    "parquet": (read_parquet, exact),
}
LARGE: dict[str, tuple[Reader, Callable[[list[Mask]], list[Mask]]]] = {
    "geojson": (read_geojson, exact),
    "gpkg": (read_gpkg, exact),
    "coco-polygons": (read_coco_polygons, without_holes),
}


def test_every_format_has_a_reader():
    assert IMAGES.keys() == WRITERS.keys()
    assert LARGE.keys() == LARGE_WRITERS.keys()


def same(found: list[Mask], expected: list[Mask]) -> None:
    while expected and not expected[-1].any() and len(found) < len(expected):  # hidden behind smaller objects
        expected = expected[:-1]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", IMAGES)
def test_images(name, case, tmp_path, capsys):
    read, expected = IMAGES[name]
    record = record_of(CASES[case])
    left = WRITERS[name].write(tmp_path, lambda: [record], CATEGORIES, trace_polygons)
    usable = [each for each in CASES[case] if each.any()]
    same(read(tmp_path), expected(usable))
    over = range(255, 301) if name in ("voc", "davis") and case == "300 objects" else ()
    assert [each.what for each in left] == [f"object {number}" for number in over]
    assert all("254 objects" in each.why for each in left)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", LARGE)
def test_large_images(name, case, tmp_path, capsys):
    read, expected = LARGE[name]
    usable = [each for each in CASES[case] if each.any()]
    objects = [LargeObject(each, (0, 0, *SIZE), 0.75) for each in usable]
    categories = [(3, 7, 9)[number % 3] for number in range(len(usable))]
    result = LargeResult(5, "in/a b.tif", SIZE, None, objects, categories)
    assert LARGE_WRITERS[name].write(tmp_path, lambda: [result], CATEGORIES, trace_polygons) == []
    same(read(tmp_path), expected(usable))


def test_supervision_loads_the_files(tmp_path):
    sets = pytest.importorskip("supervision").DetectionDataset
    Image.new("RGB", SIZE).save(tmp_path / "a.png")
    record = record_of([PARTS, PIXEL], "a.png")
    for name in ("coco", "coco-polygons", "yolo", "voc"):
        WRITERS[name].write(tmp_path, lambda: [record], CATEGORIES, trace_polygons)
    images = str(tmp_path)
    rle = sets.from_coco(images, str(tmp_path / "coco.json"), force_masks=True)
    polygons = sets.from_coco(images, str(tmp_path / "coco_polygons.json"), force_masks=True)
    labels, names = str(tmp_path / "yolo/labels"), str(tmp_path / "yolo/data.yaml")
    yolo = sets.from_yolo(images, labels, names, force_masks=True)
    voc = sets.from_pascal_voc(images, str(tmp_path / "voc/Annotations"))
    for data in (rle, polygons, yolo, voc):
        ((_, _, found),) = list(data)
        assert len(found) == 2
    ((_, _, found),) = list(rle)
    np.testing.assert_array_equal(found.mask, [PARTS, PIXEL])


def test_classes_and_objects_that_a_byte_cannot_number_are_left_out(tmp_path):
    categories = {3: "cat", **{number: str(number) for number in range(100, 353)}, 7: "dog"}  # dog is the 255th
    (left,) = WRITERS["voc"].write(tmp_path, lambda: [record_of([PARTS, PIXEL])], categories, trace_polygons)
    assert (left.what, left.why[:27]) == ("object 2", "the format holds 254 classe")
    root = ElementTree.fromstring((tmp_path / "voc/Annotations/in/a b.xml").read_bytes())
    assert [each.findtext("name") for each in root.findall("object")] == ["cat"]
    record = record_of([PARTS] + [PIXEL] * 254, scores=[0.5, 0.1, *[0.7] * 253])
    (left,) = WRITERS["davis"].write(tmp_path, lambda: [record], CATEGORIES, trace_polygons)
    assert left.what == "object 2"


def test_an_empty_mask_is_listed_and_counted_and_a_score_is_a_number():
    record = record_of(CASES["an empty mask"])
    assert [each["area"] for each in record.objects] == [1, PARTS.sum()]
    assert record.skipped == (Skipped("in/a b.png", "object 2", "its mask is empty"),)
    assert record_of([PIXEL], scores=[float("nan")]).objects[0]["score"] == 0.0


WITH_FILES = [name for name in IMAGES if name not in ("coco", "coco-polygons", "parquet")]


@pytest.mark.parametrize(
    ("name", "second"),
    [
        (name, second)
        for name in WITH_FILES
        for second in ("in/a b.jpg", "in/a b.png", "in/A B.png")
        if (name, second[-3:]) != ("labels", "jpg")
    ],
)
def test_of_two_images_with_one_file_the_second_is_left_out_and_listed(name, second, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin" if "A" in second else "linux")
    records = [record_of([PARTS]), record_of([PIXEL], second)]
    (left,) = WRITERS[name].write(tmp_path, lambda: records, CATEGORIES, trace_polygons)
    assert (left.image, left.what) == (second, "image")
    assert "in/a b.png has the same file in/" in left.why
    np.testing.assert_array_equal(IMAGES[name][0](tmp_path)[0], PARTS)


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_whose_name_is_too_long_costs_itself_alone(name, tmp_path):
    records = [record_of([PIXEL], f"in/{'é' * 124}.png"), record_of([PARTS])]
    left = WRITERS[name].write(tmp_path, lambda: records, CATEGORIES, trace_polygons)
    assert [each.what for each in left] == ["image"] * (name in WITH_FILES)
    assert IMAGES[name][0](tmp_path)


def test_a_run_without_images_has_files_too(tmp_path):
    for writer in WRITERS.values():
        assert writer.write(tmp_path, list, CATEGORIES, trace_polygons) == []


@pytest.mark.parametrize("name", WRITERS)
def test_names_that_lead_out_of_their_folder_lead_into_no_other(name, tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.splitdrive", ntpath.splitdrive)
    names = ("../../up.png", "/photos/../root.png", "../a/../up.png", "a/up.png", "C:/disk.png")
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    records = [record_of([PIXEL], each) for each in names]
    left = WRITERS[name].write(out, lambda: records, CATEGORIES, trace_polygons)
    found = [path.relative_to(out) for path in tmp_path.rglob("*") if path.is_file()]  # raises for one beside it
    assert {path.parts[0] for path in found if len(path.parts) > 1} <= {name}
    assert {path.stem.removesuffix(".png") for path in found if len(path.parts) > 2} <= {"up", "root", "disk"}
    assert [(each.image, each.what) for each in left] in ([], [("../a/../up.png", "image")])


def test_a_record_survives_its_line():
    for each in (record_of([PARTS, EMPTY]), ImageRecord(1, "x", (0, 0), error="bad")):
        assert ImageRecord.from_line(each.to_line()) == each
    for line in ("", "{}", "[]", '{"size": [1]}', '{"size": [1, 2], "objects": [], "skipped": []}'):
        with pytest.raises(ValueError, match=r".+"):
            ImageRecord.from_line(line)


def test_what_stands_beside_the_masks(tmp_path, monkeypatch):
    """Names of categories, boxes, scores and areas; voc numbers pixels and categories from 1."""
    monkeypatch.setattr("triton_sam.annotate.writers.ROWS_AT_ONCE", 1)
    categories = {3: "cat", 7: "dog: \N{DOG FACE}"}
    record = record_of([PARTS, PIXEL], scores=[0.75, 0.5])
    for name in ("voc", "yolo", "labelme", "geojson", "davis", "parquet"):
        WRITERS[name].write(tmp_path, lambda: [record], categories, trace_polygons)
    root = ElementTree.fromstring((tmp_path / "voc/Annotations/in/a b.xml").read_bytes())
    boxes = [[int(value.text or "") for value in each.iterfind("bndbox/*")] for each in root.findall("object")]
    assert boxes == [[2, 2, 64, 48], [31, 21, 31, 21]]
    assert [each.findtext("name") for each in root.findall("object")] == list(categories.values())
    assert (tmp_path / "voc/classes.txt").read_text("utf-8") == "cat\ndog: \N{DOG FACE}\n"
    names = yaml.load((tmp_path / "yolo/data.yaml").read_text("utf-8"), yaml.CSafeLoader)["names"]
    assert list(names.values()) == list(categories.values())
    with Image.open(tmp_path / "voc/SegmentationClass/in/a b.png") as classes:
        np.testing.assert_array_equal(np.asarray(classes), np.where(PIXEL, 2, PARTS))
    shapes = strict(tmp_path / "labelme/in/a b.json")["shapes"]
    assert [(each["label"], each["group_id"]) for each in shapes] == [("cat", 1)] * 3 + [(categories[7], 2)]
    known = [{"category": "cat", "category_id": 3, "score": 0.75, "area": PARTS.sum()}]
    known += [{"category": categories[7], "category_id": 7, "score": 0.5, "area": 1}]
    features = strict(tmp_path / "geojson/in/a b.geojson")["features"]
    assert [{key: each["properties"][key] for key in known[0]} for each in features] == known
    with Image.open(tmp_path / "davis/Annotations/in/a b.png") as image:
        assert (image.getpalette() or [])[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]
    rows = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "objects.parquet").to_pylist()
    place = {"image_id": 5, "file_name": "in/a b.png", "x": 1, "y": 1, "box_width": 63, "box_height": 47}
    assert place.items() | known[0].items() <= rows[0].items()
    assert known[1].items() <= rows[1].items()


@pytest.mark.parametrize("name", ["coco-polygons", "yolo", "labelme", "geojson"])
def test_polygons_leave_specks_out_by_default(name, tmp_path):
    main = drawn((1, 1, 41, 41))
    dusty = main & ~drawn((20, 20, 22, 22)) | drawn((50, 2, 52, 4), (60, 40, 61, 41))
    WRITERS[name].write(tmp_path, lambda: [record_of([dusty])], CATEGORIES, main_polygons)
    (found,) = IMAGES[name][0](tmp_path)
    np.testing.assert_array_equal(found, main)
