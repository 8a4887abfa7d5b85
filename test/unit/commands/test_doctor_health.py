"""`triton-sam doctor` on memory, disk and the packages of the service; `health` of pairs of another image size."""

import errno
import json
import re
import ssl
import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.commands import call, copy_committed, error_of
from support.conditions import PATIENCE
from support.nginx_proxy import needs_openssl
from support.socket_server import Server, always, response

from triton_sam.client.server_models import ServerModels
from triton_sam.commands import doctor, health


@pytest.fixture
def findings(tmp_path, capsys):
    """Return a function that runs the command, and returns its findings by subject."""
    copy_committed(tmp_path, "sam2_decoder")

    def find():
        call(f"doctor --json --url 127.0.0.1:9 --model-repository {tmp_path}")
        return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}

    return find


def test_a_config_that_cannot_be_read_is_named(tmp_path, capsys):
    copy_committed(tmp_path, "sam2_decoder", "sam2_encoder")
    broken = tmp_path / "sam2_encoder" / "config.pbtxt"
    broken.write_text("backend {{{")
    for command in ("doctor", "models"):
        call(f"{command} --model-repository {tmp_path}")
        out, err = capsys.readouterr()
        assert err == ""
        (line,) = [line for line in out.splitlines() if "not a valid config.pbtxt: 1:" in line]
        assert "sam2_encoder" in line
        assert "sam2_decoder" in out
    error = error_of(["config", "--instances", "2", "--model-repository", str(tmp_path)], capsys)
    assert f"error: {broken}: not a valid config.pbtxt: 1:" in error


def test_missing_session_models_are_named_with_the_command_that_writes_them(findings, tmp_path, capsys):
    copy_committed(tmp_path, "sam2_encoder")
    repair = f"triton-sam doctor --fix --model-repository {tmp_path}"
    for file in ("sam2_encoder/config.pbtxt", "sam2/1/model.py"):
        call(f"{repair.removeprefix('triton-sam ')} --url 127.0.0.1:9")
        capsys.readouterr()
        assert all(finding["mend"] != repair for finding in findings().values())
        (tmp_path / file).unlink()
        assert findings()[f"model {file.partition('/')[0]}"]["mend"] == repair


def test_too_little_is_a_note_that_says_what_to_do(findings, monkeypatch):
    monkeypatch.setattr(doctor, "MEMORY_TO_SERVE", 1 << 50)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**9))
    monkeypatch.setattr(doctor, "find_package", lambda name: None)
    found = findings()
    assert {found[name]["status"] for name in ("service", "memory", "disk")} == {"note"}
    assert found["disk"]["text"].startswith("1.0 GB free in ")
    assert "--model-repository" in found["disk"]["mend"]
    assert "[service]" in found["service"]["mend"]
    assert found["memory"]["mend"]


def test_what_only_a_local_server_needs_is_a_note_in_containers(tmp_path, capsys, monkeypatch):
    """The images export and triton have no local Triton; pip can install nothing there."""
    copy_committed(tmp_path, "sam2", "sam2_decoder", "sam2_encoder")
    lacking = doctor.Finding("onnxruntime", "missing", "not installed", "pip install ...")
    monkeypatch.setattr(doctor, "_onnxruntime", lambda: lacking)
    repository = f"--model-repository {tmp_path} --json"

    def check(options):
        code = call(f"doctor {repository} {options}")
        found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
        return code, found["onnxruntime"]["status"], found["onnxruntime"]["mend"]

    assert check("--url 127.0.0.1:9") == (1, "missing", "pip install ...")
    assert check("--fix --url 127.0.0.1:9") == (0, "note", None)
    monkeypatch.setattr(doctor, "_server", lambda _: iter([doctor.Finding("server", "ok", "Triton")]))
    assert check("--url 127.0.0.1:9") == (0, "note", None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (subprocess.TimeoutExpired("nvidia-smi", 10), "nvidia-smi does not answer within 10 s: no GPU"),
        (PermissionError(13, "Permission denied"), "nvidia-smi cannot be run (Permission denied): no GPU"),
    ],
)
def test_a_tool_that_does_not_answer_is_told_in_plain_words(monkeypatch, error, text):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor.subprocess, "run", Mock(side_effect=error))
    assert doctor._tool("GPU", ["nvidia-smi", "-L"], "no GPU").text == text


@pytest.mark.parametrize(
    ("family", "has_session_model", "use"),
    [
        ("edgetam", False, "for videos only"),
        ("edgetam", True, "for videos only"),
        ("sam1", False, "clients cannot use it"),
    ],
)
def test_a_pair_of_another_size_is_not_for_clicks(monkeypatch, capsys, family, has_session_model, use):
    """A session model of it cannot work, since clients send images of the official size."""
    names = ["small_encoder", "small_decoder", *["small"] * has_session_model]
    models = ServerModels(dict.fromkeys(names, "1"), {family: ("small",)}, frozenset())
    monkeypatch.setattr(health, "_served", lambda _: (models, {"small": 512}))
    assert call("health --url localhost:1") == int(has_session_model)
    said = "".join(capsys.readouterr())
    assert f"model pair small: {use}, its encoder takes 512 pixels" in said
    assert ("session model small: its encoder must take 1024 pixels" in said) == has_session_model


AUTHORITY = """
[ca]
default_ca = authority
[authority]
database = index
new_certs_dir = .
serial = serial
default_md = sha256
policy = policy
[policy]
commonName = supplied
[extensions]
subjectAltName = DNS:localhost
"""


@pytest.fixture(scope="module", params=["untrusted", "expired", "of another name"])
def tls(request, tmp_path_factory):
    """Return the kind of a certificate for localhost, its file, and the context of a server that has it."""
    folder = tmp_path_factory.mktemp("certificate")
    name = "elsewhere" if request.param == "of another name" else "localhost"
    (folder / "config").write_text(AUTHORITY.replace("DNS:localhost", f"DNS:{name}"))
    (folder / "index").touch()
    (folder / "serial").write_text("01")
    end = "20250101000000Z" if request.param == "expired" else "20990101000000Z"
    request_it = "req -new -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=localhost"
    sign_it = "ca -batch -selfsign -notext -config config -keyfile key.pem -in request.pem -out cert.pem"
    sign_it += f" -extensions extensions -startdate 20240101000000Z -enddate {end}"
    for command in (request_it, sign_it):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return request.param, folder / "cert.pem", context


def not_ready(capsys, url, *options):
    """Return what `health` and `doctor` print about the server at a URL."""
    assert call(f"health --timeout {PATIENCE} --url {url}", *options) == 1
    health_says = capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "SERVER_SECONDS", PATIENCE)
        assert call(f"doctor --json --url {url}", *options) == 1
    (finding,) = [each for each in json.loads(capsys.readouterr().out) if each["subject"] == "server"]
    assert finding["status"] == "missing"
    return health_says, finding


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
@needs_openssl
def test_a_certificate_that_is_not_trusted_is_named(tls, scheme, capsys):
    kind, certificate, context = tls
    reason, advice = {
        "expired": ("certificate has expired", "renew the server's certificate"),
        "untrusted": ("self.signed certificate", "--ca-certs"),
        "of another name": ("[Hh]ostname .*", "create one for this name"),
    }[kind]
    with Server(always(b""), context) as server:
        url = server.url.replace("https", scheme)
        options = [] if kind == "untrusted" else ["--ca-certs", certificate]
        health_says, finding = not_ready(capsys, url, *options)
    for text in (health_says, finding["text"]):
        assert re.search(rf"TLS to {url} failed: {reason}: .*{advice}", text)
    assert finding["mend"] is None


def test_another_program_is_not_reported_as_no_server(capsys):
    with Server(always(response(b"", "501 Not Implemented", Connection="close"))) as server:
        health_says, finding = not_ready(capsys, server.url)
    words = f"{server.url} does not answer like a Triton server (HTTP status 501)"
    assert words in health_says
    assert (finding["text"], finding["mend"]) == (words, None)


def test_metrics_of_another_protocol_are_none():
    with Server(always(b"\x00\x00\x12\x04\x00\r\n")) as server:
        assert doctor.server_gpus(f"{server.url}/metrics") is None


def test_no_server_names_the_command_that_starts_one(capsys):
    health_says, finding = not_ready(capsys, "127.0.0.1:9")
    words = "nothing answers at http://127.0.0.1:9 (Connection refused)"
    assert f"{words}: start a server with `triton-sam serve`" in health_says
    assert (finding["text"], finding["mend"]) == (words, "triton-sam serve")


def test_a_server_elsewhere_is_started_on_its_host(capsys):
    _, finding = not_ready(capsys, "grpc://triton.invalid:8001")
    assert finding["text"].startswith("nothing answers at grpc://triton.invalid:8001")
    assert finding["mend"].startswith("on its host: docker compose up -d")


@pytest.mark.parametrize(
    ("status", "words", "mend"),
    [
        (
            "401 Unauthorized",
            "refuses access: the proxy needs a token",
            "TRITON_TOKEN=TOKEN triton-sam doctor --url http",
        ),
        ("502 Bad Gateway", "is not available: no Triton answers", "on its host: docker compose ps"),
    ],
)
def test_an_error_of_a_proxy_names_a_command(status, words, mend, capsys):
    body = json.dumps({"error": words.partition(": ")[2]}).encode()
    answer = response(body, status, Content_Type="application/json", Connection="close")
    with Server(always(answer)) as server:
        _, finding = not_ready(capsys, server.url)
    assert words in finding["text"]
    assert finding["mend"].startswith(mend)


def test_a_full_disk_is_named_by_the_file_that_is_written(monkeypatch, capsys):
    full = OSError(errno.ENOSPC, "No space left on device", "source.so", None, "/full/target.so")
    monkeypatch.setattr(health, "run", Mock(side_effect=full))
    assert error_of(["health"], capsys) == "triton-sam: error: /full/target.so: No space left on device"
