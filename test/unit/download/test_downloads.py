"""The catalogue, and downloads from real HTTP servers that misbehave in many ways."""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import http.server
import os
import random
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from triton_sam import cli
from triton_sam.download import catalogue as checkpoints
from triton_sam.download import fetch as download
from triton_sam.download.catalogue import Checkpoint, catalogue, find
from triton_sam.errors import ChecksumError, ConfigurationError, DownloadError
from triton_sam.export import registry
from triton_sam.export.settings import Settings

CONTENT = random.Random(0).randbytes(700_000)
NAME = "model.pt"

Act = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT with ranges. Each of the first requests runs one of ``server.acts`` instead."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        act = self.server.acts.pop(0) if self.server.acts else serve
        act(self)
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Connection", "close")
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts: list[Act] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.content = CONTENT
        self.tag = '"one"'
        self.where = f"/files/{NAME}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # some tests close the connection of the client

    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


def serve(handler: Handler, *, ranges: bool = True, end: int | None = None, pause: float = 0) -> None:
    server = handler.server
    if handler.path != server.where:
        handler.head(404, Content_Length=0)
        return
    wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(wanted[1]) if wanted and ranges and handler.headers.get("If-Range") in (None, server.tag) else 0
    total = len(server.content)
    if start >= total:
        handler.head(416, Content_Range=f"bytes */{total}", Content_Length=0)
        return
    headers: dict[str, object] = {"Content_Length": total - start}
    if ranges:
        headers["ETag"] = server.tag
    if start:
        headers["Content_Range"] = f"bytes {start}-{total - 1}/{total}"
    handler.head(206 if start else 200, **headers)
    body = server.content[start:end]
    for position in range(0, len(body), 50_000):
        handler.wfile.write(body[position : position + 50_000])
        time.sleep(pause)


def cut(end: int) -> Act:
    return lambda handler: serve(handler, end=end)


def without_ranges(handler: Handler) -> None:
    serve(handler, ranges=False)


def slowly(handler: Handler) -> None:
    serve(handler, pause=0.05)


def status(code: int, **headers: object) -> Act:
    return lambda handler: handler.head(code, Content_Length=0, **headers)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts in seconds; the tests do not wait for them."""
    waited: list[float] = []
    monkeypatch.setattr(download, "sleep", waited.append)
    return waited


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name == checkpoints.MIRROR_VARIABLE:
            monkeypatch.delenv(name)


def entry(server: Server, content: bytes = CONTENT, *, size: bool = True) -> Checkpoint:
    digest = hashlib.sha256(content).hexdigest()
    return Checkpoint("sam2", "test", f"{server.url}/files/{NAME}", len(content) if size else None, digest)


def get(server: Server, directory: Path, **options: object) -> Path:
    return checkpoints.download(entry(server), directory, progress=False, **options)  # type: ignore[arg-type]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_catalogue() -> None:
    assert len({checkpoint.key for checkpoint in catalogue()}) == len(catalogue()) == 7
    assert len({checkpoint.sha256 for checkpoint in catalogue()}) == len(catalogue())
    assert len({checkpoint.file_name for checkpoint in catalogue()}) == len(catalogue())
    for checkpoint in catalogue():
        assert re.fullmatch("[0-9a-f]{64}", checkpoint.sha256)
        assert re.fullmatch(r"https://dl\.fbaipublicfiles\.com/segment_anything[\w./]*\.pth?", checkpoint.url)
        assert checkpoint.bytes is None or checkpoint.bytes > 100_000_000
    assert checkpoints.sizes("sam2") == ("tiny", "small", "base_plus", "large")
    for family in ("sam1", "sam2"):
        known = [checkpoint.bytes or 0 for checkpoint in catalogue() if checkpoint.family == family]
        assert known == sorted(known)


def test_find() -> None:
    assert find("sam2", "tiny").file_name == "sam2.1_hiera_tiny.pt"
    assert find("sam2", "base_plus").key == "sam2/base_plus"
    with pytest.raises(ConfigurationError, match="choose one of tiny, small, base_plus, large"):
        find("sam2", "huge")
    with pytest.raises(ConfigurationError, match="choose one of sam1, sam2"):
        find("sam9", "tiny")


@pytest.mark.parametrize("size", [True, False])
def test_download_makes_the_directory(server: Server, tmp_path: Path, size: bool) -> None:
    directory = tmp_path / "a" / "b"
    path = checkpoints.download(entry(server, size=size), directory, progress=False)
    assert path == directory / NAME
    assert path.read_bytes() == CONTENT
    assert names(directory) == [NAME]


def test_right_file_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    get(server, tmp_path)
    assert server.requests == []


def test_wrong_file_stays_until_the_new_one_is_complete(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = bytes(len(CONTENT))
    (tmp_path / NAME).write_bytes(old)
    server.acts = [status(404)]
    with pytest.raises(DownloadError):
        get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == old
    checkpoints.download(entry(server), tmp_path)
    assert "not the official file" in capsys.readouterr().err
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_cut_at_half_resumes_within_one_call(server: Server, tmp_path: Path) -> None:
    server.acts = [cut(350_000)]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=350000-"]
    assert server.requests[1][1]["If-Range"] == '"one"'
    assert names(tmp_path) == [NAME]


def test_cut_at_half_resumes_in_a_later_call(server: Server, tmp_path: Path) -> None:
    server.acts = [cut(350_000)]
    with pytest.raises(DownloadError, match="350000 bytes are kept"):
        get(server, tmp_path, retries=0)
    assert names(tmp_path) == [f"{NAME}.part", f"{NAME}.part.etag"]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=350000-"]


def test_tries_are_counted_from_the_last_progress(server: Server, tmp_path: Path) -> None:
    server.acts = [cut(100_000), cut(200_000), cut(300_000), cut(400_000)]
    assert get(server, tmp_path, retries=1).read_bytes() == CONTENT


def test_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:1000])
    server.acts = [without_ranges]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_server_without_ranges_that_always_breaks_off_ends(server: Server, tmp_path: Path) -> None:
    server.acts = [lambda handler: serve(handler, ranges=False, end=300_000)] * 9
    with pytest.raises(DownloadError, match="cannot download"):
        get(server, tmp_path, retries=2)
    assert len(server.requests) == 3


def test_changed_file_starts_over(server: Server, tmp_path: Path) -> None:
    new = bytes(reversed(CONTENT))
    server.acts = [cut(350_000)]
    with pytest.raises(DownloadError):
        get(server, tmp_path, retries=0)
    server.content, server.tag = new, '"two"'
    path = checkpoints.download(entry(server, new), tmp_path, progress=False)
    assert path.read_bytes() == new
    assert len(server.requests) == 2


def test_damaged_part_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(bytes(1000))
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges() == ["bytes=1000-", None]


def test_another_range_than_asked_for_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:1000])
    server.acts = [status(206, Content_Range=f"bytes 5-{len(CONTENT) - 1}/{len(CONTENT)}")]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges() == ["bytes=1000-", None]


@pytest.mark.parametrize("size", [True, False])
def test_complete_part_is_used(server: Server, tmp_path: Path, size: bool) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert checkpoints.download(entry(server, size=size), tmp_path, progress=False).read_bytes() == CONTENT
    assert server.ranges() == ([] if size else [f"bytes={len(CONTENT)}-"])  # unknown size: the server says 416


@pytest.mark.parametrize("size", [True, False])
def test_part_that_is_too_long_starts_over(server: Server, tmp_path: Path, size: bool) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT + b"more")
    assert checkpoints.download(entry(server, size=size), tmp_path, progress=False).read_bytes() == CONTENT
    assert server.ranges() == ([None] if size else [f"bytes={len(CONTENT) + 4}-", None])


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_passing_status_is_tried_again(server: Server, tmp_path: Path, code: int) -> None:
    server.acts = [status(code), status(code)]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_pauses_grow_with_jitter(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.acts = [status(503)] * 99
    with pytest.raises(DownloadError, match="503"):
        get(server, tmp_path, retries=9)
    assert len(pauses) == 9
    for index, pause in enumerate(pauses):
        assert min(60, 2**index) / 2 <= pause <= min(60, 2**index)


def test_retry_after_is_honoured_and_bounded(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.acts = [status(503, Retry_After=7), status(429, Retry_After=86400), status(503, Retry_After="soon")]
    get(server, tmp_path)
    assert pauses[:2] == [7, 60]
    assert len(pauses) == 3


@pytest.mark.parametrize(("code", "words"), [(404, "does not exist"), (403, "forbidden"), (418, "answered 418")])
def test_lasting_status_is_final(server: Server, tmp_path: Path, code: int, words: str) -> None:
    server.acts = [status(code)]
    with pytest.raises(DownloadError, match=words):
        get(server, tmp_path)
    assert len(server.requests) == 1
    assert names(tmp_path) == []


def test_wrong_content_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    server.content = bytes(len(CONTENT))
    with pytest.raises(ChecksumError, match="not the official file"):
        get(server, tmp_path)
    assert names(tmp_path) == []


def test_wrong_size_is_refused_at_once(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>please log in</html>"
    with pytest.raises(ChecksumError, match="26 bytes"):
        get(server, tmp_path)
    assert names(tmp_path) == []


def test_body_of_unknown_length_that_ends_early_resumes(server: Server, tmp_path: Path) -> None:
    def early(handler: Handler) -> None:
        handler.head(200)
        handler.wfile.write(CONTENT[:1000])

    server.acts = [early]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=1000-"]


def test_endless_body_is_refused(server: Server, tmp_path: Path) -> None:
    def endless(handler: Handler) -> None:
        handler.head(200)
        handler.wfile.write(CONTENT + CONTENT)

    server.acts = [endless]
    with pytest.raises(ChecksumError, match="more than"):
        get(server, tmp_path)
    assert names(tmp_path) == []


def test_nothing_listens(tmp_path: Path, pauses: list[float]) -> None:
    with Server() as gone:
        checkpoint = entry(gone)
    with pytest.raises(DownloadError, match=r"model\.pt: Failed to establish .* refused; .* --mirror"):
        checkpoints.download(checkpoint, tmp_path, progress=False, retries=2)
    assert len(pauses) == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_untrusted_certificate_is_final(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=localhost"
    subprocess.run([*make.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    digest = hashlib.sha256(CONTENT).hexdigest()
    checkpoint = Checkpoint("sam2", "test", f"https://localhost:{server.server_port}/files/{NAME}", None, digest)
    with pytest.raises(DownloadError, match="certificate of localhost is not trusted: set SSL_CERT_FILE"):
        checkpoints.download(checkpoint, tmp_path, progress=False)
    assert pauses == []
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    assert checkpoints.download(checkpoint, tmp_path, progress=False).read_bytes() == CONTENT


def test_silent_server_times_out(server: Server, tmp_path: Path) -> None:
    server.acts = [lambda handler: time.sleep(1)]
    with pytest.raises(DownloadError, match="timed out"):
        get(server, tmp_path, retries=0, timeout=0.1)


def test_redirects(server: Server, tmp_path: Path) -> None:
    server.acts = [status(302, Location=f"{server.url}/files/{NAME}")]
    assert get(server, tmp_path).read_bytes() == CONTENT
    server.acts = [status(302, Location=f"{server.url}/files/{NAME}")] * 20
    with pytest.raises(DownloadError, match="circles"):
        get(server, tmp_path / "again")


def test_mirror(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    official = Checkpoint("sam2", "test", f"https://example.invalid/one/two/{NAME}", len(CONTENT), digest)
    for number, where in enumerate((f"/mirror/{NAME}", f"/mirror/one/two/{NAME}")):
        server.where = where
        path = checkpoints.download(official, tmp_path / str(number), mirror=f"{server.url}/mirror/", progress=False)
        assert path.read_bytes() == CONTENT
    monkeypatch.setenv(checkpoints.MIRROR_VARIABLE, f"{server.url}/mirror")
    assert checkpoints.download(official, tmp_path / "variable", progress=False).read_bytes() == CONTENT
    server.where = "/nowhere"
    with pytest.raises(DownloadError, match=rf"mirror/{NAME} does not exist.*mirror/one/two/{NAME} does not exist"):
        checkpoints.download(official, tmp_path / "missing", progress=False)


@pytest.mark.parametrize("mirror", ["ftp://host/x", "file:///etc", "host/x", "http://", "http://host/?a=b", "http://["])
def test_mirror_must_be_http(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(ConfigurationError, match="mirror"):
        checkpoints.download(find("sam2", "tiny"), tmp_path, mirror=mirror)


def test_url_must_be_http(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="http"):
        checkpoints.download(Checkpoint("a", "b", "ftp://host/x.pt", 3, "0" * 64), tmp_path, progress=False)


def test_proxy_of_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    behind = Checkpoint("sam2", "test", f"http://behind.invalid/{NAME}", len(CONTENT), digest)
    server.where = behind.url  # a request to a proxy contains the whole URL
    monkeypatch.setenv("http_proxy", server.url)
    assert checkpoints.download(behind, tmp_path, progress=False).read_bytes() == CONTENT
    server.where = f"/files/{NAME}"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert get(server, tmp_path / "direct").read_bytes() == CONTENT


@pytest.mark.parametrize(("written", "sent"), [("me:p%40ss", b"me:p@ss"), ("m%C3%A9:p", "m\u00e9:p".encode())])
def test_password_of_a_proxy(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, sent: bytes
) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    behind = Checkpoint("sam2", "test", f"http://behind.invalid/{NAME}", len(CONTENT), digest)
    server.where = behind.url
    monkeypatch.setenv("http_proxy", server.url.replace("//", f"//{written}@"))
    checkpoints.download(behind, tmp_path, progress=False)
    headers = {name.lower(): value for name, value in server.requests[0][1].items()}
    assert base64.b64decode(headers["proxy-authorization"].removeprefix("Basic ")) == sent


@pytest.mark.parametrize("variable", ["https_proxy", "all_proxy"])
@pytest.mark.parametrize("proxy", ["http://me:secret@[", "host:99999", "http://", "socks5://me:secret@host:1"])
def test_a_proxy_that_cannot_work_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    with pytest.raises(ConfigurationError, match=rf"^{variable.upper()}") as caught:
        checkpoints.download(find("sam2", "tiny"), tmp_path, progress=False)
    assert "secret" not in str(caught.value)


@pytest.fixture
def small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_download_command(
    server: Server, tmp_path: Path, small_catalogue: None, capsys: pytest.CaptureFixture[str], size: str, name: str
) -> None:
    server.where = f"/files/{name}"
    where = ["--mirror", f"{server.url}/files", "--directory", str(tmp_path / "here"), "-q"]
    assert cli.main(["download", *size.split(), *where]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'here' / name}\n", "")
    assert names(tmp_path / "here") == [name]
    assert (tmp_path / "here" / name).read_bytes() == CONTENT


@pytest.mark.parametrize(("size", "name"), SIZES)
def test_setup_command_up_to_the_export(
    server: Server, tmp_path: Path, small_catalogue: None, monkeypatch: pytest.MonkeyPatch, size: str, name: str
) -> None:
    exported: list[object] = []
    monkeypatch.setattr(registry, "exporter", lambda family: None)
    monkeypatch.setattr(registry, "export", lambda *given: exported.append(given))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(checkpoints.MIRROR_VARIABLE, f"{server.url}/files")
    server.where = f"/files/{name}"
    assert cli.main(["setup", *size.split(), "--model-repository", "models", "-q"]) == 0
    family, path = size[:4], Path("checkpoints") / name
    assert path.read_bytes() == CONTENT
    assert exported == [(family, Settings(Path("models"), path, name=None, precision="fp32", progress=False))]


def test_a_checkpoint_does_not_go_to_the_model_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["sam2", "tiny"], ["sam1"], ["sam3", "checkpoint"]):
        assert cli.main(["download", *arguments, "--model-repository", str(tmp_path)]) == 1
        assert "--model-repository is for SAM3's ONNX files" in capsys.readouterr().err


def test_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_check_space", _raise(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DownloadError, match="no space left"):
        get(server, tmp_path)
    assert NAME not in names(tmp_path)


def test_too_small_a_disk_is_seen_before(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(DownloadError, match="no space left"):
        get(server, tmp_path)


def test_read_only_directory(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so a test with chmod would fail for root.
    monkeypatch.setattr(download.os, "open", _raise(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(DownloadError, match=r"no permission to write to .* --directory"):
        get(server, tmp_path)


def test_directory_in_the_way(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(DownloadError, match="is a directory"):
        get(server, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match="cannot write"):
        get(server, tmp_path / "file")


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    server.acts = [slowly]
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(get(server, tmp_path).read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4
    assert len(server.requests) == 1
    assert names(tmp_path) == [NAME]


def test_stale_lock_file_does_not_block(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.lock").touch()
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_file_system_without_locks(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", _raise(OSError(errno.ENOLCK, "No locks available")))
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_ctrl_c_keeps_the_part(server: Server, tmp_path: Path) -> None:
    server.acts = [lambda handler: serve(handler, pause=0.2)]
    checkpoint = entry(server)
    program = (
        "import sys; from pathlib import Path; from triton_sam.download.catalogue import Checkpoint, download\n"
        f"download({checkpoint!r}, Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stderr=subprocess.PIPE) as process:
        part = tmp_path / f"{NAME}.part"
        deadline = time.monotonic() + 10
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert names(tmp_path) == [f"{NAME}.part", f"{NAME}.part.etag"]
    kept = part.stat().st_size
    assert 0 < kept < len(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges()[-1] == f"bytes={kept}-"


def test_progress_goes_to_stderr_and_can_be_silenced(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    get(server, tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    checkpoints.download(entry(server), tmp_path / "loud")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert NAME in captured.err


def test_options_are_checked(tmp_path: Path) -> None:
    for options in ({"retries": -1}, {"timeout": 0}):
        with pytest.raises(ConfigurationError):
            checkpoints.download(find("sam2", "tiny"), tmp_path, **options)  # type: ignore[arg-type]


def _raise(error: Exception) -> Callable[..., None]:
    def raising(*arguments: object, **options: object) -> None:
        raise error

    return raising
