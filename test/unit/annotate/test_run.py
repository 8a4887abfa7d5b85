"""Many images at once: shards, several servers, busy and lost servers, interruptions."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.annotated import lines_of

from triton_sam.annotate import folder, run
from triton_sam.annotate.folder import ImageRecord, Part, RunFolder
from triton_sam.annotate.sources import ImageItem
from triton_sam.errors import (
    ConfigurationError,
    ImageError,
    InferenceError,
    InputError,
    MissingDependencyError,
    ServerBusyError,
    ServerUnreachableError,
)

ITEMS = [ImageItem(number, f"{number}.jpg", Path(f"{number}.jpg")) for number in range(1, 11)]


def good(_: object, item: ImageItem) -> ImageRecord:
    return ImageRecord(item.id, item.name, (4, 3))


def annotate(folder: Path, work=good, workers=("a", "b"), items=ITEMS, **parameters) -> list[int]:
    """Run, and return the ids that were reported."""
    reported: list[int] = []
    run_folder = RunFolder(folder, parameters, ITEMS, shard_size=4)
    with run_folder.opened():
        run.annotate(run_folder, run_folder.shards(items), work, workers, lambda record: reported.append(record.id))
        run_folder.write_reports(())
    return reported


def raising(errors: dict[int, BaseException]):
    """Return a work that fails for some images, by id."""

    def work(worker: object, item: ImageItem) -> ImageRecord:
        if item.id in errors:
            raise errors[item.id]
        return good(worker, item)

    return work


def names_of(folder: Path) -> list[str]:
    return [each["name"] for path in sorted(folder.glob("shards/*.jsonl")) for each in lines_of(path)]


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
    assert lines_of(tmp_path / "out/errors.jsonl") == [
        {"image": "2.jpg", "error": "no image at all"},
        {"image": "3.jpg", "error": "refused"},
        {"image": "4.jpg", "error": "the image cannot be read: Permission denied"},
        {"image": "5.jpg", "error": "the image needs more memory than there is: lower --threads"},
        {"image": "6.jpg", "error": "the image cannot be read: image file is truncated"},
        {"image": "7.jpg", "error": "the image cannot be read: the system gives no reason"},
        {"image": "8.jpg", "error": "HEIC needs the heic extra"},
    ]


def test_a_busy_server_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "BUSY_PAUSE", 0.001)
    refusals = iter([True] * 5)

    def work(worker: str, item: ImageItem) -> ImageRecord:
        if next(refusals, False):
            raise ServerBusyError("busy")
        return good(worker, item)

    assert len(annotate(tmp_path / "out", work)) == 10


def test_the_other_servers_take_the_images_of_a_lost_one(tmp_path):
    used = []

    def work(worker: str, item: ImageItem) -> ImageRecord:
        used.append(worker)
        if worker == "lost":
            raise ServerUnreachableError("gone")
        return good(worker, item)

    assert len(annotate(tmp_path / "out", work, ["lost", "lost", "well"])) == 10
    assert used.count("lost") == 2
    assert names_of(tmp_path / "out") == [item.name for item in ITEMS]


def test_the_run_ends_when_all_servers_are_lost_and_keeps_its_shards(tmp_path):
    gone = dict.fromkeys(range(7, 11), ServerUnreachableError("gone"))
    with pytest.raises(ServerUnreachableError):
        annotate(tmp_path / "out", raising(gone))
    assert names_of(tmp_path / "out") == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    assert len(annotate(tmp_path / "out")) == 10


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
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is a file"):
        annotate(tmp_path / "file")
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


def test_parts_that_begin_together_wait_for_each_other(tmp_path):
    def hold(index: int) -> None:
        with RunFolder(tmp_path / "out", {}, ITEMS).opened(Part(index, 8)):
            together.wait(30)

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
