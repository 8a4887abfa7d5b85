"""SAM3's downloads from a fake hub: an HTTP server that speaks the few words that huggingface_hub needs."""

from __future__ import annotations

import hashlib
import http.server
import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.export
pytest.importorskip("huggingface_hub")
onnx = pytest.importorskip("onnx")

from triton_sam import hub as hub_module  # noqa: E402
from triton_sam.bundle import bundled, checkout  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.errors import ChecksumError, ConfigurationError, DownloadError  # noqa: E402
from triton_sam.families.sam3 import Sam3  # noqa: E402
from triton_sam.hub import Hub, download_checkpoint, download_onnx  # noqa: E402
from triton_sam.repository import list_models, parse_config  # noqa: E402

DATA = random.Random(0).randbytes(300_000)
NUMBERS = {"FP32": onnx.TensorProto.FLOAT, "INT64": onnx.TensorProto.INT64}


def graph(role: str, published: str) -> bytes:
    """A graph with the published signature that names its external data."""
    spec = getattr(Sam3, role)

    def values(tensors):
        return [onnx.helper.make_tensor_value_info(t.name, NUMBERS[t.dtype], t.shape) for t in tensors]

    weight = onnx.TensorProto(name="w", data_type=1, dims=[75_000], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=f"{published}_data")
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], role, values(spec.inputs), values(spec.outputs), [weight])
    )
    return model.SerializeToString()


def published_files() -> dict[str, bytes]:
    files = {}
    for role, stem in (("encoder", "vision_encoder"), ("decoder", "prompt_encoder_mask_decoder")):
        for ending in ("", "_fp16"):
            name = f"{stem}{ending}.onnx"
            files[f"onnx/{name}"] = graph(role, name)
            files[f"onnx/{name}_data"] = DATA + name.encode()
    return files


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        hub = self.server
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", self.path)
        hub.requests.append((self.command, self.path, self.headers.get("Range")))
        if hub.refusal is None and re.fullmatch(r"/api/models/[^/]+/[^/]+(/revision/main)?(\?.*)?", self.path):
            described = {"id": "a/b", "sha": "0" * 40, "siblings": [{"rfilename": name} for name in hub.files]}
            self.reply(200, json.dumps(described).encode(), {"Content-Type": "application/json"}, body)
            return
        if hub.refusal is not None or match is None or match[2] not in hub.files:
            code, error = hub.refusal or (404, "EntryNotFound")
            self.reply(code, b"", {"X-Error-Code": error, "X-Error-Message": "no\nsecond line"}, body)
            return
        content = hub.files[match[2]]
        digest = hashlib.sha256(hub.stated.get(match[2], content)).hexdigest()
        headers = {"X-Repo-Commit": "0" * 40, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        headers["ETag"] = f'"{digest}"'
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.reply(206 if start else 200, content[start:], headers, body)

    def reply(self, code: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value.replace("\n", " "))
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if body:
            limit, self.server.cut = self.server.cut, None
            self.wfile.write(content[:limit])
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


class FakeHub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = published_files()
        self.stated: dict[str, bytes] = {}
        self.refusal: tuple[int, str] | None = None
        self.cut: int | None = None
        self.requests: list[tuple[str, str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_module.huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr("triton_sam.download.sleep", lambda seconds: None)


def snapshot(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("precision", "ending"), [("fp32", ""), ("fp16", "_fp16")])
def test_files_lie_where_triton_looks(fake: FakeHub, tmp_path: Path, precision: str, ending: str) -> None:
    files = download_onnx(tmp_path, precision=precision, hub=Hub(fake.url, progress=False))
    assert snapshot(tmp_path) == {
        "sam3_encoder/config.pbtxt",
        "sam3_encoder/1/vision_encoder.onnx",
        f"sam3_encoder/1/vision_encoder{ending}.onnx_data",
        "sam3_decoder/config.pbtxt",
        "sam3_decoder/1/prompt_encoder_mask_decoder.onnx",
        f"sam3_decoder/1/prompt_encoder_mask_decoder{ending}.onnx_data",
    }
    assert files["encoder"].read_bytes() == fake.files[f"onnx/vision_encoder{ending}.onnx"]
    config = parse_config((tmp_path / "sam3_encoder" / "config.pbtxt").read_text())
    assert config.default_model_filename == "vision_encoder.onnx"
    assert not [model.problem for model in list_models(tmp_path) if model.problem]


def test_committed_configs_fit_the_published_signature(fake: FakeHub, tmp_path: Path) -> None:
    download_onnx(tmp_path, hub=Hub(fake.url, progress=False))
    for role in ("encoder", "decoder"):
        committed = bundled("model_repository") / f"sam3_{role}" / "config.pbtxt"
        assert (tmp_path / f"sam3_{role}" / "config.pbtxt").read_text() == committed.read_text()


def test_broken_download_goes_on(fake: FakeHub, tmp_path: Path) -> None:
    fake.cut = 100
    download_onnx(tmp_path, hub=Hub(fake.url, progress=False))
    assert (
        "GET",
        "/onnx-community/sam3-tracker-ONNX/resolve/main/onnx/vision_encoder.onnx",
        "bytes=100-",
    ) in fake.requests


def test_wrong_content_is_refused_and_nothing_installed(fake: FakeHub, tmp_path: Path) -> None:
    fake.stated["onnx/prompt_encoder_mask_decoder.onnx_data"] = b"something else"
    with pytest.raises(ChecksumError, match="SHA-256") as caught:
        download_onnx(tmp_path, hub=Hub(fake.url, progress=False))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*/1"))
    fake.stated.clear()
    fake.requests.clear()
    download_onnx(tmp_path, hub=Hub(fake.url, progress=False))
    fetched = [path for method, path, _ in fake.requests if method == "GET"]
    assert fetched == ["/onnx-community/sam3-tracker-ONNX/resolve/main/onnx/prompt_encoder_mask_decoder.onnx_data"]


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        ((401, "GatedRepo"), "hf_login.py"),
        ((401, ""), "hf_login.py"),
        ((403, "GatedRepo"), "not admitted"),
        ((404, "RepoNotFound"), "no onnx-community/sam3-tracker-ONNX on the hub"),
        ((404, "EntryNotFound"), "no such file"),
        ((500, ""), "HTTP status 500"),
    ],
)
def test_refusals_are_one_line(fake: FakeHub, tmp_path: Path, refusal: tuple[int, str], text: str) -> None:
    fake.refusal = refusal
    with pytest.raises(DownloadError, match=text) as caught:
        download_onnx(tmp_path, hub=Hub(fake.url, progress=False))
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == set()


def test_gated_checkpoint_without_login(fake: FakeHub, tmp_path: Path) -> None:
    for refusal, text in (((401, "GatedRepo"), "hf_login"), ((403, "GatedRepo"), "huggingface.co/facebook/sam3")):
        fake.refusal = refusal
        with pytest.raises(DownloadError, match=text) as caught:
            download_checkpoint(tmp_path / "sam3", hub=Hub(fake.url, progress=False))
        assert "\n" not in str(caught.value)


def test_the_gated_checkpoint_is_checked_by_its_hash(fake: FakeHub, tmp_path: Path) -> None:
    fake.files |= {
        "model.safetensors": DATA,
        "../out.safetensors": DATA,
        "sub/other.safetensors": DATA,
        "sam3.pt": DATA,
    }
    target = Hub(fake.url, progress=False)
    fake.stated["model.safetensors"] = b"something else"
    with pytest.raises(ChecksumError, match="SHA-256"):
        download_checkpoint(tmp_path / "sam3", hub=target)
    assert "model.safetensors" not in snapshot(tmp_path / "sam3")
    fake.stated.clear()
    download_checkpoint(tmp_path / "sam3", hub=target)
    assert {name for name in snapshot(tmp_path) if not name.startswith("sam3/.cache")} == {"sam3/model.safetensors"}
    assert (tmp_path / "sam3" / "model.safetensors").read_bytes() == DATA


def test_no_network(tmp_path: Path) -> None:
    closed = FakeHub()
    closed.server_close()
    for call in (
        lambda hub: download_onnx(tmp_path, hub=hub),
        lambda hub: download_checkpoint(tmp_path / "sam3", hub=hub),
    ):
        with pytest.raises(DownloadError, match=r"cannot reach .*HTTPS_PROXY") as caught:
            call(Hub(closed.url, progress=False))
        assert "\n" not in str(caught.value)


def test_unknown_precision(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fp32, fp16"):
        download_onnx(tmp_path, precision="int8")


def test_command(fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mirror", fake.url, "--model-repository", str(tmp_path), "-q"]
    assert main(["download", "sam3", "fp16", *options]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("sam3_encoder/1/vision_encoder.onnx")
    assert main(["setup", "sam3", *options]) == 0
    fake.refusal = (403, "GatedRepo")
    assert main(["download", "sam3", "checkpoint", "--directory", str(tmp_path), *options]) == 1
    assert "not admitted" in capsys.readouterr().err


@pytest.mark.skipif(checkout() is None, reason="scripts/ is in the checkout only")
@pytest.mark.parametrize("script", ["download_sam3_onnx.py", "download_sam3.py", "hf_login.py"])
def test_scripts_start(script: str) -> None:
    command = [sys.executable, bundled(f"scripts/{script}"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Hugging Face" in done.stdout or "sam3" in done.stdout
