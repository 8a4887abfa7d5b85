"""Mirrors, proxies, redirects and addresses that cannot work."""

from __future__ import annotations

import base64
import hashlib
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from support.file_server import (
    CONTENT,
    NAME,
    Server,
    entry,
    get,
    status,
)

from triton_sam.download import catalogue as checkpoints
from triton_sam.download.catalogue import Checkpoint, find
from triton_sam.errors import ConfigurationError, DownloadError

pytestmark = pytest.mark.usefixtures("clean_environment")


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
