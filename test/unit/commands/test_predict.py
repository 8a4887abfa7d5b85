"""`predict`: images by patterns and URLs, the logits of an earlier call, and words."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from support.commands import call
from support.file_server import Server

from triton_sam.client.concepts import FoundInstances
from triton_sam.client.server_models import ServerModels
from triton_sam.commands import _server
from triton_sam.commands._predict_files import read_logits, read_sources
from triton_sam.concepts.instances import Instance
from triton_sam.errors import ConfigurationError, ImageError, PromptError


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "street.png"
    Image.new("RGB", (64, 48)).save(path)
    return path


class Client:
    """A client that finds two buses and a cat, or nothing."""

    calls: list
    finds = True

    def __init__(self, url, family, **options) -> None:
        type(self).family = family

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def models(self) -> ServerModels:
        return ServerModels({"sam3": "1"}, {"sam3": ("sam3",)}, frozenset())

    def find(self, text, **arguments):
        self.calls.append((text, arguments))
        mask = np.zeros((48, 64), bool)
        mask[3:9, 5:20] = True
        found = [
            Instance(mask, 0.9, None, index, place, (5, 3, 20, 9), label=label)
            for label, index, place in (("bus", 0, 0), ("bus", 0, 1), ("cat", 1, 0))
        ]
        return FoundInstances(found if self.finds else [], None)


@pytest.fixture
def client(monkeypatch):
    kind = type("Fresh", (Client,), {"calls": []})
    monkeypatch.setattr(_server, "SAM2TritonClient", kind)
    return kind


def test_instances_become_files_with_labels(client, image, tmp_path, capsys):
    out, drawn = tmp_path / "found.json", tmp_path / "overlay.png"
    assert call(f"predict {image} --text bus --text cat --out {out} --overlay {drawn} --limit 2") == 0
    ((text, given),) = client.calls
    assert (client.family, text, given["limit"], given["boxes"]) == ("sam3", ["bus", "cat"], 2, None)
    document = json.loads(out.read_text())
    assert document["categories"] == [{"id": 1, "name": "bus"}, {"id": 2, "name": "cat"}]
    assert [each["category_id"] for each in document["annotations"]] == [1, 1, 2]
    with Image.open(drawn) as opened:
        assert opened.size == (64, 48)
    assert capsys.readouterr().out.splitlines()[1] == "bus 1: score 0.900, 90 pixels, box (5, 3, 20, 9)"


@pytest.mark.parametrize("form", ["png", "cutout"])
def test_standard_output_takes_exactly_one_file(client, image, form, capfdbinary):
    line = f"predict {image} --text bus --out - --format {form}"
    assert call(line) == 1
    assert b"--out - takes one file, not 3: name a file, or use --format coco" in capfdbinary.readouterr().err
    client.finds = False
    assert call(line) == 1
    printed = capfdbinary.readouterr()
    assert b"there is no mask to write to standard output: nothing was found" in printed.err
    assert printed.out == b""


@pytest.mark.parametrize(("form", "empty"), [("rle", []), ("coco", {"annotations": []}), ("geojson", {"features": []})])
def test_nothing_is_a_document_too(client, image, form, empty, capfdbinary):
    client.finds = False
    assert call(f"predict {image} --text bus --out - --format {form}") == 0
    printed = capfdbinary.readouterr()
    assert b"no instance was found" in printed.err
    document = json.loads(printed.out)
    assert document == empty if form == "rle" else empty.items() <= document.items()


def test_masks_of_instances_are_numbered_and_never_overwrite_an_image(client, image, tmp_path, capsys):
    other = image.rename(tmp_path / "street_1.png")
    assert call(f"predict {other} --text bus --out {tmp_path}/mask.png -q") == 0
    assert sorted(path.name for path in tmp_path.glob("mask*.png")) == ["mask.png", "mask_1.png", "mask_2.png"]
    content = other.read_bytes()
    assert call(f"predict {other} --text bus --out {image}") == 1
    assert f"{other} is an image of this command" in capsys.readouterr().err
    assert (other.read_bytes(), image.exists()) == (content, False)


def test_examples_and_what_is_not_meant(client, image, capsys):
    assert call(f"predict {image} --example 1,2,9,9 --not-example 20,20,30,30 --threshold 0.1 --json") == 0
    ((text, given),) = client.calls
    assert (text, given["box_labels"], given["threshold"]) == (None, [1, 0], 0.1)
    assert given["boxes"] == [[1, 2, 9, 9], [20, 20, 30, 30]]
    objects = json.loads(capsys.readouterr().out)["objects"]
    assert [each["label"] for each in objects] == ["bus", "bus", "cat"]
    assert {"rle", "score", "box"} <= set(objects[0])


def test_example_masks_of_another_image(client, image, tmp_path, capsys):
    shown, other, mask = tmp_path / "shown.png", tmp_path / "other.png", np.zeros((30, 40), np.uint8)
    Image.new("RGB", (40, 30)).save(shown)
    mask[5:9, 10:20] = 255
    Image.fromarray(mask).save(other)
    line = f"predict {image} --text bus --example-mask {other} --not-example-mask {other} -q"
    assert call(f"{line} --example-image {shown}") == 0
    ((_, given),) = client.calls
    assert (given["example"], given["mask_labels"]) == (shown, [1, 0])
    assert [each.sum() for each in given["masks"]] == [40, 40]
    assert call(line) == 1
    said = capsys.readouterr().err
    assert "the example masks have 40 x 30 pixels, and the image that they belong to has 64 x 48" in said
    assert len(client.calls) == 1


def test_logits_are_read_as_float32(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 1, 4, 4), np.float64))
    assert read_logits(tmp_path / "x.npy").dtype == np.float32
    with pytest.raises(PromptError, match="No such file or directory"):
        read_logits(tmp_path / "none.npy")
    np.savez(tmp_path / "two.npz", np.ones(3))
    with pytest.raises(PromptError, match="holds no logits"):
        read_logits(tmp_path / "two.npz")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x93NUMPY", b"PK\x03\x04xx"),  # zipfile.BadZipFile
        (b"(1, 1, 4, 4), }", b"(1, 1, 4, (4), "),  # tokenize.TokenError
        (b"(1, 1, 4, 4)", b"(9**9, 9**9)"),
        (b"4, 4), }       ", b"4, 4000000000),}"),  # MemoryError
        (b"\x93NUMPY", b"number"),
    ],
)
def test_a_damaged_file_of_logits_is_one_clear_error(old, new, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((1, 1, 4, 4), np.float32))
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    words = re.escape(f"cannot read the logits in {path}: it is not an .npy file of numbers")
    with pytest.raises(PromptError, match=words):
        read_logits(path)


def test_a_pattern_in_a_folder_with_brackets_finds_its_files(tmp_path):
    folder = tmp_path / "day [1]"
    folder.mkdir()
    for name in ("a.png", "b [2].png"):
        (folder / name).touch()
    found = read_sources([str(folder / "*.png")])
    assert [source.file_name for source in found] == ["a.png", "b [2].png"]
    assert [source.file_name for source in read_sources([str(folder / "b [2].png")])] == ["b [2].png"]
    with pytest.raises(ImageError, match=r"no file fits this pattern. For a \[ in the name of a file, write \[\[\]"):
        read_sources([str(folder / "c [2]*.png")])


def test_a_url_is_an_image_with_the_name_of_its_file(images):
    """test/unit/download/test_images.py has the failures of such a download."""
    with Server() as server, server.running():
        server.content, server.where = (images / "shapes.jpg").read_bytes(), "/a/shapes.jpg?size=large"
        url = server.url + server.where
        [source] = read_sources([url])
        assert (source.content, source.file_name, source.stem) == (server.content, "shapes.jpg", "shapes")
        with pytest.raises(ConfigurationError, match="named twice"):
            read_sources([url, url])


def test_a_file_url_is_the_path_that_it_names(tmp_path):
    spaced = tmp_path / "two words.jpg"
    spaced.touch()
    [source] = read_sources([spaced.as_uri()])
    assert (source.name, source.content) == (str(spaced), spaced)  # the name is what --out must not overwrite
    with pytest.raises(ConfigurationError, match="named twice"):
        read_sources([spaced.as_uri(), str(spaced)])
    with pytest.raises(ImageError, match="another machine"):
        read_sources(["file://elsewhere/photo.jpg"])
