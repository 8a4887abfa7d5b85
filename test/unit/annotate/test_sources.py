"""The images of a run: every kind of source, and sources that lie."""

import json
from pathlib import Path

import pytest
from PIL import Image
from support.annotated import coco, write_images

from triton_sam.annotate.segmenting import opened
from triton_sam.annotate.sources import read_source
from triton_sam.errors import InputError


def names(source, **options) -> list[str]:
    return [item.name for item in read_source(str(source), **options).items]


def test_a_folder_is_searched_with_its_subfolders(tmp_path: Path) -> None:
    write_images(tmp_path / "b" / "c", 1)
    write_images(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("no image")
    assert names(tmp_path) == ["000.png", "001.png", "b/c/000.png"]
    assert [item.id for item in read_source(str(tmp_path)).items] == [1, 2, 3]


@pytest.mark.parametrize(("pattern", "found"), [("*.png", ["000.png"]), ("**/*.png", ["000.png", "b/000.png"])])
def test_a_pattern_names_files_from_its_fixed_part(pattern: str, found: list[str], tmp_path: Path) -> None:
    write_images(tmp_path / "b", 1)
    write_images(tmp_path, 1)
    assert names(tmp_path / pattern) == found


def test_a_list_names_files_from_its_folder_or_from_images(tmp_path: Path) -> None:
    write_images(tmp_path / "in", 2)
    listed = tmp_path / "in" / "list.txt"
    listed.write_text("# two images\n001.png\n\n000.png\n")
    assert names(listed) == ["001.png", "000.png"]
    elsewhere = tmp_path / "list.txt"
    elsewhere.write_text("000.png\n")
    assert names(elsewhere, images=tmp_path / "in") == ["000.png"]


def test_a_data_set_keeps_ids_sizes_and_categories(tmp_path: Path) -> None:
    write_images(tmp_path, 2)
    document = coco(["001.png", "000.png"])
    (tmp_path / "set.json").write_text(json.dumps(document))
    source = read_source(str(tmp_path / "set.json"))
    assert [(item.id, item.name, item.size) for item in source.items] == [
        (1, "001.png", (40, 30)),
        (2, "000.png", (40, 30)),
    ]
    assert source.categories == {7: "cat"}
    assert source.coco == document


def test_missing_and_repeated_images_are_skipped_with_a_reason(tmp_path: Path) -> None:
    write_images(tmp_path, 1)
    document = coco(["000.png", "gone.png", "000.png"])
    document["images"].append({**document["images"][0], "file_name": "./000.png"})
    (tmp_path / "set.json").write_text(json.dumps(document))
    source = read_source(str(tmp_path / "set.json"))
    assert [item.name for item in source.items] == ["000.png"]
    assert [(each.image, each.why) for each in source.skipped] == [
        ("gone.png", "there is no such file"),
        ("000.png", "the source names this image or its id twice"),
        ("./000.png", "the source names this image or its id twice"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", "[]", "it has no list of images"),
        ("a.json", '{"images": [{"id": 1}]}', "image 1: a.json: it needs file_name"),
        (
            "a.json",
            '{"images": [{"id": 1e999, "file_name": "a.png"}]}',
            "image 1: a.json: it needs file_name, id, width and height",
        ),
        ("a.json", '{"images": [{"id": 1, "file_name": "a\\u0000.png"}]}', "there is no such file"),
        ("a.txt", "a\0.png", "there is no such file"),
        ("a.json", '{"images": []}', "there is no image"),
        ("a.json", '{"images": [], "categories": [{"id": 1}]}', "no id or no name"),
        ("b[1]*.png", None, r"no file matches this pattern\. For a \[ in the name of a file, write \[\[\]"),
        ("gone.txt", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_useless_source_is_one_clear_error(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_source(str(tmp_path / name))


def test_a_folder_of_a_phone_has_heic_photographs(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (80, 60), (200, 30, 60)).save(tmp_path / "IMG_0001.HEIC", "HEIF")
    source = read_source(str(tmp_path))
    assert opened(source.items[0]).size == (80, 60)
