"""Full and read-only disks: each test mounts a real file system of a few megabytes, for which it needs root.

The test with too little shared memory runs this file as a program in a mount namespace of its own.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.commands import with_support
from support.conditions import eventually, wait_until
from support.contents import files_below
from support.file_server import Server
from support.session_requests import colored

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam._common.files import hash_file
from triton_sam.cli import main as triton_sam
from triton_sam.download.fetch import fetch
from triton_sam.errors import DownloadError
from triton_sam.local_server import LocalServer
from triton_sam.repository import install as install_module
from triton_sam.repository.hashes import read_sums
from triton_sam.repository.install import install

POINT = [[30.0, 20.0]]
IMAGES = 8
SHARED_MEGABYTES = 192
"""Size of the shared memory. Requests take about 100 of it, so that three or four images fit; cache_bytes allows 32."""


@pytest.fixture
def disk(tmp_path):
    """A function that mounts a small disk, or remounts it with other options. The disk is unmounted after the test."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        remount = "remount," if os.path.ismount(folder) else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{remount}{options}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this user may not mount file systems: {done.stderr.strip()}")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_download_that_fills_the_disk_can_be_repeated(disk):
    content = np.random.default_rng(0).bytes(6 << 20)

    def send(handler):  # without a length, so that the client cannot check the free space in advance
        handler.head(200)
        handler.wfile.write(content)

    folder = disk("size=4m")
    wanted = {"size": None, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "progress": False, "retries": 1}
    with Server() as server, server.running():
        server.acts, url = [send] * 9, f"{server.url}/file"
        with pytest.raises(DownloadError, match="no space left"):
            fetch([url], folder / "file", **wanted)
        assert not (folder / "file").exists()
        disk("size=20m")
        assert fetch([url], folder / "file", **wanted).read_bytes() == content
    assert [path.name for path in folder.iterdir()] == ["file"]


def pages(folder):
    """Return the bytes that the files of a folder take on a disk with blocks of 4096 bytes."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_annotations_that_fill_the_disk_go_on_when_there_is_room(disk, tmp_path, monkeypatch, capsys):
    """The disk is full among the shards first, and then among the files of the formats."""
    from support.annotated import FakeServers, files_of, write_data_set

    from triton_sam.annotate import job

    monkeypatch.setattr(job, "SamTritonClient", FakeServers().client)
    source = ["annotate", str(write_data_set(tmp_path / "in", 200)), "--with", "boxes", "--format", "coco", "yolo"]
    command = [*source, "-q", "--threads", "4", "--out"]
    whole = tmp_path / "whole"
    assert triton_sam([*command, str(whole)]) == 0
    shards = pages(whole / "shards") + 4096
    out = disk(f"size={shards // 2}") / "out"
    kept = {}
    for size in (shards // 2, shards + 4096):
        disk(f"size={size}")
        assert triton_sam([*command, str(out)]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "No space left on device" in line
        found = {path: path.stat().st_mtime_ns for path in out.glob("shards/0*")}
        assert kept.items() <= found.items(), "a shard is lost or was made again"
        assert len(found) - len(kept) > 0, "the disk was full before any shard"
        kept = found
        files = files_of(out)
        assert files.items() <= files_of(whole).items(), "a file is not complete"
    assert len(kept) == len(list(whole.glob("shards/0*")))
    disk("size=20m")
    assert triton_sam([*command, str(out)]) == 0
    assert files_of(out) == files_of(whole)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_a_read_only_repository_is_served_and_stays_unchanged(disk, images, capsys):
    repository = disk("size=40m") / "models"
    shutil.copytree(bundled("model_repository"), repository, ignore=shutil.ignore_patterns("sam1*", "sam3*", "[2-9]"))
    before = files_below(repository)
    disk("size=40m,ro")
    for command in (
        ["config", "sam2", "--model-repository", str(repository), "--accelerator", "cuda"],
        ["alias", "paintera", "--model-repository", str(repository)],
    ):
        assert triton_sam(command) == 1
        assert capsys.readouterr().err.splitlines()[-1].endswith("Read-only file system")
    with (
        LocalServer(repository, models=["sam2"]) as server,
        SAM2TritonClient(server.http_url) as client,
    ):
        client.set_image(images / "shapes.jpg")
        assert (client.predict([[200, 180]])[0] > 0).any()
    assert files_below(repository) == before


def test_two_exports_at_once_never_mix(tmp_path, monkeypatch):
    """Without the lock, `first` would move its decoder after `second` had moved both of its files."""
    repository, replace, second_done = tmp_path / "models", Path.replace, threading.Event()
    repository.mkdir()

    def wait_for_the_other(path, target):
        if path.read_bytes() == b"decoder of first":
            second_done.wait(0.5)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", wait_for_the_other)

    def export(name):
        moves = []
        for role in ("encoder", "decoder"):
            finished = tmp_path / f"{role} of {name}"
            finished.write_bytes(finished.name.encode())
            moves.append((finished, repository / f"sam2_{role}" / "1" / "model.onnx"))
        install(moves, repository)

    first = threading.Thread(target=export, args=("first",))
    first.start()
    wait_until((repository / "sam2_encoder" / "1" / "model.onnx").exists)
    export("second")
    second_done.set()
    first.join()
    weights = {path.read_bytes() for path in repository.rglob("*.onnx")}
    assert weights == {b"encoder of second", b"decoder of second"}
    for folder in repository.glob("sam2_*"):
        assert read_sums(folder) == {"1/model.onnx": hash_file(folder / "1" / "model.onnx")}
    assert not (repository / install_module.LOCK_NAME).exists()


@pytest.mark.slow
def test_too_little_shared_memory_makes_the_cache_smaller_without_failures():
    mount = f"mount -t tmpfs -o size={SHARED_MEGABYTES}m tmpfs /dev/shm"
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount file systems in a namespace")
    command = [*namespace, f"{mount} && exec {shlex.join([sys.executable, __file__])}"]
    done = subprocess.run(command, env=with_support(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def main():
    """Encode more images than the shared memory holds, and click on all of them twice."""
    from support.session_requests import metrics

    from triton_sam.local_server import LocalServer

    with (
        LocalServer(bundled("model_repository"), models=["sam2"]) as server,
        SAM2TritonClient(server.grpc_url) as client,
    ):
        images = [client.encode(colored(number)) for number in range(IMAGES)]
        masks = [client.predict(POINT, image=image)[0] for image in images]
        for image, mask in zip(images, masks, strict=True):  # the client sends lost images again
            np.testing.assert_array_equal(client.predict(POINT, image=image)[0], mask)

        def check() -> None:
            values = metrics(server)  # one by one, and after the answers
            assert values["cache_bytes"] <= values["cache_limit_bytes"] < SHARED_MEGABYTES << 20
            assert values["cache_images"] >= 2
            # Only requests with the id of a lost image failed.
            assert values["failures_total"] == values["cache_misses_total"] - values["encodes_total"]
            print(f"{shutil.disk_usage('/dev/shm').used >> 20} of {SHARED_MEGABYTES} MiB used, {values}")

        eventually(check)


if __name__ == "__main__":
    main()
