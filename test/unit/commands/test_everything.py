"""The command `everything` with a client that answers from a list: files, lines, options, errors."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from support.found_masks import found_mask

from triton_sam.cli import main
from triton_sam.commands import everything
from triton_sam.everything.parameters import Parameters
from triton_sam.everything.parts import FoundMask
from triton_sam.everything.search import Found, Step
from triton_sam.masks.cleanup import Cleanup
from triton_sam.masks.rle import rle_to_mask

SIZE = (80, 60)


class FakeClient:
    """Finds the same rectangles in every image."""

    asked: list
    answer: Found
    error: type[BaseException] | None = None

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def rectangle(x1: int, y1: int, x2: int, y2: int) -> FoundMask:
    mask = np.zeros(SIZE[::-1], bool)
    mask[y1:y2, x1:x2] = True
    return found_mask(mask, (x1 + 0.5, y1 + 0.5))


def find(client, image, parameters, progress):
    """Answer as find_everything does."""
    client.asked.append((image, parameters))
    progress(Step(1, 2, None, None))
    if client.error is not None:
        raise client.error
    progress(Step(2, 2, None, None))
    return client.answer


def pixels(path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened)


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(FakeClient, "asked", [], raising=False)
    monkeypatch.setattr(
        FakeClient, "answer", Found([rectangle(5, 5, 50, 40), rectangle(10, 10, 20, 20)]), raising=False
    )
    monkeypatch.setattr(everything, "SAM2TritonClient", FakeClient)
    monkeypatch.setattr(everything, "find_everything", find)
    return FakeClient


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "photo.png"
    Image.new("RGB", SIZE, (90, 90, 90)).save(path)
    return path


def test_lines_and_files(client, image, tmp_path, capsys):
    overlay, labels, coco = tmp_path / "overlay.png", tmp_path / "labels.png", tmp_path / "coco.json"
    files = ["--overlay", str(overlay), "--label-image", str(labels), "--coco", str(coco)]
    assert main(["everything", str(image), *files, "-q"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["object"], line["bbox"], line["area"]) for line in lines] == [
        (1, [5, 5, 45, 35], 45 * 35),
        (2, [10, 10, 10, 10], 100),
    ]
    assert np.array_equal(rle_to_mask(lines[1]["segmentation"]), client.answer.objects[1].mask)
    numbers = pixels(labels)
    assert (numbers[0, 0], numbers[6, 6], numbers[15, 15]) == (0, 1, 2)
    assert pixels(overlay).shape == (60, 80, 3)
    document = json.loads(coco.read_text())
    assert document["images"] == [{"id": 1, "file_name": "photo.png", "width": 80, "height": 60}]
    assert [(each["id"], each["image_id"], each["bbox"]) for each in document["annotations"]] == [
        (1, 1, [5, 5, 45, 35]),
        (2, 1, [10, 10, 10, 10]),
    ]


def test_coco_files_are_readable(client, image, tmp_path, capsys):
    coco = pytest.importorskip("pycocotools.coco")
    target = tmp_path / "coco.json"
    assert main(["everything", str(image), "--coco", str(target), "-q"]) == 0
    capsys.readouterr()
    read = coco.COCO(str(target))
    capsys.readouterr()
    assert np.array_equal(read.annToMask(read.anns[2]), client.answer.objects[1].mask)


def test_an_empty_mask_is_left_out_of_coco_and_counted(client, image, tmp_path, capsys):
    client.answer = Found([rectangle(5, 5, 50, 40), rectangle(0, 0, 0, 0)])
    target = tmp_path / "coco.json"
    assert main(["everything", str(image), "--coco", str(target)]) == 0
    assert f"{target}: 1 empty mask is left out" in capsys.readouterr().err
    assert len(json.loads(target.read_text())["annotations"]) == 1


def test_only_given_parameters_are_sent(client, image, capsys):
    options = ["--points-per-side", "16", "--pred-iou-thresh", "0.5", "--single-mask"]
    assert main(["everything", str(image), *options, "-q"]) == 0
    assert client.asked[0][1] == Parameters(16, 0.5, multimask_output=False)
    assert client.asked[0][1].left_open == {"stability_score_thresh"}


def test_masks_are_cleaned_on_demand(client, image, capsys):
    options = ["--max-hole-area", "4", "--max-sprinkle-area", "5", "--smooth", "2", "--keep-clicked"]
    assert main(["everything", str(image), *options, "--min-mask-region-area", "7", "-q"]) == 0
    cleanup = Cleanup(max_hole_area=4, max_sprinkle_area=5, smooth=2, keep_clicked=True)
    assert client.asked[0][1] == Parameters(min_mask_region_area=7, cleanup=cleanup)


def test_several_images_have_files_of_their_own(client, image, tmp_path, capsys):
    other = tmp_path / "other.png"
    other.write_bytes(image.read_bytes())
    arguments = ["--overlay", str(tmp_path / "drawn.png"), "--out", str(tmp_path / "lines.jsonl"), "-q"]
    assert main(["everything", str(image), str(other), *arguments]) == 0
    assert (tmp_path / "drawn_photo.png").exists()
    assert (tmp_path / "drawn_other.png").exists()
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == 4
    assert capsys.readouterr().out == ""


def test_an_empty_answer_says_why(client, image, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(FakeClient, "answer", Found(candidates=12, dropped=Counter(pred_iou_thresh=12)))
    labels, overlay = tmp_path / "labels.png", tmp_path / "overlay.png"
    assert main(["everything", str(image), "--label-image", str(labels), "--overlay", str(overlay)]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "no mask is left. Of 12 masks, pred_iou_thresh dropped 12" in told.err
    assert not pixels(labels).any()
    assert pixels(overlay).shape == (60, 80, 3)


def test_an_interrupt_leaves_no_file(client, image, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(FakeClient, "error", KeyboardInterrupt)
    assert main(["everything", str(image), "--overlay", str(tmp_path / "overlay.png"), "-q"]) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.png"]
    assert capsys.readouterr().err.strip().endswith("interrupted")
