"""The command line as a person meets it: results, files, one-line errors, exit codes."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.family_configs import write_family

from triton_sam import Cleanup, SAM2TritonClient, __version__
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.masks.rle import rle_to_mask
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url
from triton_sam.verify import OnnxClient


def run(capsys, *arguments):
    """Run the command line in this process; return (exit code, stdout, stderr)."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_one_line_error(result, words):
    code, out, err = result
    assert code == 1, err
    assert out == ""
    assert err.startswith("triton-sam: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert words in err


def test_version(capsys):
    assert run(capsys, "--version")[1] == f"triton-sam {__version__}\n"


def test_a_name_that_no_model_has_is_one_line(capsys, server, images):
    """test/unit/commands/test_errors.py has the mistakes that need no server."""
    result = run(capsys, "predict", images / "shapes.jpg", "--point", "1,1", "--name", "nope", "--url", server.http_url)
    assert_one_line_error(result, "nope_encoder")


def test_predict_cleans_masks(capsys, server, images):
    prompt = (images / "shapes.jpg", "--point=200,180", "--box=150,120,260,240", "--json", "--url", server.http_url)
    options = ("--max-hole-area", 30, "--smooth", 3, "--clip-to-box", "--keep-clicked", "--max-sprinkle-area", 20)
    status, out, _ = run(capsys, "predict", *prompt, *options, "--min-mask-region-area", 50, "--mask-threshold", 2)
    assert status == 0
    cleanup = Cleanup(
        30, 20, mask_threshold=2.0, clip_to_box=True, smooth=3, min_mask_region_area=50, keep_clicked=True
    )
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        expected = client.segment([[200, 180]], [1], box=[150, 120, 260, 240], cleanup=cleanup)[0]
    np.testing.assert_array_equal(rle_to_mask(json.loads(out)["objects"][0]["rle"]), expected.mask)


def test_models_of_repository_and_server(capsys, server):
    code, out, _ = run(capsys, "models", "--url", server.http_url)
    assert code == 0
    assert "sam2.1_hiera_micro" in out
    assert "READY, version 1" in out
    code, out, _ = run(capsys, "models", "--url", server.grpc_url, "--json")
    assert json.loads(out)["ready"].items() >= {"sam2_encoder": "1", "sam2_decoder": "1"}.items()


def test_doctor_tells_devices_and_what_is_missing(capsys, server, tmp_path):
    code, out, _ = run(capsys, "doctor", "--url", server.http_url, "--json")
    assert code == 0
    findings = {finding["subject"]: finding for finding in json.loads(out)}
    assert findings["server"]["status"] == "ok"
    assert findings["local Triton"]["status"] == "ok"
    assert "1 instance on" in findings["model sam2_encoder"]["text"]
    for url in ("127.0.0.1:9", server.http_url):
        code, out, _ = run(capsys, "doctor", "--url", url, "--model-repository", tmp_path)
        assert code == 1
        assert "MISSING models" in out
        assert ("ok      server" if url == server.http_url else "-> triton-sam serve") in out


def test_doctor_fails_when_the_server_it_was_asked_about_is_not_there(capsys):
    code, out, _ = run(capsys, "doctor", "--url", "127.0.0.1:9")
    assert code == 1
    assert "MISSING server" in out
    assert "ok      models" in out  # a server could start here, which is not the question


def test_doctor_and_models_call_usable_what_a_server_would_load(capsys, tmp_path):
    write_family(tmp_path, "sam1")
    shutil.copytree(bundled("model_repository") / "sam2_preprocess", tmp_path / "sam2_preprocess")
    (tmp_path / "sam1_encoder" / "1").mkdir(exist_ok=True)  # a folder is no model
    findings = doctor_findings(capsys, "--model-repository", tmp_path)
    assert findings["models"]["text"] == f"sam2_preprocess in {tmp_path}"
    out = run(capsys, "models", "--model-repository", tmp_path)[1]
    assert "left out: it calls sam1_decoder, sam1_encoder" in out
    assert out.count("left out: it has no weights") == 2
    shutil.rmtree(tmp_path / "sam2_preprocess")
    assert doctor_findings(capsys, "--model-repository", tmp_path)["models"]["status"] == "missing"


def test_reload_refuses_an_unknown_name_before_it_says_that_the_server_starts_again(capsys, monkeypatch, tmp_path):
    shutil.copytree(bundled("model_repository") / "sam2_preprocess", tmp_path / "sam2_preprocess")
    found = SimpleNamespace(repository=tmp_path)
    monkeypatch.setattr("triton_sam.local_server.control.find_closed_server", lambda port: found)
    assert_one_line_error(run(capsys, "reload", "nope", "--url", "127.0.0.1:9"), "no model or variant 'nope'")


def test_doctor_says_that_the_wheel_cannot_run_with_this_python(capsys, monkeypatch):
    monkeypatch.setattr("triton_sam.local_server.installation._python_version", lambda: "3.99")
    found = doctor_findings(capsys)["local Triton"]
    assert found["status"] == "missing"
    assert "cannot run here" in found["text"]
    assert "this is 3.99: use another Python" in found["mend"]


def doctor_findings(capsys, *arguments):
    return {finding["subject"]: finding for finding in json.loads(run(capsys, "doctor", "--json", *arguments)[1])}


def test_verify_compares_and_serves_the_named_pair(tmp_path):
    from support.tiny_models import add_graph, config_of, write_model

    from triton_sam.cli import build_parser
    from triton_sam.commands import verify

    for name in ("sam2_encoder", "sam2_decoder", "large_encoder", "large_decoder"):
        write_model(tmp_path, name, add_graph(), config_of())
    given = ["sam2", "--checkpoint", "x.pt", "--local", "--exported", str(tmp_path), "--name", "large", "-q"]
    args = build_parser().parse_args(["verify", *given])
    comparison = SimpleNamespace(
        served_model="large", in_process=str, client=lambda url, **_: Transport(parse_url(url))
    )
    with contextlib.ExitStack() as stack:
        folder, files = verify._models(args, {}, stack)
        assert {role: path.parent.parent.name for role, path in files.items()} == {
            "encoder": "large_encoder", "decoder": "large_decoder"
        }  # fmt: skip
        for _, open_client in list(verify._runners(args, comparison, folder, files, stack))[1:]:
            with contextlib.closing(open_client()) as transport:
                assert set(transport.ready_models()) == {"large_encoder", "large_decoder"}


def test_verify_without_a_server_does_not_look_where_one_is(monkeypatch):
    monkeypatch.setenv("TRITON_URL", "ftp://nonsense")
    loaded, closed = [], []

    class Transport:
        def __init__(self, files):
            loaded.append(files)

        def close(self):
            closed.append(True)

    monkeypatch.setattr("triton_sam.verify.compare.OnnxTransport", Transport)
    files = {role: Path(role) for role in ("encoder", "decoder")}
    OnnxClient(files).close()
    assert closed == [True]
    assert loaded == [{f"sam2_{role}": path for role, path in files.items()}]


def test_verify_refuses_a_name_that_nothing_has(capsys, tmp_path):
    checkpoint = bundled("checkpoints") / "sam2.1_hiera_micro.pt"
    verify = ("verify", "sam2", "--checkpoint", checkpoint, "--name", "nope")
    assert_one_line_error(run(capsys, *verify, "--exported", tmp_path), "no weights for nope")
    assert_one_line_error(run(capsys, *verify, "--local"), "give --exported or --url")


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_missing_checkpoint_is_named_before_anything_is_loaded(capsys, command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import would fail
    result = run(capsys, command, "sam2", "--size", "tiny", "--checkpoint", tmp_path / "missing.pt")
    assert_one_line_error(
        result, f"no checkpoint at {tmp_path / 'missing.pt'}: get one with `triton-sam download sam2 tiny`"
    )


def test_setup_hands_on_the_standard_operators(capsys, monkeypatch, tmp_path):
    from triton_sam.download import catalogue as checkpoints
    from triton_sam.export import registry

    given = {}
    monkeypatch.setattr(registry, "exporter", lambda family: None)
    monkeypatch.setattr(registry, "export", lambda family, settings: given.update(settings.options))
    monkeypatch.setattr(checkpoints, "download", lambda *arguments, **options: tmp_path)  # 156 MB
    assert run(capsys, "setup", "sam2", "tiny", "--standard-operators")[0] == 0
    assert given["standard_operators"] is True


def test_demo_on_a_server(capsys, server, tmp_path, monkeypatch):
    monkeypatch.setattr("triton_sam.commands.demo.CLICKS", 2)  # fewer repetitions for its median times
    code, out, err = run(capsys, "demo", "--url", server.http_url, "--out", tmp_path)
    assert code == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coffee_overlay.png", "shapes_overlay.png"]
    assert "IoU against the truth" in out
    assert "triton-sam setup sam2 base_plus" in out
    code, out, _ = run(capsys, "demo", "--url", server.http_url, "--out", tmp_path, "--json")
    answer = json.loads(out)
    assert len([row for row in answer["objects"] if "iou" in row]) == 6
    assert answer["median_ms"]["later clicks"] > 0


def test_the_installed_command_starts_its_own_server(images, tmp_path):
    mask = tmp_path / "mask.png"
    arguments = [images / "coffee.jpg", "--point", "285,150", "--local", "--out", mask]
    done = subprocess.run(
        [sys.executable, "-m", "triton_sam", "predict", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TRITON_URL": "127.0.0.1:9"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Image.open(mask) as image:
        assert image.size == (600, 400)


def test_import_is_light():
    heavy = ("torch", "onnx", "onnxruntime", "fastapi", "scipy", "matplotlib", "grpc")
    code = f"import sys, triton_sam; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
