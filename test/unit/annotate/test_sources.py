"""The images of a run: every kind of source, sources that lie, and names and files as other systems write them."""

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from itertools import cycle

import pytest
from PIL import Image
from support.annotated import SIZE, coco, lines_of, servers, write_images
from support.commands import call

from triton_sam.annotate.job import opened
from triton_sam.annotate.reading import read_boxes, read_clicks
from triton_sam.annotate.sources import read_source
from triton_sam.errors import InputError
from triton_sam.inputs.names import find_file

__all__ = ["servers"]

NAME = "b/grün [1].png"
"""A folder, an accent in one character, a space and brackets."""
LATIN = os.fsdecode(b"m\xfcller.png")
"""The name of a file that is not UTF-8."""
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]


def names(source, **options) -> list[str]:
    return [item.name for item in read_source(str(source), **options).items]


def test_a_list_names_files_from_its_folder_or_from_images(tmp_path):
    write_images(tmp_path / "in", 2)
    listed = tmp_path / "in" / "list.txt"
    listed.write_text("# two images\n001.png\n\n000.png\n")
    assert names(listed) == ["001.png", "000.png"]
    elsewhere = tmp_path / "list.txt"
    elsewhere.write_text("000.png\n")
    assert names(elsewhere, images=tmp_path / "in") == ["000.png"]


def test_a_data_set_keeps_ids_sizes_and_categories(tmp_path):
    write_images(tmp_path, 2)
    document = coco(["001.png", "000.png"])
    (tmp_path / "set.json").write_text(json.dumps(document))
    source = read_source(str(tmp_path / "set.json"))
    found = [(item.id, item.name, item.size) for item in source.items]
    assert found == [(1, "001.png", SIZE), (2, "000.png", SIZE)]
    assert source.categories == {7: "cat"}
    assert source.coco == document


def test_missing_and_repeated_images_are_skipped_with_a_reason(tmp_path):
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
        ("a.json", '{"images": [{"id": 1e999, "file_name": "a.png"}]}', "a.json: it needs file_name, and id, width"),
        ("a.json", '{"images": [{"id": 1.7, "file_name": "a.png"}]}', "a.json: it needs file_name, and id, width"),
        ("a.json", '{"images": [{"id": 1, "file_name": "a\\u0000.png"}]}', "there is no such file"),
        ("a.txt", "a\0.png", "there is no such file"),
        ("a.json", '{"images": []}', "there is no image"),
        ("a.json", '{"images": [], "categories": [{"id": 1}]}', "has no name, or its id is not a whole number"),
        ("a.json", '{"images": [], "categories": [{"id": 1.7, "name": "cat"}]}', "its id is not a whole number"),
        ("b[1]*.png", None, r"no file matches this pattern\. For a \[ in the name of a file, write \[\[\]"),
        ("gone.txt", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_useless_source_is_one_clear_error(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_source(str(tmp_path / name))


def test_a_folder_of_a_phone_has_heic_photographs(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (80, 60), (200, 30, 60)).save(tmp_path / "IMG_0001.HEIC", "HEIF")
    source = read_source(str(tmp_path))
    assert opened(source.items[0]).size == (80, 60)


@pytest.fixture
def written(tmp_path):
    folder = tmp_path / "images"
    (path,) = write_images(folder / "b", 1)
    path.rename(folder / NAME)
    return folder


def decomposed(name: str) -> str:
    return unicodedata.normalize("NFD", name)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "Windows": lambda name: name.replace("/", "\\"),
    "macOS": decomposed,
    "both": lambda name: decomposed(name).replace("/", "\\"),
    "dots": "./{}".format,
}


@pytest.mark.parametrize(("spelling", "encoding"), list(zip(SPELLINGS, cycle(ENCODINGS), strict=False)))
def test_lists_and_prompts_name_files_as_other_systems_do(spelling, encoding, written, tmp_path):
    told = SPELLINGS[spelling](NAME)
    (tmp_path / "list.txt").write_text(f"# a comment\r\n  {told} \r\n\r\n", encoding, newline="")
    (tmp_path / "set.json").write_text(json.dumps(coco([told]), ensure_ascii=False), encoding)
    (tmp_path / "clicks.csv").write_text(f"image,x,y\r\n{told},5,6\r\n", encoding, newline="")
    listed = read_source(str(tmp_path / "list.txt"), written)
    described = read_source(str(tmp_path / "set.json"), written)
    for source in (listed, described):
        (item,) = source.items
        assert item.name.removeprefix("./") == NAME
        assert not source.skipped
        assert item.content() == written / NAME
        kept, _ = read_clicks(tmp_path / "clicks.csv", source).of(item, SIZE)
        assert [each.points for each in kept] == [((5, 6, 1),)]
        kept, _ = read_boxes(tmp_path / "set.json", source).of(item, SIZE)
        assert [each.box for each in kept] == [(2, 3, 12, 11)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "text",
    [
        "image,x,y,label\n{},5.5,6,0\n{},7,8.5,1.0\n",
        "image;x;y;label\n{};5,5;6;0\n{};7;8,5;1\n",
        "Image\tX\tY\tLabel\n{}\t5,5\t6\t0\n{}\t7\t8.5\t1\n",
        '"image", "x", "y", "label"\n"{}", 5.5, 6, 0\n"{}", 7, 8.5, 1\n',
    ],
    ids=["commas", "Excel in half of Europe", "tabs", "quoted"],
)
def test_points_of_spreadsheets(text, encoding, written, tmp_path):
    source = read_source(str(written))
    (tmp_path / "clicks.csv").write_text(text.format(NAME, NAME), encoding)
    kept, skipped = read_clicks(tmp_path / "clicks.csv", source).of(source.items[0], SIZE)
    assert [each.points for each in kept] == [((7, 8.5, 1),)]
    assert [each.why for each in skipped] == ["the object has no foreground point"]


def test_boxes_of_yolo_with_a_byte_order_mark(written, tmp_path):
    source = read_source(str(written))
    label = tmp_path / "labels" / decomposed(NAME).replace(".png", ".txt")
    label.parent.mkdir(parents=True)
    label.write_text("0 0.5 0.5 0.5 0.2\n", "utf-8-sig")
    kept, skipped = read_boxes(tmp_path / "labels", source, ["cat"]).of(source.items[0], SIZE)
    assert [each.box for each in kept] == [(10, 12, 30, 18)]
    assert not skipped


def test_exact_names_come_first(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/c.png", "b\\c.png", "#1.png", decomposed("ü.png"), "ü.png", " a.png"):
        Image.new("RGB", SIZE).save(tmp_path / name)
        assert find_file(tmp_path, name) == (name, tmp_path / name)
    (tmp_path / "list.txt").write_text("b/c.png\nb\\c.png\n#1.png\n# no file\n a.png\n")
    assert names(tmp_path / "list.txt") == ["b/c.png", "b\\c.png", "#1.png", " a.png"]


@pytest.mark.parametrize("name", ["x" * 300 + ".png", "a\0.png", "\ud800.png", "gone.png"])
def test_a_name_that_no_file_has_costs_itself_alone(name, written, tmp_path):
    (tmp_path / "set.json").write_text(json.dumps(coco([name, NAME])))
    source = read_source(str(tmp_path / "set.json"), written)
    assert [item.name for item in source.items] == [NAME]
    assert [(each.image, each.why) for each in source.skipped] == [(name, "there is no such file")]


def test_a_pattern_names_files_from_its_fixed_part_and_a_folder_with_brackets_is_taken_as_it_is(tmp_path):
    write_images(tmp_path / "day [1]" / "b[2]", 2)
    write_images(tmp_path / "day 1", 1)
    assert names(tmp_path / "day [1]" / "b[2]" / "*.png") == ["000.png", "001.png"]
    assert names(tmp_path / "day [1]") == ["b[2]/000.png", "b[2]/001.png"]
    assert names(tmp_path / "day [0-9]/*.png") == ["day 1/000.png"]
    assert names(tmp_path / "**/000.png") == ["day 1/000.png", "day [1]/b[2]/000.png"]


def test_a_folder_is_searched_with_its_subfolders_and_other_files_are_counted_by_suffix(tmp_path):
    write_images(tmp_path / "b" / "c", 1)
    write_images(tmp_path, 2)
    for name in ("a.xml", "b/c.XML", "slide.svs", "clip.mp4", "README"):
        (tmp_path / name).touch()
    write_images(tmp_path / ".Trash-1000", 1)
    (tmp_path / "b/._000.png").touch()
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "same.png").symlink_to(tmp_path / "000.png")  # as DVC and git-annex link equal images to one file
    source = read_source(str(tmp_path))
    found = [(item.id, item.name) for item in source.items]
    assert found == [(1, "000.png"), (2, "001.png"), (3, "b/c/000.png"), (5, "same.png")]
    assert [(each.image, each.what, each.why) for each in source.left_out] == [
        ("(no suffix)", "1 file", "their suffix is not that of an image"),
        ("*.mp4", "1 file", "a video is a source of its own"),
        ("*.svs", "1 file", "large images are annotated with --large"),
        ("*.xml", "2 files", "their suffix is not that of an image"),
        (".*", "2 files", "hidden files are left out"),
    ]
    assert [(each.image, each.what) for each in source.skipped] == [("gone.jpg", "image"), ("link", "folder")]


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 are possible on Linux only")
def test_a_run_over_names_that_are_not_utf8(servers, tmp_path, capsys):
    write_images(tmp_path / "images", 1)[0].rename(tmp_path / "images" / LATIN)
    (tmp_path / "images" / "notes.xml").touch()
    (tmp_path / "list.txt").write_bytes(b"images/m\xfcller.png\n")
    (tmp_path / "set.json").write_text(json.dumps(coco([f"images/{LATIN}"])))
    clicks = [{"image": name, "points": [[5, 6]]} for name in (LATIN, f"images/{LATIN}")]
    (tmp_path / "clicks.json").write_text(json.dumps(clicks))
    for number, source in enumerate(("images", "list.txt", "set.json")):
        out = tmp_path / str(number)
        line = f"annotate {tmp_path}/{source} --with points --prompts {tmp_path}/clicks.json --out {out}"
        assert call(f"{line} --dry-run") == 0
        assert call(line) == 0
        written = json.loads((out / "coco.json").read_text())
        assert written["images"][0]["file_name"].endswith(LATIN)
        assert len(written["annotations"]) == 1
    left = lines_of(tmp_path / "0/skipped.jsonl")
    assert {"image": "*.xml", "what": "1 file", "why": "their suffix is not that of an image"} in left
    assert "0 errors, 1 skipped; left out: 1 file *.xml" in capsys.readouterr().err


IN_C = """
import sys
from pathlib import Path
from triton_sam.annotate.reading import read_clicks
from triton_sam.annotate.sources import read_source

home = Path(sys.argv[1])
for name, images in (("images", None), ("list.txt", home / "images"), ("set.json", home / "images")):
    source = read_source(str(home / name), images)
    print(ascii([item.name for item in source.items]), source.skipped)
    kept, _ = read_clicks(home / "clicks.csv", source).of(source.items[0], (40, 30))
    print([each.points for each in kept], len(source.items[0].content().read_bytes()) > 0)
"""


def test_a_locale_of_c_changes_nothing(written, tmp_path):
    home = tmp_path / "józef ü"
    home.mkdir()
    written.rename(home / "images")
    (home / "list.txt").write_text(NAME, "utf-8")
    (home / "set.json").write_text(json.dumps(coco([NAME])), "utf-8")
    (home / "clicks.csv").write_text(f"image;x;y\n{NAME};5,5;6\n", "utf-8-sig")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", IN_C, str(home)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.splitlines() == [f"{[NAME]!a} ()", "[((5.5, 6.0, 1),)] True"] * 3, done.stderr


def test_a_data_set_with_a_manifest_and_shards_is_not_the_result_of_a_run(tmp_path):
    for name in ("manifest.json", "shards/0.tar", "images/a.jpg"):
        file = tmp_path / "train" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    assert names(tmp_path) == ["train/images/a.jpg"]
