"""SAM3's downloads from a fake hub: an HTTP server with the few endpoints that huggingface_hub needs."""

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
from support.in_process import write_one_pass
from support.tiny_models import signature

pytestmark = pytest.mark.export
pytest.importorskip("huggingface_hub")
onnx = pytest.importorskip("onnx")

from support.contents import files_below  # noqa: E402
from support.fake_hub import COMMIT, DATA, TOKEN, FakeHub, checkpoint_files  # noqa: E402
from support.socket_server import refusing_port  # noqa: E402

from triton_sam._common import process  # noqa: E402
from triton_sam._common.bundle import bundled, checkout  # noqa: E402
from triton_sam.cli import main  # noqa: E402
from triton_sam.download import catalogue  # noqa: E402
from triton_sam.download import hub as hub_module  # noqa: E402
from triton_sam.download.hub import Hub, download_checkpoint, download_onnx  # noqa: E402
from triton_sam.errors import ChecksumError, ConfigurationError, DownloadError  # noqa: E402
from triton_sam.families.sam3 import SAM3  # noqa: E402
from triton_sam.repository.config import config_for  # noqa: E402
from triton_sam.repository.folder import list_models, unguarded_graphs  # noqa: E402
from triton_sam.repository.install import install  # noqa: E402


@pytest.fixture
def fake():
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_module.huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr("triton_sam.download.fetch.sleep", lambda seconds: None)


@pytest.mark.parametrize(("precision", "ending"), [("fp32", ""), ("fp16", "_fp16")])
def test_files_lie_where_triton_looks(fake, tmp_path, precision, ending):
    files = download_onnx(SAM3, tmp_path, precision=precision, hub=Hub(fake.url, progress=False))
    assert files_below(tmp_path).keys() == {
        "sam3_encoder/config.pbtxt",
        "sam3_encoder/1/vision_encoder.onnx",
        f"sam3_encoder/1/vision_encoder{ending}.onnx_data",
        "sam3_encoder/SHA256SUMS",
        "sam3_decoder/SHA256SUMS",
        "sam3_decoder/config.pbtxt",
        "sam3_decoder/1/prompt_encoder_mask_decoder.onnx",
        f"sam3_decoder/1/prompt_encoder_mask_decoder{ending}.onnx_data",
    }
    assert files["encoder"].read_bytes() == fake.files[f"onnx/vision_encoder{ending}.onnx"]
    for role, spec in SAM3.models.items():
        published = signature(replace(spec, further_outputs=()), "sam3")
        config = config_for(published, f"sam3_{role}", spec.filename)
        assert (tmp_path / f"sam3_{role}" / "config.pbtxt").read_text() == config
    assert not [model.problem for model in list_models(tmp_path) if model.problem]


def test_a_broken_download_goes_on_and_weights_of_another_precision_go(fake, tmp_path):
    fake.cut = 100
    download_onnx(SAM3, tmp_path, hub=Hub(fake.url, progress=False))
    assert ("GET", f"{PLACE}vision_encoder.onnx", "bytes=100-") in fake.requests
    download_onnx(SAM3, tmp_path, precision="fp16", hub=Hub(fake.url, progress=False))
    data = [path.name for path in (tmp_path / "sam3_encoder" / "1").glob("*.onnx_data")]
    assert data == ["vision_encoder_fp16.onnx_data"]


PLACE = "/onnx-community/sam3-tracker-ONNX/resolve/main/onnx/"


def test_the_hub_states_the_hash_that_nobody_publishes(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "Hub", lambda progress: Hub(fake.url, progress))
    monkeypatch.delenv(catalogue.MIRROR_VARIABLE, raising=False)
    fake.files = {"sam_hq_vit_b.pth": DATA}
    checkpoint = catalogue.find("samhq", "vit_b")
    assert not checkpoint.sha256
    path = catalogue.download(checkpoint, tmp_path, progress=False)
    assert path == tmp_path / "sam_hq_vit_b.pth"
    assert path.read_bytes() == DATA
    assert {url for _, url, _ in fake.requests} == {"/lkeab/hq-sam/resolve/main/sam_hq_vit_b.pth"}

    path.unlink()
    fake.stated["sam_hq_vit_b.pth"] = b"another file"
    with pytest.raises(ChecksumError, match="not the expected file"):
        catalogue.download(checkpoint, tmp_path, progress=False)
    assert not path.exists()
    with pytest.raises(ConfigurationError, match="set HF_ENDPOINT"):
        catalogue.download(checkpoint, tmp_path, mirror="http://mirror.example", progress=False)


def fetched(fake: FakeHub) -> list[str]:
    """Return the files that were requested since the last call, without requests for metadata."""
    paths = [path.removeprefix(PLACE) for method, path, _ in fake.requests if method == "GET"]
    fake.requests.clear()
    return paths


def test_what_is_in_place_is_not_fetched_again(fake, tmp_path):
    hub = Hub(fake.url, progress=False)
    files = download_onnx(SAM3, tmp_path, hub=hub)
    before = files_below(tmp_path).keys()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.onnx*")}
    fetched(fake)
    (tmp_path / "sam3_encoder" / "config.pbtxt").write_text("# edited")
    assert download_onnx(SAM3, tmp_path, hub=hub) == files
    assert fetched(fake) == []
    assert files_below(tmp_path).keys() == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.onnx*")} == times
    assert "vision_encoder" in (tmp_path / "sam3_encoder" / "config.pbtxt").read_text()
    files["encoder"].write_bytes(b"damaged")  # its external data is right, so it is not fetched again
    data = tmp_path / "sam3_decoder" / "1" / "prompt_encoder_mask_decoder.onnx_data"
    data.write_bytes(bytes(data.stat().st_size))
    download_onnx(SAM3, tmp_path, hub=hub)
    assert fetched(fake) == ["vision_encoder.onnx", data.name]
    assert files_below(tmp_path).keys() == before
    assert data.read_bytes() == fake.files[f"onnx/{data.name}"]
    assert files["encoder"].read_bytes() == fake.files["onnx/vision_encoder.onnx"]


def test_a_slash_behind_the_mirror(fake, tmp_path):
    download_onnx(SAM3, tmp_path, hub=Hub(f"{fake.url}/", progress=False))
    fake.files = checkpoint_files()
    download_checkpoint(SAM3, tmp_path / "sam3", hub=Hub(f"{fake.url}/", progress=False))
    assert not [path for _, path, _ in fake.requests if "//" in path]


def test_a_download_warns_of_a_newer_version(fake, tmp_path, capsys):
    newer = tmp_path / "sam3_decoder" / "2"
    newer.mkdir(parents=True)
    download_onnx(SAM3, tmp_path, hub=Hub(fake.url))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"sam3: version 1 is not served: Triton serves the newest, 2. To serve version 1: rm -r {newer}"
    newer.rmdir()
    download_onnx(SAM3, tmp_path, hub=Hub(fake.url))
    assert "not served" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "^cannot write x/y: No space left on device$"),
        (PermissionError(errno.EACCES, "Permission denied", "/z"), "^cannot write x/y in /z: Permission denied$"),
        (OSError("Could not find a suitable TLS CA certificate bundle"), "^cannot reach .*certificate bundle"),
        (PermissionError(errno.EPERM, "Operation not permitted"), "^cannot reach"),  # of a firewall
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "^cannot reach"),
    ],
)
def test_the_disk_is_not_the_network(error, text):
    with pytest.raises(DownloadError, match=text):
        Hub().ask("x/y", Mock(side_effect=error))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write: No space left on device"),
        (OSError(errno.EROFS, "Read-only file system", "/models"), "/models: Read-only file system"),
    ],
)
def test_scripts_report_disk_errors_in_one_line(error, text, capsys):
    assert process.run_program(Mock(side_effect=error)) == 1
    assert capsys.readouterr().err == f"error: {text}\n"


def test_wrong_content_is_refused_and_nothing_installed(fake, tmp_path):
    fake.stated["onnx/prompt_encoder_mask_decoder.onnx_data"] = b"something else"
    with pytest.raises(ChecksumError, match="SHA-256") as caught:
        download_onnx(SAM3, tmp_path, hub=Hub(fake.url, progress=False))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*/1"))
    fake.stated.clear()
    fake.requests.clear()
    download_onnx(SAM3, tmp_path, hub=Hub(fake.url, progress=False))
    assert fetched(fake) == ["prompt_encoder_mask_decoder.onnx_data"]


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        ((401, "GatedRepo"), "hf auth login"),
        ((401, ""), "hf auth login"),
        ((403, "GatedRepo"), "you have no access"),
        ((404, "RepoNotFound"), "the hub has no repository onnx-community/sam3-tracker-ONNX"),
        ((404, "EntryNotFound"), "no such file"),
        ((500, ""), "HTTP status 500"),
    ],
)
def test_refusals_are_one_line(fake, tmp_path, refusal, text):
    fake.refusal = refusal
    with pytest.raises(DownloadError, match=text) as caught:
        download_onnx(SAM3, tmp_path, hub=Hub(fake.url, progress=False))
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path) == {}


@pytest.fixture
def gated(fake):
    fake.files = checkpoint_files()
    return fake


def test_a_gated_checkpoint_goes_on(gated, tmp_path):
    gated.files |= {"../out.safetensors": DATA, "sub/other.safetensors": DATA}  # the hub names files: none may lead out
    gated.cut_data = 100_000
    folder = download_checkpoint(SAM3, tmp_path / "sam3", hub=Hub(gated.url, progress=False))
    place = f"/facebook/sam3/resolve/{COMMIT}/model.safetensors"
    ranges = [range_ for method, path, range_ in gated.requests if (method, path) == ("GET", place)]
    assert ranges == [None, "bytes=100000-"]
    for name in ("config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == gated.files[name]
    names = {name for name in files_below(folder) if not name.startswith(".cache")}
    assert names == {"config.json", "model.safetensors"}


def test_a_gated_checkpoint_of_wrong_content_and_a_repository_without_weights(gated, tmp_path):
    gated.stated["model.safetensors"] = b"something else"
    with pytest.raises(ChecksumError, match="SHA-256") as caught:
        download_checkpoint(SAM3, tmp_path, hub=Hub(gated.url, progress=False))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.safetensors").exists()
    del gated.files["model.safetensors"]
    with pytest.raises(DownloadError, match=r"no \*\.safetensors file: is 127\.0\.0\.1:"):
        download_checkpoint(SAM3, tmp_path, hub=Hub(gated.url.replace("//", "//me:secret@"), progress=False))


def test_no_network_and_an_unknown_precision(tmp_path):
    with pytest.raises(ConfigurationError, match="fp32, fp16"):
        download_onnx(SAM3, tmp_path, precision="int8", hub=Hub())
    for call in (
        lambda hub: download_onnx(SAM3, tmp_path, hub=hub),
        lambda hub: download_checkpoint(SAM3, tmp_path / "sam3", hub=hub),
    ):
        with refusing_port() as port, pytest.raises(DownloadError, match=r"cannot reach .*HTTPS_PROXY") as caught:
            call(Hub(f"http://127.0.0.1:{port}", progress=False))
        assert "\n" not in str(caught.value)


def test_published_files_do_not_replace_the_encoder_of_words(fake, tmp_path, capsys):
    mirror, repository = ["--mirror", fake.url, "-q"], ["--model-repository", write_one_pass(tmp_path)]
    before = files_below(tmp_path).keys()
    assert main(["setup", "sam3", "--precision", "fp32", *mirror, *repository]) == 1
    told = capsys.readouterr().err.strip()
    assert "`triton-sam setup sam3 --concepts`, give the published models another --name, or remove" in told
    assert "\n" not in told
    assert (fetched(fake), files_below(tmp_path).keys()) == ([], before)
    assert main(["setup", "sam3", "--name", "sam3_clicks", *mirror, *repository]) == 0
    assert before < files_below(tmp_path).keys()


def test_a_graph_is_not_installed_without_the_guard(fake, tmp_path, monkeypatch):
    def install_guarded(moves, repository):
        install(moves, repository)
        assert unguarded_graphs(repository) == []

    monkeypatch.setattr(hub_module, "install", install_guarded)
    for _ in range(2):
        assert main(["download", "sam3", "--mirror", fake.url, "--model-repository", str(tmp_path), "-q"]) == 0


def test_command(fake, tmp_path, capsys):
    mirror, repository = ["--mirror", fake.url, "-q"], ["--model-repository", str(tmp_path)]
    assert main(["download", "sam3", "fp16", *mirror, *repository]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("sam3_encoder/1/vision_encoder.onnx")
    assert unguarded_graphs(tmp_path) == []
    fetched(fake)
    assert main(["setup", "sam3", "fp16", "--precision", "fp16", *mirror, *repository]) == 0
    assert main(["setup", "sam3", "--precision", "fp16", *mirror, *repository]) == 0
    graphs = ["vision_encoder_fp16.onnx", "prompt_encoder_mask_decoder_fp16.onnx"]  # the guard changed them
    assert fetched(fake) == 2 * graphs
    assert unguarded_graphs(tmp_path) == []
    assert main(["setup", "sam3", *mirror, *repository]) == 0
    assert len(fetched(fake)) == 4
    fake.files, fake.refusal = checkpoint_files(), (403, "GatedRepo")
    capsys.readouterr()
    assert main(["download", "sam3", "checkpoint", "--directory", str(tmp_path), *mirror]) == 1
    assert "you have no access" in capsys.readouterr().err


def run_script(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the checkout as a user who has never logged in."""
    clean = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HTTPS_PROXY")}
    paths = {"PYTHON": sys.executable, "PYTHONPATH": str(checkout()), "NO_PROXY": "127.0.0.1"}
    program = ["bash"] if script.endswith(".sh") else [sys.executable]
    return subprocess.run(
        [*program, str(bundled(f"scripts/{script}")), *arguments],
        capture_output=True, text=True, env={**clean, **paths, **environment}, timeout=120,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


needs_scripts = pytest.mark.skipif(checkout() is None, reason="scripts/ is in the checkout only")


@pytest.mark.slow
@needs_scripts
def test_scripts_from_login_to_checkpoint(gated, tmp_path):
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_ETAG_TIMEOUT": "120", "HF_HUB_DOWNLOAD_TIMEOUT": "120"}
    target = ("--directory", str(tmp_path), "--mirror", gated.url, "-q")
    gated.gate = TOKEN
    done = run_script("download_sam3.sh", *target, **home)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "hf auth login" in done.stderr
    program = [sys.executable, "-m", "huggingface_hub.cli.hf", "auth", "login", "--token", TOKEN]
    subprocess.run(program, env={**os.environ, "HF_ENDPOINT": gated.url, **home}, check=True, capture_output=True)
    done = run_script("download_sam3.sh", *target, **home)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "sam3")), done.stderr
    assert (tmp_path / "sam3" / "model.safetensors").read_bytes() == DATA
