"""Progress moves while a command works: inside an image, with a clock on a terminal, and with an estimate."""

import io
import re
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.annotated import FakeClient, servers, write_data_set, write_images
from support.commands import call
from support.conditions import wait_until

from triton_sam.annotate import job
from triton_sam.annotate.folder import ImageRecord
from triton_sam.annotate.sources import ImageItem
from triton_sam.commands import _progress, everything
from triton_sam.errors import ServerBusyError
from triton_sam.everything.parameters import Parameters
from triton_sam.everything.search import SearchProgress

__all__ = ["servers"]


class Bar:
    """What a bar shows."""

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

    def everything(self, image: Any, progress: Any = None, **parameters: Any) -> list:
        with self._servers.lock:
            self._servers.prompts.append({"everything": parameters})
        for done in (1, 2, 3, 4) if progress else ():
            progress(SearchProgress(done, 4, None, None))
        return []


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
    assert re.search(r"3 images with 1024 points each: at least \d+ s, at \d+ ms a point", said)
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
            show(SearchProgress(done, 1024, None, None))
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
        wait_until(lambda: "00:02" in terminal.getvalue())
    assert not any(each.name == "triton-sam-clock" for each in threading.enumerate())
    for quiet, silent in ((True, Terminal()), (False, io.StringIO())):
        monkeypatch.setattr("sys.stderr", silent)
        with _progress.bar(Namespace(quiet=quiet), in_logs=False, total=5):
            pass
        assert silent.getvalue() == ""
