"""The command line as a person meets it: results, files, one-line errors, exit codes."""

import io
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.commands import error_of
from support.tiny_models import write_family

from triton_sam import Cleanup, SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.cli import main
from triton_sam.masks.rle import rle_to_mask


def run(capsys, *arguments):
    """Run the command line in this process; return (exit code, stdout, stderr)."""
    return main([str(argument) for argument in arguments]), *capsys.readouterr()


def test_a_name_that_no_model_has_is_one_line(capsys, server, images):
    """test/unit/commands/test_errors.py has the mistakes that need no server."""
    command = ["predict", str(images / "shapes.jpg"), "--point", "1,1", "--name", "nope", "--url", server.http_url]
    assert "nope_encoder" in error_of(command, capsys)


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
    assert "model sam1" not in findings  # nothing of this family is here
    out = run(capsys, "models", "--model-repository", tmp_path)[1]
    assert "left out: it calls sam1_decoder, sam1_encoder" in out
    assert out.count("left out: it has no weights") == 2
    for name in ("sam2", "sam2_encoder"):
        shutil.copytree(bundled("model_repository") / name, tmp_path / name)
    finding = doctor_findings(capsys, "--model-repository", tmp_path)["model sam2"]
    assert finding["text"] == "left out: it calls sam2_decoder, which has no weights here"
    assert finding["mend"] == "triton-sam setup sam2"
    for name in ("sam2", "sam2_encoder", "sam2_preprocess"):
        shutil.rmtree(tmp_path / name)
    assert doctor_findings(capsys, "--model-repository", tmp_path)["models"]["status"] == "missing"


def test_reload_refuses_an_unknown_name_before_it_says_that_the_server_starts_again(capsys, monkeypatch, tmp_path):
    shutil.copytree(bundled("model_repository") / "sam2_preprocess", tmp_path / "sam2_preprocess")
    found = SimpleNamespace(repository=tmp_path)
    monkeypatch.setattr("triton_sam.local_server.control.find_closed_server", lambda port: found)
    assert "no model or variant 'nope'" in error_of(["reload", "nope", "--url", "127.0.0.1:9"], capsys)


def doctor_findings(capsys, *arguments):
    return {finding["subject"]: finding for finding in json.loads(run(capsys, "doctor", "--json", *arguments)[1])}


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
    assert "triton-sam setup sam2" in out
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


# --- `triton-sam predict`: several images, streams, formats of files, candidates, refinement


POINT = ("--point", "200,180")


@pytest.fixture
def predict(capfdbinary, server):
    """Return a function that runs the command against the shared server: (exit code, stdout as bytes, stderr)."""

    def run(*arguments, url=server.http_url):
        code = main(["predict", *map(str, arguments), *(() if url is None else ("--url", url))])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


@pytest.fixture
def expected(server, images):
    """The mask of POINT in shapes.jpg."""
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        yield client.segment([[200, 180]])[0]


@pytest.fixture
def pictures(images, tmp_path):
    for name in ("shapes.jpg", "coffee.jpg"):
        (tmp_path / name).write_bytes((images / name).read_bytes())
    return tmp_path


def opened(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_without_a_file_it_prints_a_table_and_a_hint(predict, images, expected):
    code, out, err = predict(images / "shapes.jpg", *POINT)
    assert code == 0
    assert out.decode() == f"object 0: score {expected.score:.3f}, {expected.area} pixels, box {expected.box}\n"
    assert "--out mask.png" in err
    assert predict(images / "shapes.jpg", *POINT, "--quiet")[2] == ""


def test_the_demo_model_is_named_once_on_standard_error(predict, pictures, server):
    """The server tells it by both protocols; --json and --quiet are silent."""
    line = "the masks come from the weights of the demo model; `triton-sam setup sam2` fetches official weights\n"
    images = (pictures / "shapes.jpg", pictures / "coffee.jpg")
    for url in (server.http_url, server.grpc_url):
        code, out, err = predict(*images, *POINT, url=url)
        assert (code, err.count(line)) == (0, 1)
        assert b"weights" not in out
    for option in ("--json", "--quiet"):
        assert predict(*images, *POINT, option)[2].count("demo") == 0


def test_from_standard_input_to_standard_output(predict, images, expected, monkeypatch):
    content = (images / "shapes.jpg").read_bytes()
    for name, check in (
        ("png", lambda out: np.testing.assert_array_equal(opened(out) > 0, expected.mask)),
        ("rle", lambda out: np.testing.assert_array_equal(rle_to_mask(json.loads(out)[0]["rle"]), expected.mask)),
    ):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        code, out, err = predict("-", *POINT, "--out", "-", "--format", name, "--quiet")
        assert (code, err) == (0, "")
        check(out)


def test_all_candidates(predict, images, server, tmp_path):
    code, out, _ = predict(images / "shapes.jpg", *POINT, "--all-candidates", "--out", tmp_path / "mask.png")
    assert code == 0
    assert [line.split(":")[0] for line in out.decode().splitlines()] == [f"object 0, candidate {n}" for n in range(3)]
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        segments = client.segment([[200, 180]], multimask_output=True)
    for segment, name in zip(segments, ("mask", "mask_1", "mask_2"), strict=True):
        with Image.open(tmp_path / f"{name}.png") as mask:
            np.testing.assert_array_equal(np.asarray(mask) > 0, segment.mask)


def test_a_mask_is_refined_by_its_logits(predict, images, expected, server, tmp_path):
    logits, refined = tmp_path / "logits.npy", tmp_path / "refined.png"
    assert predict(images / "shapes.jpg", *POINT, "--logits", logits)[0] == 0
    np.testing.assert_array_equal(np.load(logits)[0, 0], expected.logits)
    arguments = ("--point", "100,100,0", "--mask-input", logits, "--out", refined)
    assert predict(images / "shapes.jpg", *POINT, *arguments)[0] == 0
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")
        again = client.segment([[200, 180], [100, 100]], [1, 0], mask_input=expected.logits)[0]
    with Image.open(refined) as mask:
        np.testing.assert_array_equal(np.asarray(mask) > 0, again.mask)
