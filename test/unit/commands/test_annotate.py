"""The command `annotate` with clients whose masks are the boxes themselves, and progress while a command works."""

import io
import json
import re
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.annotated import BOX, FakeClient, coco, files_of, lines_of, servers, write_data_set, write_images
from support.commands import call
from support.conditions import wait_until

from triton_sam.annotate import job
from triton_sam.annotate.folder import SHARD_SIZE, ImageRecord
from triton_sam.annotate.sources import ImageItem
from triton_sam.commands import _progress, everything
from triton_sam.errors import ServerBusyError, ServerUnreachableError
from triton_sam.everything.parameters import Parameters
from triton_sam.everything.search import Found, SearchProgress
from triton_sam.families import get_family

__all__ = ["servers"]

COUNT = 40


def annotate(source: Path, out: Path, *options: str, task: str = "boxes") -> int:
    return call(f"annotate {source} --with {task} --out {out} -q", *options)


def documents(folder: Path) -> dict:
    return json.loads((folder / "coco.json").read_text())


def test_boxes_become_masks(servers, tmp_path):
    assert annotate(write_data_set(tmp_path / "in", COUNT), tmp_path / "out") == 0
    found = documents(tmp_path / "out")
    assert [each["bbox"] for each in found["annotations"]] == [BOX] * COUNT
    assert [each["file_name"] for each in found["images"]] == [f"{number:03}.png" for number in range(COUNT)]
    assert found["categories"] == [{"id": 7, "name": "cat"}]
    assert servers.options["busy"] == "wait"
    assert (tmp_path / "out/errors.jsonl").read_text() == (tmp_path / "out/skipped.jsonl").read_text() == ""


def test_all_boxes_of_an_image_become_masks_in_requests_of_sixteen(servers, tmp_path):
    boxes = [(1, [number, 1, 5, 5 + number % 20]) for number in range(35)]
    assert annotate(write_data_set(tmp_path, 1, boxes), tmp_path / "out") == 0
    assert [len(each["box"]) for each in servers.prompts] == [16, 16, 3]
    assert [each["bbox"] for each in documents(tmp_path / "out")["annotations"]] == [box for _, box in boxes]


def test_an_unusable_prompt_costs_itself_alone(servers, tmp_path, capsys):
    """Boxes that leave the image are clipped to it."""
    beyond = [[30, 20, 10.2, 5], [-0.2, -1e-9, 10.2, 5], [-1e300, 3, 2e300, 9]]
    unusable = [[40, 20, 5, 5], [-9, 3, 9, 5], [2, 3, 0, 5], [39.9999999, 3, 5, 5], [float("nan"), 3, 5, 5], [1, 2, 3]]
    data = write_data_set(tmp_path, 1, [(1, box) for box in [BOX, *beyond, *unusable]])
    assert annotate(data, tmp_path / "out", "--dry-run") == 0
    dry = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert annotate(data, tmp_path / "out") == 0
    clipped = [[30, 20, 10, 5], [0, 0, 10, 5], [0, 3, 40, 9]]
    assert [each["bbox"] for each in documents(tmp_path / "out")["annotations"]] == [BOX, *clipped]
    skipped = lines_of(tmp_path / "out/skipped.jsonl")
    assert skipped == dry
    assert {each["what"] for each in skipped} == {f"annotation {number}" for number in range(5, 11)}
    assert (tmp_path / "out/errors.jsonl").read_text() == ""


def test_a_run_in_parts_equals_one_run(servers, tmp_path):
    data = write_data_set(tmp_path / "in", COUNT)
    (tmp_path / "in/005.png").write_bytes(b"damaged")
    formats = ["--format", "coco", "voc", "labels"]
    assert annotate(data, tmp_path / "whole", *formats) == 0
    asked = servers.requests.total()
    for part in ("2/3", "0/3"):
        assert annotate(data, tmp_path / "parts", "--part", part) == 0
        assert not (tmp_path / "parts/coco.json").exists()
    for limit in ("7", "20"):
        assert annotate(data, tmp_path / "parts", "--limit", limit) == 0
    assert annotate(data, tmp_path / "parts", *formats) == 0
    assert servers.requests.total() == 2 * asked
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "parts")


def test_a_lost_server_is_one_error_and_the_same_command_goes_on(servers, tmp_path, capsys):
    data = write_data_set(tmp_path / "in", COUNT)
    assert annotate(data, tmp_path / "out", "--limit", str(SHARD_SIZE)) == 0
    servers.failures["default"] = ServerUnreachableError("nothing answers at default")
    assert annotate(data, tmp_path / "out") == 1
    assert capsys.readouterr().err.count("nothing answers at default") == 1
    servers.failures.clear()
    assert annotate(data, tmp_path / "out") == 0
    assert servers.requests.total() == COUNT


def test_the_results_of_a_run_inside_the_source_are_not_annotated(servers, tmp_path, capsys):
    write_images(tmp_path, 2)
    (tmp_path / "clicks.csv").write_text("image,x,y\n001.png,10,10\n")
    options = ["--prompts", str(tmp_path / "clicks.csv"), "--format"]
    for form in ("labels", "voc", "davis"):
        assert annotate(tmp_path, tmp_path / "new/out", *options, form, task="points") == 0
    assert servers.requests.total() == 1
    command = f"annotate {tmp_path} --with points --out {tmp_path}/new/out --dry-run"
    assert call(command, *options, "coco") == 0
    assert "left out: 1 file *.csv, folder new/out" in capsys.readouterr().err


def test_several_servers_share_the_images(servers, tmp_path):
    data = write_data_set(tmp_path / "in", COUNT)
    servers.failures["b"] = ServerUnreachableError("gone")
    urls = [option for url in ("a", "b", "c", "a") for option in ("--url", url)]
    assert annotate(data, tmp_path / "out", *urls) == 0
    assert servers.requests.keys() <= {"a", "c"}
    assert servers.requests.total() == COUNT
    assert len(documents(tmp_path / "out")["annotations"]) == COUNT


def test_points_and_masks(servers, tmp_path):
    write_images(tmp_path / "in", 2)
    (tmp_path / "clicks.csv").write_text("image,x,y,category\n001.png,10,10,dog\n")
    assert annotate(tmp_path / "in", tmp_path / "a", "--prompts", str(tmp_path / "clicks.csv"), task="points") == 0
    (entry,) = documents(tmp_path / "a")["annotations"]
    assert (entry["image_id"], entry["bbox"]) == (2, [9, 9, 3, 3])
    source = write_data_set(tmp_path / "set", 1)
    assert annotate(source, tmp_path / "boxes") == 0
    result = tmp_path / "boxes/coco.json"
    assert annotate(result, tmp_path / "b", "--images", str(tmp_path / "set"), task="masks") == 0
    assert documents(tmp_path / "b")["annotations"][0]["bbox"] == BOX
    assert servers.prompts[-1]["mask_input"].shape == (1, 1, 256, 256)


def test_a_dry_run_reports_and_writes_nothing(servers, tmp_path, capsys):
    write_images(tmp_path / "in", 2)
    (tmp_path / "in/001.png").write_bytes(b"damaged")
    document = coco(["000.png", "001.png", "gone.png"])
    document["images"][0]["width"] = 99
    (tmp_path / "in/set.json").write_text(json.dumps(document))
    line = f"annotate {tmp_path}/in/set.json --with boxes --out {tmp_path}/out --dry-run"
    assert call(line) == 1  # nothing could be annotated
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [each["image"] for each in lines] == ["000.png", "001.png", "gone.png", "gone.png"]
    assert lines[0]["error"] == "the file has 40 x 30 pixels, but the source says 99 x 30"
    assert printed.err.splitlines() == [
        "2 images, 0 prompts, 2 errors, 2 skipped",
        "triton-sam: error: nothing could be annotated",
    ]
    assert not (tmp_path / "out").exists()
    assert not servers.requests


def test_a_run_that_could_do_nothing_is_no_success(servers, tmp_path, capsys):
    """Wrong names, wrong prompts and damaged images, each alone; an image without prompts is a success."""
    write_images(tmp_path / "in", 2)
    (tmp_path / "in/bad.png").write_bytes(b"damaged")
    nothing = {
        "names": (["000.png", "gone.png"], [(2, BOX)]),
        "prompts": (["000.png"], [(1, [500, 500, 3, 3])]),
        "damaged": (["bad.png"], [(1, BOX)]),
    }
    for name, (images, boxes) in nothing.items():
        (tmp_path / f"in/{name}.json").write_text(json.dumps(coco(images, boxes)))
        assert annotate(tmp_path / f"in/{name}.json", tmp_path / name) == 1
        said = capsys.readouterr().err
        assert f"error: nothing could be annotated: {tmp_path / name / 'errors.jsonl'} and" in said
        assert (tmp_path / name / "skipped.jsonl").read_text() + (tmp_path / name / "errors.jsonl").read_text()
        assert documents(tmp_path / name)["annotations"] == []
    for number, boxes in enumerate(([], [(1, BOX), (1, [500, 500, 3, 3])])):
        (tmp_path / "in/some.json").write_text(json.dumps(coco(["000.png"], boxes)))
        assert annotate(tmp_path / "in/some.json", tmp_path / f"some{number}") == 0
    assert "error" not in capsys.readouterr().err


def test_what_files_cannot_hold_is_left_out_listed_and_counted(servers, tmp_path, capsys):
    """An empty mask, here that of a box below a pixel, and an image with the file of another one in some formats."""
    data = write_data_set(tmp_path, 1)
    (tmp_path / "000.jpg").write_bytes((tmp_path / "000.png").read_bytes())
    data.write_text(json.dumps(coco(["000.png", "000.jpg"], [(1, BOX), (1, [7.2, 7.2, 0.5, 0.5])])))
    assert call(f"annotate {data} --with boxes --format coco coco-polygons geojson yolo --out {tmp_path}/out") == 0
    assert "2 images, 1 objects, 0 errors, 3 skipped" in capsys.readouterr().err
    *images, empty = lines_of(tmp_path / "out/skipped.jsonl")
    assert empty == {"image": "000.png", "what": "annotation 2", "why": "its mask is empty"}
    assert {(each["image"], each["what"]) for each in images} == {
        ("000.jpg", f"image in {name}") for name in ("geojson", "yolo")
    }
    for name in ("coco", "coco_polygons"):
        assert len(json.loads((tmp_path / f"out/{name}.json").read_text())["annotations"]) == 1


def test_other_models_do_not_mix(servers, tmp_path, capsys):
    data = write_data_set(tmp_path / "in", 2)
    assert annotate(data, tmp_path / "out") == 0
    before = files_of(tmp_path / "out")
    servers.versions = {"sam2_encoder": "2", "sam2_decoder": "2"}
    assert annotate(data, tmp_path / "out") == 1
    assert "other models: results do not mix" in capsys.readouterr().err
    servers.versions = {}
    assert annotate(data, tmp_path / "other") == 1
    assert "the model sam2_encoder ready: set it up by `triton-sam setup sam2`" in capsys.readouterr().err
    assert files_of(tmp_path / "out") == before


def test_words_are_categories(servers, tmp_path, capsys):
    write_images(tmp_path / "in", 3)
    servers.versions = {"sam3_encoder": "1", "sam3_decoder": "1"}
    assert annotate(tmp_path / "in", tmp_path / "out", "--text", "bus", task="words") == 1
    message = "does not have the model sam3_concept_encoder ready: set it up by `triton-sam setup sam3 --concepts`"
    assert message in capsys.readouterr().err
    servers.versions |= dict.fromkeys((f"sam3_{role}" for role in get_family("sam3").concepts), "1")
    words = ["--text", "bus", "--text", "nothing", "--text", "cat", "--threshold", "0.2", "--max-instances", "2"]
    assert annotate(tmp_path / "in", tmp_path / "out", *words, task="words") == 0
    found = documents(tmp_path / "out")
    assert found["categories"] == [{"id": 1, "name": "bus"}, {"id": 2, "name": "nothing"}, {"id": 3, "name": "cat"}]
    assert [each["category_id"] for each in found["annotations"]] == [1, 1, 3, 3] * 3
    assert [each["bbox"] for each in found["annotations"]] == [BOX] * 12
    assert servers.prompts[0] == {"texts": ["bus", "nothing", "cat"], "threshold": 0.2, "limit": 2}
    assert annotate(tmp_path / "in", tmp_path / "out", *words, task="words") == 0
    assert servers.requests.total() == 3
    assert annotate(tmp_path / "in", tmp_path / "out", "--text", "bus", task="words") == 1  # other words, other folder


class Bar:
    """A progress bar that records its calls."""

    def __init__(self) -> None:
        self.moves: list[float] = []
        self.errors = 0
        self.n = 0.0

    def update(self, step: float) -> None:
        self.moves.append(step)

    def set_postfix(self, errors: int, refresh: bool) -> None:
        self.errors = errors


def item(number: int) -> ImageItem:
    return ImageItem(number, f"{number}.png", Path(f"{number}.png"))


def test_a_bar_moves_inside_an_image_and_never_back():
    bar = Bar()
    shown = _progress.RunProgress(bar)
    for share in (0.25, 0.5, 0.25, 0.5, 1.0):  # a server was lost, and another one began the image again
        shown.tell(item(1), share)
    assert sum(bar.moves) == 1
    shown.done(ImageRecord(1, "1.png", (0, 0), error="bad"))
    shown.done(ImageRecord(2, "2.png", (0, 0)))  # of an earlier run
    assert (sum(bar.moves), min(bar.moves), bar.errors) == (2, 0, 1)


class Searcher(FakeClient):
    """Finds nothing, in four steps."""

    def everything(self, image: Any, **parameters: Any) -> None:
        self._servers.prompts.append({"everything": parameters})

    def search_steps(self, image: Any, _: Any) -> Iterator[SearchProgress | Found]:
        yield from (SearchProgress(done, 4, (), (), 0.7) for done in (1, 2, 3, 4))
        yield Found()


@pytest.fixture
def searchers(monkeypatch, servers):
    monkeypatch.setattr(job, "SamTritonClient", lambda url, family, **_: Searcher(servers, url or "default", family))
    return servers


def test_a_search_of_many_images_moves_and_begins_with_an_estimate(searchers, tmp_path, monkeypatch, capsys):
    moves: list[float] = []

    class Told(_progress.RunProgress):
        def tell(self, item: ImageItem, share: float) -> None:
            moves.append(share)
            super().tell(item, share)

    monkeypatch.setattr(_progress, "RunProgress", Told)
    write_images(tmp_path / "in", 3)
    line = f"annotate {tmp_path}/in --with everything --out {tmp_path}/out"
    assert call(line) == 0
    assert sorted(moves) == sorted([0.25, 0.5, 0.75, 1.0, 1.0] * 3)
    said = capsys.readouterr().err
    assert re.search(r"3 images with 1024 points each: at least [\d.]+ (s|min|h), at \d+ ms a point", said)
    assert "3.00/3 images" in said
    assert searchers.prompts[0] == {"everything": {"points_per_side": 3}}
    searchers.prompts.clear()
    assert call(line) == 0  # nothing is left to estimate
    assert searchers.prompts == []


def test_boxes_move_the_bar_after_each_request(servers, tmp_path):
    boxes = [(1, [x, 1, 5, 5 + x % 20]) for x in range(35)]
    run, told = job.Job(str(write_data_set(tmp_path, 1, boxes)), "boxes"), []
    inputs = run.read()
    work = run.work(inputs, lambda item, share: told.append(share))
    work(servers.client(None, "sam2"), inputs.items[0])
    assert told == [16 / 35, 32 / 35, 1]


def test_an_estimate_names_the_way_to_less(monkeypatch):
    times = iter([0.0, 0.9] * 3 + [0.0])
    monkeypatch.setattr(_progress, "time", Namespace(monotonic=lambda: next(times)))
    client = Mock()
    said = _progress.estimate(client, Parameters(32), 10, 2)
    pace = "10 images with 1024 points each: at least 9 min, at 100 ms a point."
    assert said == f"{pace} --points-per-side 16 takes a quarter of the time"
    said = _progress.estimate(client, Parameters(8), 1, 1)
    assert said == "1 image with 64 points each: at least 6 s, at 100 ms a point."
    crops = Parameters(32, crop_n_layers=1, crop_n_points_downscale_factor=3)
    assert "1424 points each" in _progress.estimate(client, crops, 1, 1)
    client.everything.side_effect = ServerBusyError("busy")
    assert _progress.estimate(client, Parameters(8), 1, 1) is None
    assert [_progress.duration(each) for each in (3.4, 600, 90_000)] == ["3 s", "10 min", "25.0 h"]


@pytest.mark.parametrize(("side", "seconds", "said"), [(32, 2.0, True), (32, 0.1, False), (8, 9.0, True)])
def test_a_long_search_of_one_image_says_how_to_shorten_it(side, seconds, said, monkeypatch, capsys):
    """The first step includes the encoder, so the second one decides."""
    times = iter([0.0, seconds])
    monkeypatch.setattr(everything, "time", Namespace(monotonic=lambda: next(times, 0.0)))
    with _progress.bar(Namespace(quiet=False), desc="a.png", unit="point") as shown:
        show = everything._shown_by(shown, Parameters(side))
        for done in (8, 16, 24):
            show(SearchProgress(done, 1024, (), (), 0.7))
    printed = capsys.readouterr().err
    left = f"about {_progress.duration(seconds / 8 * 1008)} are left." if said else "are left"
    assert (left in printed) is said
    assert ("--points-per-side 16 takes a quarter of the time" in printed) is (said and side == 32)
    assert "24/1024" in printed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_clock_moves_while_nothing_is_done(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with _progress.bar(Namespace(quiet=False), total=5, unit="image"):
        wait_until(lambda: len(set(re.findall(r"\[(\d\d:\d\d)<", terminal.getvalue()))) > 2)
    assert not any(each.name == "triton-sam-clock" for each in threading.enumerate())
    for quiet, silent in ((True, Terminal()), (False, io.StringIO())):
        monkeypatch.setattr("sys.stderr", silent)
        with _progress.bar(Namespace(quiet=quiet), in_logs=False, total=5):
            pass
        assert silent.getvalue() == ""
