"""`predict --text`: options that fit each other, files, tables, and the family that is chosen."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_sam.cli import main
from triton_sam.client.concepts import FoundInstances
from triton_sam.client.server_models import ServerModels
from triton_sam.commands import _server, predict
from triton_sam.commands._predict_files import Source
from triton_sam.concepts.instances import Instance
from triton_sam.masks.segment import Segment


@pytest.fixture
def image(tmp_path: Path) -> Path:
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
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    kind = type("Fresh", (Client,), {"calls": []})
    monkeypatch.setattr(_server, "SAM2TritonClient", kind)
    return kind


def test_instances_become_files_with_labels(client, image: Path, tmp_path: Path, capsys) -> None:
    out, drawn = tmp_path / "found.json", tmp_path / "overlay.png"
    arguments = ["--text", "bus", "--text", "cat", "--out", str(out), "--overlay", str(drawn), "--limit", "2"]
    assert main(["predict", str(image), *arguments]) == 0
    ((text, given),) = client.calls
    assert (client.family, text, given["limit"], given["boxes"]) == ("sam3", ["bus", "cat"], 2, None)
    document = json.loads(out.read_text())
    assert document["categories"] == [{"id": 1, "name": "bus"}, {"id": 2, "name": "cat"}]
    assert [each["category_id"] for each in document["annotations"]] == [1, 1, 2]
    with Image.open(drawn) as opened:
        assert opened.size == (64, 48)
    assert capsys.readouterr().out.splitlines()[1] == "bus 1: score 0.900, 90 pixels, box (5, 3, 20, 9)"


@pytest.mark.parametrize("form", ["png", "cutout"])
def test_standard_output_takes_exactly_one_file(client, image: Path, form: str, capfdbinary) -> None:
    command = ["predict", str(image), "--text", "bus", "--out", "-", "--format", form]
    assert main(command) == 1
    assert b"--out - takes one file, not 3: name a file, or use --format coco" in capfdbinary.readouterr().err
    client.finds = False
    assert main(command) == 1
    printed = capfdbinary.readouterr()
    assert b"there is no mask to write to standard output: nothing was found" in printed.err
    assert printed.out == b""


@pytest.mark.parametrize(("form", "empty"), [("rle", []), ("coco", {"annotations": []}), ("geojson", {"features": []})])
def test_nothing_is_a_document_too(client, image: Path, form: str, empty, capfdbinary) -> None:
    client.finds = False
    assert main(["predict", str(image), "--text", "bus", "--out", "-", "--format", form]) == 0
    printed = capfdbinary.readouterr()
    assert b"no instance was found" in printed.err
    document = json.loads(printed.out)
    assert document == empty if form == "rle" else empty.items() <= document.items()


def test_numbered_files_never_overwrite_an_image(client, tmp_path: Path, capsys) -> None:
    image, out = tmp_path / "street_1.png", tmp_path / "street.png"
    Image.new("RGB", (64, 48)).save(image)
    before = image.read_bytes()
    assert main(["predict", str(image), "--text", "bus", "--out", str(out)]) == 1
    assert f"{image} is an image of this command" in capsys.readouterr().err
    assert (image.read_bytes(), out.exists()) == (before, False)


def test_examples_and_what_is_not_meant(client, image: Path, capsys) -> None:
    boxes = ["--example", "1,2,9,9", "--not-example", "20,20,30,30", "--threshold", "0.1"]
    assert main(["predict", str(image), *boxes, "--json"]) == 0
    ((text, given),) = client.calls
    assert (text, given["box_labels"], given["threshold"]) == (None, [1, 0], 0.1)
    assert given["boxes"] == [[1, 2, 9, 9], [20, 20, 30, 30]]
    objects = json.loads(capsys.readouterr().out)["objects"]
    assert [each["label"] for each in objects] == ["bus", "bus", "cat"]
    assert {"rle", "score", "box"} <= set(objects[0])


def test_example_masks_of_another_image(client, image: Path, tmp_path: Path, capsys) -> None:
    shown, other, mask = tmp_path / "shown.png", tmp_path / "other.png", np.zeros((30, 40), np.uint8)
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(shown)
    mask[5:9, 10:20] = 255
    Image.fromarray(mask).save(other)
    arguments = ["--text", "bus", "--example-mask", str(other), "--not-example-mask", str(other), "-q"]
    assert main(["predict", str(image), *arguments, "--example-image", str(shown)]) == 0
    ((_, given),) = client.calls
    assert (given["example"], given["mask_labels"]) == (shown, [1, 0])
    assert [each.sum() for each in given["masks"]] == [40, 40]
    assert main(["predict", str(image), *arguments]) == 1
    assert "the example masks have 40 x 30 pixels, and the image that they belong to has 64 x 48" in (
        capsys.readouterr().err
    )
    assert len(client.calls) == 1


def test_masks_of_instances_are_numbered(client, image: Path, tmp_path: Path) -> None:
    assert main(["predict", str(image), "--text", "bus", "--out", str(tmp_path / "mask.png"), "-q"]) == 0
    assert sorted(path.name for path in tmp_path.glob("mask*.png")) == ["mask.png", "mask_1.png", "mask_2.png"]


def test_an_empty_mask_has_no_box_in_the_table(capsys) -> None:
    empty = Segment(np.zeros((4, 4), bool), 0.25, None)
    predict._print_table(argparse.Namespace(all_candidates=False), [(Source("x.jpg", b""), [empty])])
    assert capsys.readouterr().out == "object 0: score 0.250, 0 pixels, box -\n"
