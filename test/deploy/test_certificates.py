"""The certificates that ``deploy/nginx/make_certificates.sh`` makes, keeps and renews."""

import ssl
import subprocess
from pathlib import Path

from support.nginx_proxy import make_tls, needs_openssl

from triton_sam._common.bundle import bundled

pytestmark = needs_openssl
SCRIPT = bundled("deploy/nginx/make_certificates.sh")


def test_certificates_stay_when_the_script_runs_again(tmp_path):
    folder = tmp_path / "tls"
    make_tls(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    subprocess.run(["bash", SCRIPT, "--directory", folder, "elsewhere"], check=True, capture_output=True, timeout=60)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (folder / "server.key").stat().st_mode & 0o077 == 0


def test_a_certificate_is_renewed_before_it_expires(tmp_path):
    tls, authority = tmp_path / "tls", tmp_path / "tls-authority"
    make_tls(tls)

    def certificates(folder: Path) -> subprocess.CompletedProcess[str]:
        command = ["bash", SCRIPT, "--directory", folder, "localhost"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def sign(*issuer: Path | str) -> None:
        key = ["-key", tls / "server.key", "-subj", "/CN=localhost"]
        command = ["openssl", "req", "-x509", "-days", "29", *key, *issuer, "-out", tls / "server.crt"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def stays_valid() -> bool:
        command = ["openssl", "x509", "-checkend", str(800 * 86400), "-noout", "-in", tls / "server.crt"]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    sign("-CA", tls / "ca.crt", "-CAkey", authority / "ca.key")
    authority.rename(tmp_path / "safe")
    key = (tls / "server.key").read_bytes()
    refused = certificates(tls)
    assert refused.returncode == 1
    assert f"put ca.key back into {authority}" in refused.stderr
    assert (tls / "server.key").read_bytes() == key
    authority.rmdir()
    (tmp_path / "safe").rename(authority)
    assert certificates(tls).returncode == 0
    assert stays_valid()
    assert {path.name for path in tls.iterdir()} == {"ca.crt", "server.crt", "server.key", "tokens.map"}
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls / "server.crt", tls / "server.key")

    sign()  # the certificate of somebody else
    assert "of another authority: renew it there" in certificates(tls).stderr
    assert not stays_valid()


def test_the_key_of_the_authority_is_not_where_nginx_reads(tmp_path):
    tls, key = tmp_path / "tls", tmp_path / "tls-authority" / "ca.key"
    make_tls(tls)
    assert {path.name for path in tls.iterdir()} == {"ca.crt", "server.crt", "server.key", "tokens.map"}
    assert key.stat().st_mode & 0o077 == 0
    # The script once wrote the key beside the certificates: it moves the key away, and goes on using it.
    before = key.read_bytes()
    key.rename(tls / "ca.key")
    (tls / "server.crt").unlink()
    subprocess.run(["bash", SCRIPT, "--directory", tls, "elsewhere"], check=True, capture_output=True, timeout=60)
    assert not (tls / "ca.key").exists()
    assert key.read_bytes() == before
    check = ["openssl", "verify", "-CAfile", tls / "ca.crt", tls / "server.crt"]
    assert subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0
