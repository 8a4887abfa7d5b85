"""Disks that are full or may not be written to, really so: file systems of some megabytes, mounted for the test.

That takes root; shared memory that is too small takes a mount namespace, where this file is run as a program.
"""

import errno
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.session_requests import colored

from triton_sam import ImageEmbeddings, SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.cli import main as triton_sam
from triton_sam.download.fetch import fetch
from triton_sam.errors import DownloadError, ExportError
from triton_sam.families import get_family
from triton_sam.repository import install as install_module
from triton_sam.repository.install import install

POINT = [[30.0, 20.0]]
IMAGES = 8
SHARED_MEGABYTES = 192
"""Requests take about 100 of them, so that three or four images fit besides; cache_bytes allows 32."""


@pytest.fixture
def disk(tmp_path):
    """What mounts a small disk, or mounts it anew with other options; it is gone after the test."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        again = "remount," if os.path.ismount(folder) else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{again}{options}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"may not mount: {done.stderr.strip()}")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def old_pair(repository):
    """A pair that an export would replace, recognisable by its bytes."""
    for role in ("encoder", "decoder"):
        place = repository / f"sam2_{role}" / "1"
        place.mkdir(parents=True)
        (place / "model.onnx").write_bytes(f"old {role}".encode())
    return files(repository)


@pytest.mark.slow
@pytest.mark.export
@pytest.mark.parametrize(
    ("options", "words"), [("size=6m", "No space left on device"), ("size=20m,ro", "Read-only file system")]
)
def test_an_export_that_cannot_be_written_changes_nothing(disk, traced_micro, options, words):
    from support.micro_export import CONFIG

    from triton_sam.export import registry
    from triton_sam.export.settings import Settings

    repository = disk("size=20m") / "models"
    before = old_pair(repository)
    disk(options)
    with pytest.raises(ExportError, match=words) as caught:
        registry.export("sam2", Settings(repository, model=CONFIG, random_seed=0, progress=False))
    assert "\n" not in str(caught.value)
    assert files(repository) == before
    disk("size=40m,rw")
    registry.export("sam2", Settings(repository, model=CONFIG, random_seed=0, progress=False))
    assert files(repository).keys() >= before.keys()
    assert b"old decoder" not in files(repository).values()


def test_a_download_that_fills_the_disk_can_be_repeated(disk):
    content = np.random.default_rng(0).bytes(6 << 20)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # without a length, so that nobody can know before
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    folder = disk("size=4m")
    wanted = {"size": None, "sha256": hashlib.sha256(content).hexdigest(), "progress": False, "retries": 1}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/file"
        with pytest.raises(DownloadError, match="no space left"):
            fetch([url], folder / "file", **wanted)
        assert not (folder / "file").exists()
        disk("size=20m")
        assert fetch([url], folder / "file", **wanted).read_bytes() == content
        server.shutdown()
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_embeddings_that_do_not_fit_leave_the_old_file(disk):
    tensors = {
        spec.name: np.zeros([side if isinstance(side, int) else 1 for side in spec.shape], np.float32)
        for spec in get_family("sam2").encoder.outputs
    }
    path = disk("size=6m") / "embeddings.npz"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left") as caught:
        ImageEmbeddings("sam2", "sam2_encoder", (10, 10), tensors).save(path)
    assert caught.value.errno == errno.ENOSPC
    assert files(path.parent) == {"embeddings.npz": b"old"}


def test_a_repository_that_may_not_be_written_to_is_served_and_stays_as_it_is(disk, images, capsys):
    local_server = pytest.importorskip("triton_sam.local_server")
    repository = disk("size=40m") / "models"
    shutil.copytree(bundled("model_repository"), repository, ignore=shutil.ignore_patterns("sam1*", "sam3*", "[2-9]"))
    before = files(repository)
    disk("size=40m,ro")
    for command in (
        ["config", "sam2", "--model-repository", str(repository), "--accelerator", "cuda"],
        ["alias", "paintera", "--model-repository", str(repository)],
    ):
        assert triton_sam(command) == 1
        assert capsys.readouterr().err.splitlines()[-1].endswith("Read-only file system")
    with (
        local_server.LocalServer(repository, models=["sam2"], http_port=0, grpc_port=0, metrics_port=0) as server,
        SAM2TritonClient(server.http_url) as client,
    ):
        client.set_image(images / "shapes.jpg")
        assert (client.predict([[200, 180]])[0] > 0).any()
    assert files(repository) == before


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
    while not (repository / "sam2_encoder" / "1" / "model.onnx").exists():
        assert first.is_alive()
    export("second")
    second_done.set()
    first.join()
    assert set(files(repository).values()) == {b"encoder of second", b"decoder of second"}
    assert not (repository / install_module.LOCK_NAME).exists()


@pytest.mark.slow
def test_too_little_shared_memory_makes_the_cache_smaller_and_nothing_fail():
    pytest.importorskip("triton_sam.local_server")
    pytest.importorskip("onnxruntime")
    mount = f"mount -t tmpfs -o size={SHARED_MEGABYTES}m tmpfs /dev/shm"
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("may not mount in a namespace")
    command = f"{mount} && exec {sys.executable} -m {__spec__.name}"
    done = subprocess.run([*namespace, command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def main():
    """Encode more images than shared memory holds, twice, and click on all of them."""
    from support.session_requests import metrics

    from triton_sam.local_server import LocalServer

    shared = Path("/dev/shm")
    with (
        LocalServer(bundled("model_repository"), models=["sam2"], http_port=0, grpc_port=0, metrics_port=0) as server,
        SAM2TritonClient(server.grpc_url) as client,
    ):
        images = [client.encode(colored(number)) for number in range(IMAGES)]
        masks = [client.predict(POINT, image=image)[0] for image in images]
        for image, mask in zip(images, masks, strict=True):  # lost ones are sent again
            np.testing.assert_array_equal(client.predict(POINT, image=image)[0], mask)
        figures = metrics(server, lambda figures: figures["cache_limit_bytes"] < SHARED_MEGABYTES << 20)
        used = shutil.disk_usage(shared)
        print(f"{used.used >> 20} of {used.total >> 20} MiB used, {figures}")
        assert figures["cache_bytes"] <= figures["cache_limit_bytes"] < SHARED_MEGABYTES << 20
        assert figures["cache_images"] >= 2
        assert figures["failures_total"] == figures["cache_misses_total"] - figures["encodes_total"]  # ids alone


if __name__ == "__main__":
    main()
