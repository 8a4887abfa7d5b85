"""`triton-sam service` as a program, and many users of it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from unittest.mock import Mock

import psutil
import pytest
from support.conditions import PATIENCE, wait_until
from support.processes import all_gone

from triton_sam._common.bundle import checkout
from triton_sam.cli import main
from triton_sam.commands.service import TOOLS
from triton_sam.errors import ServerTimeoutError
from triton_sam.local_server import ports
from triton_sam.service import run
from triton_sam.service.settings import LIMITS, NO_QUOTA, Quota, ServiceSettings, Token

COMMAND = [sys.executable, "-m", "triton_sam", "service"]


def test_local_serves_and_stops_with_everything_that_it_started(tmp_path):
    log = tmp_path / "log"
    nobody = "grpc://127.0.0.1:9"
    with log.open("w") as stream:
        process = subprocess.Popen([*COMMAND, "--local", "--port", "0", "--url", nobody], stderr=stream, cwd=tmp_path)
    try:
        wait_until(lambda: "the page: " in log.read_text() or process.poll() is not None, 120)
        assert f"no Triton is ready at {nobody}: starting a local one" in log.read_text()
        url = re.search(r"the page: (\S+)", log.read_text())[1]

        def healthy():
            try:
                with urllib.request.urlopen(f"{url}health") as answer:
                    return json.loads(answer.read())["models"] == ["sam2"]
            except OSError:
                return False

        wait_until(healthy)
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert all_gone(started, PATIENCE)
    finally:
        process.kill()
    text = log.read_text()
    assert "Traceback" not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert any(line["message"] == "request" and line["path"] == "/health" and line["request_id"] for line in lines)
    assert any(line["message"] == "stopped" for line in lines)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--url", "ftp://a"], "scheme"),
        (["--tokens", "/no/such/file"], "error: --tokens /no/such/file cannot be read: No such file or directory\n"),
        (["--limits", "/no/such/file"], "error: --limits /no/such/file cannot be read: No such file or directory\n"),
        (["--limits", '{"max_body": 1024}'], "the limit memory must be at least max_body"),
        (["--limits", '{"body_memory": 32}'], "the limit body_memory must be at least max_body"),
        (["--limits", '{"pages": 0}'], "pages must be a finite number above 0"),
        (
            ["--limits", '{"image_mib_per_hour": Infinity}'],
            "image_mib_per_hour must be a finite number above 0, not inf",
        ),
        (["--limits", '{"timeout": NaN}'], "timeout must be a number above 0, not nan"),
        (["--limits", '{"max_json": true}'], "max_json must be a number above 0, not True"),
        (["--limits", '{"max_requests": 1.5}'], "max_requests must be a whole number, not 1.5"),
        (["--limits", '{"max_bodies": 1}'], "unknown limit 'max_bodies'; the limits are max_body, "),
        (["--limits", '{"cvat_words": "dog"}'], "cvat_words must be a list of words"),
        (["--limits", '{"label_studio_private_storage": 1}'], "label_studio_private_storage must be true or false"),
        (["--limits", "{"], "--limits is not JSON"),
        (["--root-path", "sam"], "--root-path 'sam': write a path such as /sam"),
        (["--token", ""], "the token is empty"),
        (["--token", "schlüssel"], "the token of 'default' must consist of ASCII letters"),
        (["--port", "-1"], "--port must be 0 to 65535, not -1"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_faults_are_one_line(arguments, word, capsys):
    assert main(["service", "--port", "0", *arguments]) == 1
    error = capsys.readouterr().err
    assert word in error
    assert len(error.strip().splitlines()) == 1


def test_options_become_settings(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("triton_sam.service.run.serve", lambda *given, **options: seen.append((given, options)) or 0)
    monkeypatch.setenv("TRITON_SAM_TOKEN", "")
    monkeypatch.setenv("TRITON_TOKEN", "")
    options = "--host 0.0.0.0 --port 81 --url http://gpu:8000 --triton-token t --ca-certs ca.pem --model sam1 --token s"
    options += " --cors https://a https://b --allowed-host a.example b.example --log-format text --root-path /sam/"
    options += " --adapter all --label-studio-url http://studio"
    tokens, limits = tmp_path / "tokens.json", tmp_path / "limits.json"
    tokens.write_text('{"lab": {"token": "t", "pages": 1}}')
    numbers = {"max_body": 2, "max_megapixels": 3.5, "max_requests": 4, "max_encodes": 5, "max_json": 1.5}
    numbers |= {"body_seconds": 8, "body_memory": 9, "answer_memory": 10, "work_megapixels": 11, "max_pages": 12}
    numbers |= {"page_messages": 13, "requests_per_minute": 14, "pages": 15, "timeout": 6.5, "memory": 7}
    tools = {"cvat_words": ["dog", "cat", "dog"], "label_studio_private_storage": True}
    limits.write_text(json.dumps({**numbers, **tools}))
    assert main(["service", *options.split(), "--quiet", "--tokens", str(tokens), "--limits", str(limits)]) == 0
    expected = ServiceSettings(
        url="http://gpu:8000",
        triton_token="t",
        ca_certs="ca.pem",
        model="sam1",
        token="s",
        origins=("https://a", "https://b"),
        max_body=2 << 20,
        max_megapixels=3.5,
        max_requests=4,
        max_encodes=5,
        timeout=6.5,
        store_bytes=7 << 20,
        max_json=3 << 19,
        body_seconds=8.0,
        body_bytes=9 << 20,
        answer_bytes=10 << 20,
        work_megapixels=11.0,
        max_pages=12,
        page_messages=13.0,
        allowed_hosts=("a.example", "b.example"),
        quota=Quota(requests_per_minute=14, pages=15),
        tokens=(Token("lab", "t", Quota(requests_per_minute=14, pages=1)),),
        log_format="text",
        root_path="/sam",
        adapters=TOOLS,
        cvat_words=("dog", "cat"),
        label_studio_url="http://studio",
        label_studio_private_storage=True,
    )
    assert seen == [((expected, "0.0.0.0", 81), {"repository": None, "quiet": True})]


def test_the_documents_have_every_limit_and_its_default():
    """`triton-sam service --help` names that page for the defaults."""
    text = (checkout() / "docs/reference/rest.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", text, re.MULTILINE)
    told = {
        name: float(re.match(r"[\d.]+", number)[0])
        for names, numbers in rows
        for name, number in zip(re.findall(r"\w+", names), numbers.split(", "), strict=False)
        if name in LIMITS
    }
    assert told == {name: each.default / each.metadata["unit"] for name, each in LIMITS.items()}


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        ([], "secret\n", "secret"),
        (["--token", " given "], "secret", "given"),
        ([], "", None),
    ],
)
def test_a_token_loses_the_line_break_of_its_file(arguments, variable, expected, monkeypatch):
    seen = []
    monkeypatch.setattr("triton_sam.service.run.serve", lambda settings, *_args, **_options: seen.append(settings) or 0)
    monkeypatch.setenv("TRITON_SAM_TOKEN", variable)
    monkeypatch.setenv("TRITON_TOKEN", variable)
    assert main(["service", *arguments]) == 0
    assert seen[0].token == expected
    assert seen[0].triton_token == (variable.strip() or None)


def test_a_blank_token_does_not_open_the_service(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_SAM_TOKEN", " ")
    assert main(["service"]) == 1
    assert "the token is empty" in capsys.readouterr().err


def test_uploads_stay_in_tmpdir(tmp_path, monkeypatch):
    """Python chooses /tmp if the disk of $TMPDIR is full at the first temporary file."""
    monkeypatch.setattr("triton_sam.service.logs.set_up", lambda _: None)
    monkeypatch.setattr(run, "_triton", Mock(side_effect=ServerTimeoutError("no Triton")))
    file = tmp_path / "file"
    file.touch()
    for folder, used in ((tmp_path / "absent", "/tmp"), (file, "/tmp"), (tmp_path, str(tmp_path))):
        monkeypatch.setattr(tempfile, "tempdir", "/tmp")
        monkeypatch.setenv("TMPDIR", str(folder))
        with pytest.raises(ServerTimeoutError):
            run.serve(ServiceSettings(), "127.0.0.1", 0)
        assert tempfile.gettempdir() == used


def test_a_taken_port_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["service", "--port", port]) == 1
    assert f"port {port}: choose another with --port" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("curl") is None or os.name != "posix", reason="no curl")
def test_the_lines_of_the_documentation_work(service, tmp_path):
    text = (checkout() / "docs/reference/rest.md").read_text(encoding="utf-8")
    blocks = [
        block
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        if "curl" in block and "videos" not in block and "large" not in block
    ]
    assert len(blocks) == 2  # test_videos.py and test_large.py run the blocks about videos and large images
    (tmp_path / "test").symlink_to(checkout() / "test")
    script = "set -eo pipefail\n" + "\n".join(blocks).replace("localhost:5000", service.url).replace(
        "curl -s", "curl -sSf"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


# --- what it prints when it starts: faults of Triton, and what people on other computers need ------------------------


def test_what_is_wrong_with_triton(monkeypatch):
    settings, real = ServiceSettings(url="grpc://127.0.0.1:9"), run.Transport
    monkeypatch.setattr(run, "Transport", lambda url, **more: real(url, **{**more, "timeout": PATIENCE}))
    (line,) = run.advice(settings)
    assert line.startswith("nothing answers at grpc://127.0.0.1:9 (")
    assert "); `triton-sam service --local` starts a Triton here" in line
    monkeypatch.setattr(run.probe, "_read", lambda url, *_: "" if url == "http://127.0.0.1:9/v2/health/live" else None)
    (line,) = run.advice(settings)
    assert "); HTTP answers there: give http://127.0.0.1:9; `triton-sam service" in line
    silent = Mock(check_ready=Mock(side_effect=ServerTimeoutError("no answer in 3 s")))
    monkeypatch.setattr(run, "Transport", lambda *_, **__: silent)
    (line,) = run.advice(settings)
    assert line.startswith("no answer in 3 s; HTTP answers there")
    assert "--local" not in line
    silent.close.assert_called_once()


URLS = "for other computers: http://192.0.2.7:5000/ or http://gpu:5000/"
LAB = Token("lab", "secret of the lab", NO_QUOTA)


@pytest.mark.parametrize(
    ("options", "address", "show_token", "words"),
    [
        ({}, "127.0.0.1", True, []),
        (
            {},
            "0.0.0.0",
            True,
            [URLS, "triton-sam service: warning: everyone who reaches port 5000 may use the service"],
        ),
        ({"token": "abc\n"}, "0.0.0.0", True, [f"{URLS}   token: abc"]),
        ({"token": "abc"}, "0.0.0.0", False, [f"{URLS}   token: that of --token or $TRITON_SAM_TOKEN"]),
        ({"tokens": (LAB,)}, "0.0.0.0", True, [f"{URLS}   token: one of --tokens for each caller"]),
        ({"token": "abc"}, "198.51.100.2", True, ["for other computers: http://198.51.100.2:5000/   token: abc"]),
    ],
)
def test_what_other_computers_need(options, address, show_token, words, monkeypatch):
    monkeypatch.setattr(ports, "own_address", lambda: "192.0.2.7")
    monkeypatch.setattr(ports.socket, "gethostname", lambda: "gpu")
    lines = list(run.for_others(ServiceSettings(**options), address, 5000, show_token=show_token))
    assert [line[: len(start)] for line, start in zip(lines, words, strict=True)] == words
    assert show_token or "abc" not in "".join(lines)
    assert LAB.secret not in "".join(lines)
