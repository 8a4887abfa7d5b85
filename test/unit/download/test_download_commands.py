"""`triton-sam download` and `setup`; disks and folders that refuse a download; mirrors, proxies and wrong addresses."""

import base64
import errno
import fcntl
import hashlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.conditions import PATIENCE, wait_until
from support.file_server import CONTENT, NAME, entry, get, names, serve, slowly, status
from support.socket_server import refusing_port, self_signed

from triton_sam import cli
from triton_sam.download import catalogue as checkpoints
from triton_sam.download.catalogue import Checkpoint, catalogue, find
from triton_sam.download.fetch import fetch
from triton_sam.errors import CheckpointError, ConfigurationError, DownloadError
from triton_sam.export import registry
from triton_sam.export.settings import CHECKPOINT_HASH, Settings

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def small_catalogue(monkeypatch):
    """A catalogue whose files all have CONTENT."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    known = tuple(replace(checkpoint, bytes=len(CONTENT), sha256=digest) for checkpoint in catalogue())
    monkeypatch.setattr(checkpoints, "catalogue", lambda: known)


SIZES = [
    ("sam1", "sam_vit_b_01ec64.pth"),
    ("sam1 vit_h", "sam_vit_h_4b8939.pth"),
    ("sam2", "sam2.1_hiera_base_plus.pt"),
    ("sam2 tiny", "sam2.1_hiera_tiny.pt"),
]


@pytest.mark.parametrize(("size", "name"), SIZES)
def test_download_command(file_server, tmp_path, small_catalogue, capsys, size, name):
    file_server.where = f"/files/{name}"
    where = ["--mirror", f"{file_server.url}/files", "--directory", str(tmp_path / "here"), "-q"]
    assert cli.main(["download", *size.split(), *where]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'here' / name}\n", "")
    assert names(tmp_path / "here") == [name]
    assert (tmp_path / "here" / name).read_bytes() == CONTENT


@pytest.mark.parametrize(("size", "name"), SIZES)
def test_setup_command_up_to_the_export(file_server, tmp_path, small_catalogue, monkeypatch, size, name):
    exported: list[object] = []
    monkeypatch.setattr(registry, "exporter", lambda family: None)
    monkeypatch.setattr(registry, "export", lambda *given: exported.append(given))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(checkpoints.MIRROR_VARIABLE, f"{file_server.url}/files")
    file_server.where = f"/files/{name}"
    assert cli.main(["setup", *size.split(), "--model-repository", "models", "-q"]) == 0
    family, path = size[:4], Path("checkpoints") / name
    assert path.read_bytes() == CONTENT
    assert exported == [(family, Settings(Path("models"), path, name=None, precision="fp32", progress=False))]


def test_a_file_of_the_same_name_at_another_url_is_another_file(file_server, tmp_path, monkeypatch):
    exported = SimpleNamespace(metadata={CHECKPOINT_HASH: ""})
    monkeypatch.setattr(registry, "check_packages", lambda *_: None)
    monkeypatch.setattr(registry, "export", lambda *_: exported)
    monkeypatch.chdir(tmp_path)
    for content, where, requests in ((b"first", "/a/best.pt", 1), (b"second", "/b/best.pt", 2)):
        file_server.content, file_server.where = content, where
        for _ in range(2):  # the second call uses the downloaded file
            assert (
                cli.main(["setup", "sam1", "--url", file_server.url + where, "--model-repository", "models", "-q"]) == 0
            )
            assert Path("checkpoints/best.pt").read_bytes() == content
        assert len(file_server.requests) == requests
    monkeypatch.setattr(registry, "export", Mock(side_effect=CheckpointError("damaged")))
    for where, remains in (("/b/best.pt", {"best.pt", "best.pt.source"}), ("/c/best.pt", set())):
        file_server.where = where
        assert cli.main(["setup", "sam1", "--url", file_server.url + where, "--model-repository", "models", "-q"]) == 1
        assert set(names(Path("checkpoints"))) == remains


def test_a_url_with_another_query_is_another_file_and_one_put_there_by_hand_needs_no_download(file_server, tmp_path):
    def load(where: str) -> bytes:
        file_server.where = where
        return fetch([file_server.url + where], tmp_path / NAME, size=None, digest="", progress=False).read_bytes()

    assert load("/a?id=1") == load("/a?id=2") == load("/a?id=2") == CONTENT
    assert len(file_server.requests) == 2
    (tmp_path / NAME).write_bytes(b"by hand")
    assert load("/b") == b"by hand"
    assert len(file_server.requests) == 2


@pytest.mark.parametrize(
    ("place", "stub", "words"),
    [
        ("_check_space", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")), "no space left"),
        ("shutil.disk_usage", Mock(return_value=SimpleNamespace(free=1000)), "no space left"),
        # Root may write anywhere, so a test with chmod would fail for root.
        ("os.open", Mock(side_effect=PermissionError(errno.EACCES, "no")), "no permission to write to .* --directory"),
    ],
)
def test_disks_and_folders_that_refuse_a_file(place, stub, words, file_server, tmp_path, monkeypatch):
    monkeypatch.setattr(f"triton_sam.download.fetch.{place}", stub)
    with pytest.raises(DownloadError, match=words):
        get(file_server, tmp_path)
    assert NAME not in names(tmp_path)


def test_directory_in_the_way(file_server, tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(DownloadError, match="is a directory"):
        get(file_server, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match="cannot write"):
        get(file_server, tmp_path / "file")


def test_two_at_once(file_server, tmp_path):
    file_server.acts = [slowly]
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(get(file_server, tmp_path).read_bytes())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4
    assert len(file_server.requests) == 1
    assert names(tmp_path) == [NAME]


def test_stale_and_missing_locks_do_not_block(file_server, tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.lock").touch()
    assert get(file_server, tmp_path).read_bytes() == CONTENT
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    assert get(file_server, tmp_path / "without").read_bytes() == CONTENT


def test_ctrl_c_keeps_the_part(file_server, tmp_path):
    file_server.acts = [lambda handler: (serve(handler, end=300_000), handler.rfile.read())]  # until the client ends
    checkpoint = entry(file_server)
    program = (
        "import sys; from pathlib import Path; from triton_sam.download.catalogue import Checkpoint, download\n"
        f"download({checkpoint!r}, Path(sys.argv[1]), timeout={PATIENCE})"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stderr=subprocess.PIPE) as process:
        part = tmp_path / f"{NAME}.part"
        wait_until(lambda: part.exists() and part.stat().st_size)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert names(tmp_path) == [f"{NAME}.part", f"{NAME}.part.etag"]
    kept = part.stat().st_size
    assert 0 < kept < len(CONTENT)
    assert get(file_server, tmp_path).read_bytes() == CONTENT
    assert file_server.ranges()[-1] == f"bytes={kept}-"


def test_nothing_listens(file_server, tmp_path, pauses):
    with refusing_port() as port:
        gone = replace(entry(file_server), url=f"http://127.0.0.1:{port}/files/{NAME}")
        with pytest.raises(DownloadError, match=r"model\.pt: Failed to establish .* refused; .* --mirror"):
            checkpoints.download(gone, tmp_path, progress=False, retries=2)
    assert len(pauses) == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_untrusted_certificate_is_final(file_server, tmp_path, monkeypatch, pauses):
    certificate, context = self_signed(tmp_path)
    file_server.socket = context.wrap_socket(file_server.socket, server_side=True)
    checkpoint = replace(
        entry(file_server, size=False), url=f"https://localhost:{file_server.server_port}/files/{NAME}"
    )
    with pytest.raises(DownloadError, match="certificate of localhost is not trusted: set SSL_CERT_FILE"):
        checkpoints.download(checkpoint, tmp_path, progress=False)
    assert pauses == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert checkpoints.download(checkpoint, tmp_path, progress=False).read_bytes() == CONTENT


def test_silent_server_times_out(file_server, tmp_path):
    file_server.acts = [lambda handler: time.sleep(30)]
    with pytest.raises(DownloadError, match="timed out"):
        get(file_server, tmp_path, retries=0, timeout=0.1)


def test_redirects(file_server, tmp_path):
    file_server.acts = [status(302, Location=f"{file_server.url}/files/{NAME}")]
    assert get(file_server, tmp_path).read_bytes() == CONTENT
    file_server.acts = [status(302, Location=f"{file_server.url}/files/{NAME}")] * 20
    with pytest.raises(DownloadError, match="circles"):
        get(file_server, tmp_path / "again")


def test_mirror(file_server, tmp_path, monkeypatch):
    official = replace(entry(file_server), url=f"https://example.invalid/one/two/{NAME}")
    for number, where in enumerate((f"/mirror/{NAME}", f"/mirror/one/two/{NAME}")):
        file_server.where = where
        path = checkpoints.download(
            official, tmp_path / str(number), mirror=f"{file_server.url}/mirror/", progress=False
        )
        assert path.read_bytes() == CONTENT
    monkeypatch.setenv(checkpoints.MIRROR_VARIABLE, f"{file_server.url}/mirror".replace("//", "//joe:s3%20cret@"))
    assert checkpoints.download(official, tmp_path / "variable", progress=False).read_bytes() == CONTENT
    assert file_server.requests[-1][1]["Authorization"] == f"Basic {base64.b64encode(b'joe:s3 cret').decode()}"
    file_server.where = "/nowhere"
    with pytest.raises(
        DownloadError, match=rf"mirror/{NAME} does not exist.*mirror/one/two/{NAME} does not exist"
    ) as caught:
        checkpoints.download(official, tmp_path / "missing", progress=False)
    assert "cret" not in str(caught.value)


MIRRORS = ("ftp://host/x", "file:///etc", "host/x", "http://", "http://host/?a=b", "http://[")


@pytest.mark.parametrize("options", [*({"mirror": each} for each in MIRRORS), {"retries": -1}, {"timeout": 0}])
def test_options_are_checked(options, tmp_path):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        checkpoints.download(find("sam2", "tiny"), tmp_path, **options)
    with pytest.raises(ConfigurationError, match="http"):
        checkpoints.download(Checkpoint("a", "b", "ftp://host/x.pt", 3, "0" * 64), tmp_path, progress=False)


def test_proxy_of_the_environment(file_server, tmp_path, monkeypatch):
    behind = replace(entry(file_server), url=f"http://behind.invalid/{NAME}")
    file_server.where = behind.url  # a request to a proxy contains the whole URL
    monkeypatch.setenv("http_proxy", file_server.url)
    assert checkpoints.download(behind, tmp_path, progress=False).read_bytes() == CONTENT
    file_server.where = f"/files/{NAME}"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert get(file_server, tmp_path / "direct").read_bytes() == CONTENT


@pytest.mark.parametrize(("written", "sent"), [("me:p%40ss", b"me:p@ss"), ("m%C3%A9:p", "m\u00e9:p".encode())])
def test_password_of_a_proxy(file_server, tmp_path, monkeypatch, written, sent):
    behind = replace(entry(file_server), url=f"http://behind.invalid/{NAME}")
    file_server.where = behind.url
    monkeypatch.setenv("http_proxy", file_server.url.replace("//", f"//{written}@"))
    checkpoints.download(behind, tmp_path, progress=False)
    headers = {name.lower(): value for name, value in file_server.requests[0][1].items()}
    assert base64.b64decode(headers["proxy-authorization"].removeprefix("Basic ")) == sent


@pytest.mark.parametrize("variable", ["https_proxy", "all_proxy"])
@pytest.mark.parametrize("proxy", ["http://me:secret@[", "host:99999", "http://", "socks5://me:secret@host:1"])
def test_a_proxy_that_cannot_work_is_named_without_its_password(tmp_path, monkeypatch, variable, proxy):
    monkeypatch.setenv(variable, proxy)
    with pytest.raises(ConfigurationError, match=rf"^{variable.upper()}") as caught:
        checkpoints.download(find("sam2", "tiny"), tmp_path, progress=False)
    assert "secret" not in str(caught.value)
