"""Many images at once: shards, several servers, busy and lost servers, interruptions, and Ray Data without Ray."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from support.annotated import files_of, lines_of, servers, write_data_set
from support.commands import call
from support.conditions import PATIENCE

from triton_sam.annotate import folder, ray_engine, run
from triton_sam.annotate.folder import ImageRecord, Part, RunFolder
from triton_sam.annotate.sources import ImageItem
from triton_sam.errors import (
    ConfigurationError,
    ImageError,
    InferenceError,
    InputError,
    MissingDependencyError,
    ModelNotReadyError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
)

ITEMS = [ImageItem(number, f"{number}.jpg", Path(f"{number}.jpg")) for number in range(1, 11)]


def good(_: object, item: ImageItem) -> ImageRecord:
    return ImageRecord(item.id, item.name, (4, 3))


def annotate(
    folder: Path, work=good, workers=("a", "b"), items=ITEMS, is_ready=lambda _: True, **parameters
) -> list[int]:
    """Run, and return the ids that were reported."""
    reported: list[int] = []
    run_folder = RunFolder(folder, parameters, ITEMS, shard_size=4)
    with run_folder.opened():
        shards = run_folder.shards(items)
        run.annotate(run_folder, shards, work, workers, lambda record: reported.append(record.id), is_ready=is_ready)
        run_folder.write_reports(())
    return reported


def raising(errors: dict[int, BaseException]):
    """Return a work that fails for some images, by id."""

    def work(worker: object, item: ImageItem) -> ImageRecord:
        if item.id in errors:
            raise errors[item.id]
        return good(worker, item)

    return work


def test_bad_images_are_records_and_lines_of_errors(tmp_path):
    failures = {
        2: ImageError("no image\nat all"),
        3: InferenceError("refused"),
        4: PermissionError(13, "Permission denied"),
        5: MemoryError(),
        6: OSError("image file is\ntruncated"),
        7: OSError(),
        8: MissingDependencyError("HEIC needs the heic extra"),
    }
    assert len(annotate(tmp_path / "out", raising(failures))) == 10
    lines = lines_of(tmp_path / "out/errors.jsonl")
    assert [line["error"] for line in lines] == [
        "no image at all",
        "refused",
        "the image cannot be read: Permission denied",
        "the image needs more memory than there is: lower --threads",
        "the image cannot be read: image file is truncated",
        "the image cannot be read: the system gives no reason",
        "HEIC needs the heic extra",
    ]
    assert [line["image"] for line in lines] == [f"{number}.jpg" for number in failures]
    assert [line["shard"] for line in lines] == ["shards/00000000.jsonl"] * 3 + ["shards/00000001.jsonl"] * 4


def test_an_image_that_takes_too_long_costs_itself_alone(tmp_path):
    late = raising({3: ServerTimeoutError("no answer within 60 s")})
    assert len(annotate(tmp_path / "out", late, ["a"])) == 10
    (line,) = lines_of(tmp_path / "out/errors.jsonl")
    assert (line["image"], line["error"]) == ("3.jpg", "no answer within 60 s: raise --timeout, or lower --threads")


@pytest.mark.parametrize("error", [ServerTimeoutError("no answer"), ModelNotReadyError("sam2_encoder is not ready")])
def test_the_others_take_over_from_a_server_that_hangs_or_has_lost_its_models(error, tmp_path):
    def work(worker: str, item: ImageItem) -> ImageRecord:
        if worker == "a":
            raise error
        return good(worker, item)

    assert len(annotate(tmp_path / "out", work, is_ready=lambda worker: worker != "a")) == 10
    assert lines_of(tmp_path / "out/errors.jsonl") == []
    with pytest.raises(type(error), match=str(error)):
        annotate(tmp_path / "alone", work, ["a"], is_ready=lambda _: False)


def test_a_server_that_never_answers_in_time_is_gone(tmp_path):
    """Its health may be good while the computation hangs."""
    asked = []

    def work(worker: str, item: ImageItem) -> ImageRecord:
        if worker == "a":
            asked.append(item.id)
            raise ServerTimeoutError("no answer")
        return good(worker, item)

    assert len(annotate(tmp_path / "out", work, ["a", "a", "b"])) == 10
    assert len(lines_of(tmp_path / "out/errors.jsonl")) <= run.MAX_LATE
    asked.clear()
    with pytest.raises(ServerTimeoutError):
        annotate(tmp_path / "alone", work, ["a", "a"])
    assert len(asked) == run.MAX_LATE + 2


def test_a_busy_server_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "BUSY_PAUSE", 0.001)
    refusals = iter([True] * 5)

    def work(worker: str, item: ImageItem) -> ImageRecord:
        if next(refusals, False):
            raise ServerBusyError("busy")
        return good(worker, item)

    assert len(annotate(tmp_path / "out", work)) == 10


@pytest.mark.timeout(300)
def test_an_interruption_does_not_wait_for_a_busy_server(tmp_path, monkeypatch):
    """Images that wait for a busy server give up as soon as the run ends."""
    monkeypatch.setattr(run, "BUSY_PAUSE", 1000)
    waiting = threading.Event()

    def work(worker: str, item: ImageItem) -> ImageRecord:
        if item.id % 2:
            waiting.set()
            raise ServerBusyError("busy")
        assert waiting.wait(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        annotate(tmp_path / "out", work)


def test_a_folder_with_other_files_and_a_second_process_are_refused(tmp_path):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(ConfigurationError, match="holds other files"):
        annotate(tmp_path)
    first = RunFolder(tmp_path / "out", {}, ITEMS)
    with first.opened(), pytest.raises(ConfigurationError, match="another process"):
        annotate(tmp_path / "out")


def test_parts_and_the_run_that_joins_them_exclude_each_other(tmp_path, monkeypatch):
    """The joining run removes temporary files, which a part that still writes would miss."""
    monkeypatch.setattr(folder, "_SECONDS_FOR_PARTS", 0.01)
    first, second, whole = (RunFolder(tmp_path / "out", {}, ITEMS) for _ in range(3))
    with first.opened(Part(0, 2)), second.opened(Part(1, 2)):
        temporary = tmp_path / "out/shards/.00000001.0123abcd.tmp.jsonl"
        temporary.write_text("half a line")
        with pytest.raises(ConfigurationError, match="the process with --part 0/2 still writes to"), whole.opened():
            pass
        with pytest.raises(ConfigurationError, match="another process"), whole.opened(Part(1, 2)):
            pass
        assert temporary.exists()
    (tmp_path / "out/.annotate.lock.1-2").touch()  # a killed part left it
    with whole.opened():
        assert not temporary.exists()
        with pytest.raises(ConfigurationError, match="another process"), first.opened(Part(0, 2)):
            pass
    with first.opened(Part(0, 2)):
        pass
    assert not list((tmp_path / "out").glob(".annotate.lock*"))


def test_parts_that_begin_together_wait_for_each_other(tmp_path, monkeypatch):
    def hold(index: int) -> None:
        with RunFolder(tmp_path / "out", {}, ITEMS).opened(Part(index, 8)):
            together.wait(PATIENCE)

    monkeypatch.setattr(folder, "_SECONDS_FOR_PARTS", PATIENCE)
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(hold, range(8))) == [None] * 8


@pytest.mark.parametrize("has_locks", [True, False])
def test_leftovers_of_a_killed_run_disappear_where_there_are_locks(has_locks, tmp_path, monkeypatch):
    """Some network file systems have no locks, so nobody knows whose files they are."""
    annotate(tmp_path / "out", items=ITEMS[:4])
    left = [tmp_path / "out/shards/.00000001.0123abcd.tmp.jsonl", tmp_path / "out/.coco.0123abcd.tmp.json"]
    for path in left:
        path.write_text("half a line")
    if not has_locks:
        filelock = pytest.importorskip("filelock")
        refused = OSError(errno.ENOLCK, "No locks available")
        monkeypatch.setattr(filelock.FileLock, "acquire", Mock(side_effect=refused))
    assert len(annotate(tmp_path / "out")) == 10
    assert [path.exists() for path in left] == [not has_locks] * 2


def test_damaged_files_are_named(tmp_path):
    annotate(tmp_path / "out")
    shard = tmp_path / "out/shards/00000001.jsonl"
    shard.write_text("{")
    with pytest.raises(InputError, match=r"00000001\.jsonl is damaged: remove it"):
        annotate(tmp_path / "out")
    shard.unlink()
    assert len(annotate(tmp_path / "out")) == 10
    (tmp_path / "out/manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json is damaged"):
        annotate(tmp_path / "out")


__all__ = ["servers"]


class FakeData(SimpleNamespace):
    """Stands for ray.data and its data sets: it runs the actor in this process."""

    rows: list[dict[str, Any]]

    def from_items(self, rows: list[dict[str, Any]], override_num_blocks: int) -> FakeData:
        assert override_num_blocks == len(rows)
        return FakeData(rows=rows)

    def map(self, kind: Any, fn_constructor_args: tuple[Any, ...], compute: int) -> FakeData:
        actor = kind(*fn_constructor_args)
        return FakeData(rows=[actor(row) for row in reversed(self.rows)])

    def iter_rows(self) -> Any:
        return iter(self.rows)

    @staticmethod
    def ActorPoolStrategy(size: int) -> int:  # noqa: N802 - Ray's name
        return size


class LostActorError(Exception):
    """Stands for ray.exceptions.RayError."""


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr("triton_sam.commands.annotate.ray_data", FakeData)
    monkeypatch.setattr(ray_engine, "ray_data", FakeData)
    monkeypatch.setattr(ray_engine, "_cluster", lambda *_: contextlib.nullcontext(LostActorError))


def by_ray(source: Path, out: Path, *options: str) -> int:
    return call(f"annotate {source} --with boxes --out {out} -q", *options)


def test_the_files_equal_those_of_threads(servers, ray, tmp_path):
    data = write_data_set(tmp_path / "in", 40)
    assert by_ray(data, tmp_path / "threads") == 0
    assert by_ray(data, tmp_path / "ray", "--engine", "ray", "--limit", "20") == 0
    assert by_ray(data, tmp_path / "ray", "--engine", "ray") == 0
    assert by_ray(data, tmp_path / "ray", "--engine", "ray") == 0
    assert files_of(tmp_path / "threads") == files_of(tmp_path / "ray")
    assert servers.requests.total() == 80


def test_errors_of_actors_are_errors_of_the_command(servers, ray, tmp_path, capsys):
    servers.failures["default"] = ServerUnreachableError("nothing answers at default")
    data = write_data_set(tmp_path / "in", 4)
    assert by_ray(data, tmp_path / "out", "--engine", "ray") == 1
    assert capsys.readouterr().err.strip() == "triton-sam: error: nothing answers at default"


@pytest.mark.parametrize(("failures", "code"), [(2, 0), (3, 1)])
def test_the_pipeline_begins_again_when_ray_gives_up(failures, code, servers, ray, tmp_path, monkeypatch, capsys):
    """After each failure, only the shards that lack are filled."""
    pipelines = iter(range(failures))

    def rows(data: FakeData) -> Any:
        yield data.rows[0]
        if next(pipelines, None) is not None:
            raise LostActorError("the actor died\nfor ever")
        yield from data.rows[1:]

    monkeypatch.setattr(FakeData, "iter_rows", rows)
    data = write_data_set(tmp_path / "in", 80)
    assert by_ray(data, tmp_path / "out", "--engine", "ray") == code
    error = capsys.readouterr().err.strip()
    assert error == ("triton-sam: error: Ray failed 3 times: the actor died" if code else "")


@pytest.mark.parametrize(("address", "failures", "calls"), [(None, 2, 3), (None, 3, 3), ("host:1", 1, 1)])
def test_ray_that_takes_too_long_to_start_is_started_again(monkeypatch, address, failures, calls):
    made = []

    def init(**_: Any) -> None:
        made.append(1)
        if len(made) <= failures:
            raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    context = SimpleNamespace(enable_progress_bars=True)
    data = SimpleNamespace(DataContext=SimpleNamespace(get_current=lambda: context))
    errors = SimpleNamespace(RayError=LostActorError)
    fake: Any = SimpleNamespace(init=init, shutdown=lambda: None, data=data, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with contextlib.ExitStack() as stack:
        if failures == calls:
            stack.enter_context(pytest.raises(ConfigurationError, match="timed out during startup"))
        with ray_engine._cluster(address, 1) as kind:
            assert kind is LostActorError
    assert len(made) == calls


def test_a_full_disk_of_an_actor_is_an_error_of_the_disk():
    error = ray_engine._error_of({"shard": 1, "error": "OSError", "message": "[Errno 28] No space left"})
    assert isinstance(error, OSError)
    assert "No space left" in str(error)
