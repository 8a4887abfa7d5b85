"""`predict` and `everything`: images by patterns and URLs, logits of an earlier call, words, files, options."""

import json
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.commands import call
from support.file_server import Server
from support.in_process import ImageServer, discs
from support.tracked import DiscServer

from triton_sam import SAM2TritonClient
from triton_sam.commands import everything as everything_command
from triton_sam.commands import predict as predict_command
from triton_sam.commands._predict_files import read_logits, read_sources
from triton_sam.errors import ConfigurationError, ImageError, PromptError
from triton_sam.everything.search import FoundObjects
from triton_sam.masks.cleanup import Cleanup
from triton_sam.masks.label_map import label_map_of
from triton_sam.masks.rle import rle_to_mask
from triton_sam.wire import contract


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "street.png"
    Image.new("RGB", (64, 48)).save(path)
    return path


BUS, CAT = ("bus", 15.0, 12.0, 0.9), ("cat", 40.0, 30.0, 0.9)


@pytest.fixture
def disc_server():
    """Two buses, a cat, and an instance of examples."""
    with DiscServer({0: [BUS, ("bus", 40.0, 12.0, 0.8), CAT, ("visual", 15.0, 30.0, 0.9)]}) as disc_server:
        yield disc_server


def predict(server: DiscServer, line: str) -> int:
    return call(f"predict --url {server.url} {line}")


def query_of(server: DiscServer) -> dict[str, Any]:
    query: dict[str, Any] = json.loads(server.requests[-1].inputs[contract.FIND][0])
    return query


def test_instances_become_files_with_labels(disc_server, image, tmp_path, capsys):
    out, drawn = tmp_path / "found.json", tmp_path / "overlay.png"
    assert predict(disc_server, f"{image} --text bus --text cat --out {out} --overlay {drawn} --limit 2") == 0
    query = query_of(disc_server)
    assert (query["text"], query["limit"], query["boxes"]) == (["bus", "cat"], 2, [])
    document = json.loads(out.read_text())
    assert document["categories"] == [{"id": 1, "name": "bus"}, {"id": 2, "name": "cat"}]
    assert [each["category_id"] for each in document["annotations"]] == [1, 1, 2]
    with Image.open(drawn) as opened:
        assert opened.size == (64, 48)
    assert capsys.readouterr().out.splitlines()[1] == "bus 1: score 0.800, 249 pixels, box (32, 4, 49, 21)"


@pytest.mark.parametrize("form", ["png", "cutout"])
def test_standard_output_takes_exactly_one_file(disc_server, image, form, tmp_path, capfdbinary):
    drawn = tmp_path / "overlay.png"
    line = f"{image} --text bus --out - --format {form} --overlay {drawn}"
    assert predict(disc_server, line) == 1
    assert b"--out - takes one file, not 2: name a file, or use --format coco" in capfdbinary.readouterr().err
    disc_server.scene.clear()
    assert predict(disc_server, line) == 1
    printed = capfdbinary.readouterr()
    assert b"there is no mask to write to standard output: nothing was found" in printed.err
    assert (printed.out, drawn.exists()) == (b"", False)


@pytest.mark.parametrize(("form", "empty"), [("rle", []), ("coco", {"annotations": []}), ("geojson", {"features": []})])
def test_nothing_is_a_document_too(disc_server, image, form, empty, capfdbinary):
    disc_server.scene.clear()
    assert predict(disc_server, f"{image} --text bus --out - --format {form}") == 0
    printed = capfdbinary.readouterr()
    assert b"no instance was found" in printed.err
    document = json.loads(printed.out)
    assert document == empty if form == "rle" else empty.items() <= document.items()


def test_masks_of_instances_are_numbered_and_never_overwrite_an_image(disc_server, image, tmp_path, capsys):
    other = image.rename(tmp_path / "street_1.png")
    assert predict(disc_server, f"{other} --text bus --out {tmp_path}/mask.png -q") == 0
    assert sorted(path.name for path in tmp_path.glob("mask*.png")) == ["mask.png", "mask_1.png"]
    content = other.read_bytes()
    assert predict(disc_server, f"{other} --text bus --out {image}") == 1
    assert f"{other} is an image of this command" in capsys.readouterr().err
    assert (other.read_bytes(), image.exists()) == (content, False)


def test_examples_and_what_is_not_meant(disc_server, image, capsys):
    line = f"{image} --example 1,2,9,9 --not-example 20,20,30,30 --threshold 0.1 --json"
    assert predict(disc_server, line) == 0
    query = query_of(disc_server)
    assert (query["text"], query["box_labels"], query["threshold"]) == ([], [1, 0], 0.1)
    assert query["boxes"] == [[1, 2, 9, 9], [20, 20, 30, 30]]
    (found,) = json.loads(capsys.readouterr().out)["objects"]
    assert {"rle", "score", "box"} <= set(found)
    assert predict(disc_server, f"{image} --text cat --json") == 0
    (found,) = json.loads(capsys.readouterr().out)["objects"]
    assert found["label"] == "cat"


def test_example_masks_of_another_image(disc_server, image, tmp_path, capsys):
    shown, other, mask = tmp_path / "shown.png", tmp_path / "other.png", np.zeros((30, 40), np.uint8)
    Image.new("RGB", (40, 30)).save(shown)
    mask[5:9, 10:20] = 255
    Image.fromarray(mask).save(other)
    line = f"{image} --text bus --example-mask {other} --not-example-mask {other} -q"
    assert predict(disc_server, f"{line} --example-image {shown}") == 0
    sent = [request.inputs[contract.IMAGE][0] for request in disc_server.requests if contract.IMAGE in request.inputs]
    assert shown.read_bytes() in sent
    query = query_of(disc_server)
    assert (query["boxes"], query["box_labels"]) == ([[10, 5, 20, 9]] * 2, [1, 0])
    requests = len(disc_server.requests)
    assert predict(disc_server, line) == 1
    said = capsys.readouterr().err
    assert "the example masks have 40 x 30 pixels, and the image that they belong to has 64 x 48" in said
    assert len(disc_server.requests) == requests


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
    """test/unit/download/test_downloads.py has the failures of such a download."""
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


SIZE = (80, 60)
LOW: dict[str, Any] = {"points_per_side": 2, "pred_iou_thresh": 0.2, "stability_score_thresh": 0.0}
OPTIONS = ["--points-per-side", "2", "--pred-iou-thresh", "0.2", "--stability-score-thresh", "0"]


@pytest.fixture
def image_server():
    with ImageServer() as image_server:
        yield image_server


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.new("RGB", SIZE, (90, 90, 90)).save(path)
    return path


def everything(server: ImageServer, *options: object) -> int:
    return call(f"everything --url {server.url}", *options)


def expected(server: ImageServer, photo: Path, **parameters: Any) -> FoundObjects:
    with SAM2TritonClient(server.url) as client:
        return client.everything(photo, **{**LOW, **parameters})


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened)


def parameters_of(server: ImageServer) -> dict[str, Any]:
    """Return the parameters of the first part of a search."""
    part = next(each.inputs for each in server.requests if contract.EVERYTHING_PART in each.inputs)
    parameters: dict[str, Any] = json.loads(part[contract.EVERYTHING_PART][0])["parameters"]
    return parameters


def test_lines_and_files(image_server, photo, tmp_path, capsys):
    overlay, labels, coco = tmp_path / "overlay.png", tmp_path / "labels.png", tmp_path / "coco.json"
    files = ["--overlay", overlay, "--label-image", labels, "--coco", coco]
    assert everything(image_server, photo, *OPTIONS, *files, "-q") == 0
    found = expected(image_server, photo)
    assert len(found) > 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["object"], line["area"], line["point_coords"]) for line in lines] == [
        (number, each.area, [list(each.point)]) for number, each in enumerate(found, 1)
    ]
    for line, each in zip(lines, found, strict=True):
        x1, y1, x2, y2 = each.box or ()
        assert line["bbox"] == [x1, y1, x2 - x1, y2 - y1]
        assert line["predicted_iou"] == pytest.approx(each.score, abs=1e-5)
        np.testing.assert_array_equal(rle_to_mask(line["segmentation"]), each.mask)
    np.testing.assert_array_equal(pixels(labels), label_map_of([each.mask for each in found]))
    assert pixels(overlay).shape == (60, 80, 3)
    assert len(np.unique(pixels(overlay).reshape(-1, 3), axis=0)) > len(found)
    document = json.loads(coco.read_text())
    assert document["images"] == [{"id": 1, "file_name": "photo.png", "width": 80, "height": 60}]
    assert [(each["id"], each["image_id"], each["segmentation"]) for each in document["annotations"]] == [
        (number, 1, line["segmentation"]) for number, line in enumerate(lines, 1)
    ]


def test_crops_have_their_corner_and_size(image_server, photo, capsys):
    assert everything(image_server, photo, *OPTIONS, "--crop-n-layers", 1, "-q") == 0
    crops = [json.loads(line)["crop_box"] for line in capsys.readouterr().out.splitlines()]
    found = [each.crop_box for each in expected(image_server, photo, crop_n_layers=1)]
    assert crops == [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in found]
    assert [30, 20, 50, 40] in crops


def test_an_empty_mask_is_left_out_of_coco_and_counted(photo, tmp_path, capsys):
    def empty(model: str, inputs: Any, wanted: Any) -> Any:
        tensors = discs(model, inputs, wanted)
        return {name: array - 99 if array.ndim == 4 and "masks" in name else array for name, array in tensors.items()}

    target = tmp_path / "coco.json"
    with ImageServer(empty) as server:
        assert everything(server, photo, *OPTIONS[2:], "--points-per-side", 1, "--single-mask", "--coco", target) == 0
    assert f"{target}: 1 empty mask is left out" in capsys.readouterr().err
    assert json.loads(target.read_text())["annotations"] == []


def test_only_given_parameters_are_sent(image_server, photo, capsys):
    assert everything(image_server, photo, "--points-per-side", 1, "--pred-iou-thresh", 0.5, "--single-mask", "-q") == 0
    sent = parameters_of(image_server)
    assert (sent["points_per_side"], sent["pred_iou_thresh"], sent["multimask_output"]) == (1, 0.5, False)
    assert "stability_score_thresh" not in sent


def test_masks_are_cleaned_on_demand(image_server, photo, capsys):
    options = ["--max-hole-area", 4, "--max-sprinkle-area", 5, "--smooth", 2, "--keep-clicked"]
    assert everything(image_server, photo, *OPTIONS, *options, "--min-mask-region-area", 7, "-q") == 0
    cleanup = Cleanup(max_hole_area=4, max_sprinkle_area=5, smooth=2, keep_clicked=True)
    assert parameters_of(image_server)["cleanup"] == cleanup.to_json()
    found = expected(image_server, photo, cleanup=cleanup, min_mask_region_area=7)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["segmentation"] for line in lines] == [each.to_rle() for each in found]


def test_several_images_have_files_of_their_own(image_server, photo, tmp_path, capsys):
    other = tmp_path / "other.png"
    other.write_bytes(photo.read_bytes())
    files = ["--overlay", tmp_path / "drawn.png", "--out", tmp_path / "lines.jsonl", "-q"]
    assert everything(image_server, photo, other, *OPTIONS, *files) == 0
    assert (tmp_path / "drawn_photo.png").exists()
    assert (tmp_path / "drawn_other.png").exists()
    lines = [json.loads(line)["image"] for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert lines == [str(photo)] * (len(lines) // 2) + [str(other)] * (len(lines) // 2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("module", "function", "line"),
    [
        (everything_command, "_segment", "everything --points-per-side 2 --pred-iou-thresh 0.5"),
        (everything_command, "_segment", "everything --points-per-side 2 --pred-iou-thresh 0.5 --coco objects.json"),
        (predict_command, "_ask", "predict --point 9,9 --out mask.png --overlay drawn.png"),
        (predict_command, "_ask", "predict --point 9,9 --out masks.json --multimask --json"),
        (predict_command, "_ask", "predict --point 9,9"),
    ],
)
def test_masks_of_earlier_images_are_freed(module, function, line, image_server, photo, tmp_path, monkeypatch, capsys):
    """Each takes a byte per pixel, and an image has many: the memory was full after a few photographs."""
    monkeypatch.chdir(tmp_path)
    masks, alive, segment = [], [], getattr(module, function)

    def segment_and_count(*arguments):
        alive.append(sum(each() is not None for each in masks))
        found = segment(*arguments)
        masks.extend(weakref.ref(each.mask) for each in getattr(found, "segments", found))
        return found

    monkeypatch.setattr(module, function, segment_and_count)
    names = [tmp_path / f"{number}.png" for number in range(4)]
    for name in names:
        name.write_bytes(photo.read_bytes())
    assert call(f"{line} --url {image_server.url} -q", *names) == 0
    assert len(capsys.readouterr().out.splitlines()) in (4, len(masks))
    assert max(alive) <= len(masks) / 4  # those of the last image


def test_images_of_the_same_name_keep_their_folders_in_coco(image_server, photo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "photo.png").write_bytes(photo.read_bytes())
    assert everything(image_server, "[ab]/*.png", "photo.png", *OPTIONS, "--coco", "coco.json", "-q") == 0
    names = [each["file_name"] for each in json.loads((tmp_path / "coco.json").read_text())["images"]]
    assert names == ["a/photo.png", "b/photo.png", "photo.png"]


def test_an_empty_answer_says_why(image_server, photo, tmp_path, capsys):
    labels, overlay = tmp_path / "labels.png", tmp_path / "overlay.png"
    files = ["--label-image", labels, "--overlay", overlay]
    assert everything(image_server, photo, "--points-per-side", 2, "--pred-iou-thresh", 1, *files) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "no mask is left. Of 12 masks, pred_iou_thresh dropped 12" in told.err
    assert not pixels(labels).any()
    assert pixels(overlay).shape == (60, 80, 3)


def test_an_interrupt_leaves_no_file(image_server, photo, tmp_path, capsys):
    image_server.failures = [KeyboardInterrupt()]
    assert everything(image_server, photo, *OPTIONS, "--overlay", tmp_path / "overlay.png", "-q") == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.png"]
    assert capsys.readouterr().err.strip().endswith("interrupted")
