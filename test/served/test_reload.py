"""A running server: accelerators on a CPU, reload, and the devices that `doctor` reports."""

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.tiny_models import SCALE_CONFIG, config_text, scale_graph, write_family, write_model

from triton_sam import SAM2TritonClient
from triton_sam.cli import main
from triton_sam.commands import doctor
from triton_sam.commands.doctor import server_gpus
from triton_sam.commands.reload import reload
from triton_sam.errors import InferenceError
from triton_sam.local_server import LocalServer
from triton_sam.local_server.serve import cpu_fallbacks
from triton_sam.repository.accelerators import Tuning, tune
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url, usual_metrics_url


@pytest.fixture(scope="module")
def running(toy_repository, tmp_path_factory):
    """Yield a local Triton with SAM2's models, which are tuned for a GPU that the machine may lack."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        shutil.copytree(toy_repository / name, folder / name)
    write_family(folder, "sam1")
    for name in ("sam2_encoder", "sam2_decoder"):
        (folder / name / "config.pbtxt").write_text(tune(config_text(name), Tuning("cuda", "cuda")))
    with LocalServer(folder, models=["sam2"], admin=True) as server:
        yield SimpleNamespace(server=server, repository=folder)


def test_doctor_names_device_and_accelerators(running, capsys):
    for url in (running.server.http_url, running.server.grpc_url):
        assert main(["doctor", "--url", url, "--json"]) == 0
        findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
        assert findings["model sam2_encoder"]["text"].endswith("; with cuda")
    assert main(["doctor", "--url", running.server.http_url, "--metrics-url", "http://127.0.0.1:9/metrics"]) == 0
    assert "no answer at http://127.0.0.1:9/metrics" in capsys.readouterr().out


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_reload_serves_new_files_and_renews_the_session_model(running, protocol, images):
    """A new config.pbtxt changes the number of instances. The reloaded session model starts with an empty cache.

    Models that are tuned for a GPU give masks without one.
    """
    url = running.server.http_url if protocol == "http" else running.server.grpc_url
    transport = Transport(parse_url(url), timeout=120)
    path = running.repository / "sam2_decoder" / "config.pbtxt"
    with SAM2TritonClient(url, timeout=120) as client:
        client.set_image(images / "shapes.jpg")
        before, _ = client.predict([[200, 180]], [1])
        assert (before[0, 0] > 0).sum() > 100
        count = 2 if protocol == "http" else 1
        path.write_text(tune(path.read_text(), Tuning("cuda", "cuda", instances=count)))
        assert reload(transport, ["sam2"]) == ["sam2_encoder", "sam2_decoder", "sam2"]
        assert transport.model_config("sam2_decoder")["instance_group"][0]["count"] == count
        assert "reloaded" in transport.model_config("sam2")["parameters"]
        after, _ = client.predict([[200, 180]], [1])  # the image is sent again by itself
    np.testing.assert_array_equal(before, after)
    assert reload(transport, ["sam2_encoder"]) == ["sam2_encoder", "sam2"]
    transport.close()


def test_reload_of_a_missing_model_is_one_line(running, capsys):
    for name, words in (("nope", "no model or variant 'nope', but"), ("sam1", "sam1_encoder")):
        assert main(["reload", name, "--url", running.server.http_url]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert main(["reload", "sam2_decoder", "--url", running.server.grpc_url]) == 0
    assert capsys.readouterr().out == "sam2_decoder version 1\n"


@pytest.mark.parametrize(("protocol", "version"), [("http", "1"), ("grpc", "2")], ids=["replaced", "newer"])
def test_a_damaged_file_leaves_the_old_model_serving(running, protocol, version, images):
    """A truncated ONNX file replaces the served one, or becomes a newer version."""
    url = running.server.http_url if protocol == "http" else running.server.grpc_url
    transport = Transport(parse_url(url), timeout=120)
    with SAM2TritonClient(url, timeout=120) as client, contextlib.ExitStack() as undo:
        undo.callback(transport.close)
        client.set_image(images / "shapes.jpg")
        before, _ = client.predict([[200, 180]], [1])
        for role in ("encoder", "decoder"):
            folder = running.repository / f"sam2_{role}"
            content = (folder / "1" / "model.onnx").read_bytes()
            if version == "1":
                undo.callback((folder / "1" / "model.onnx").write_bytes, content)
            else:
                undo.callback(shutil.rmtree, folder / version)
                (folder / version).mkdir()
            (folder / version / "model.onnx").write_bytes(content[: len(content) // 2])
            with pytest.raises(InferenceError, match=r"model\.onnx"):
                transport.load_model(folder.name)
            client.set_image(images / "shapes.jpg")
            np.testing.assert_array_equal(client.predict([[200, 180]], [1])[0], before)
        with pytest.raises(InferenceError):
            reload(transport, ["sam2"])
        np.testing.assert_array_equal(client.predict([[200, 180]], [1])[0], before)
    with SAM2TritonClient(url, timeout=120) as client:
        again = Transport(parse_url(url), timeout=120)
        assert reload(again, ["sam2"]) == ["sam2_encoder", "sam2_decoder", "sam2"]
        again.close()
        client.set_image(images / "shapes.jpg")
        np.testing.assert_array_equal(client.predict([[200, 180]], [1])[0], before)


def test_a_silent_fallback_is_reported(tmp_path, monkeypatch):
    configs = {
        "on_gpu": {"backend": "onnxruntime", "instance_group": [{"kind": "KIND_GPU", "gpus": [0]}]},
        "fallen": {"backend": "onnxruntime", "instance_group": [{"kind": "KIND_CPU"}]},
        "python": {"backend": "python", "instance_group": [{"kind": "KIND_CPU"}]},
    }
    transport = SimpleNamespace(model_config=configs.get)
    findings = {finding.subject: finding.status for finding in doctor._devices(transport, list(configs), False)}
    assert findings == {"model on_gpu": "ok", "model fallen": "note", "model python": "ok"}
    del configs["on_gpu"]  # all models are on the CPU, so only the server's metrics tell that there is a GPU
    assert [finding.status for finding in doctor._devices(transport, list(configs), False)] == ["ok", "ok"]
    assert [finding.status for finding in doctor._devices(transport, list(configs), True)] == ["note", "ok"]


def test_metrics_of_a_server_tell_its_gpus(running):
    assert usual_metrics_url(parse_url("grpc://host:8001")) == "http://host:8002/metrics"
    assert usual_metrics_url(parse_url("[::1]:8000")) == "http://[::1]:8002/metrics"
    assert usual_metrics_url(parse_url("https://host")) is None
    assert usual_metrics_url(parse_url("host:9000")) is None
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    assert server_gpus(running.server.metrics_url) is has_gpu
    assert server_gpus("http://127.0.0.1:9/metrics") is None
    assert server_gpus(None) is None


def test_serve_repeats_the_backends_warnings_about_the_cpu():
    log = "\n".join(
        [
            'I1121 11:15:28.5 1 model.cc:1] "sam2_decoder_0: model.onnx on CPUExecutionProvider"',
            *['W1121 11:15:28.5 1 model.cc:1] "sam2_encoder runs on the CPU: this ONNX Runtime has no CUDA: x"'] * 2,
        ]
    )
    assert cpu_fallbacks(log) == ["sam2_encoder runs on the CPU: this ONNX Runtime has no CUDA: x"]


ALL_MODELS = ("mine_encoder", "mine_decoder", "mine_memory_attention", "mine_detector", "mine")


@pytest.mark.parametrize("admin", [False, True])
def test_a_variant_is_reloaded_with_all_its_models(tmp_path, admin, capsys):
    """Also with those that the server did not have. A new encoder with old models for videos gives wrong masks."""
    for name in ALL_MODELS[:3]:
        write_model(tmp_path, name, scale_graph(2), SCALE_CONFIG)
    (tmp_path / "mine_mask_prompt").mkdir()  # without weights, as in a clone
    (tmp_path / "mine_mask_prompt" / "config.pbtxt").write_text(SCALE_CONFIG)
    with LocalServer(tmp_path, admin=admin) as server:
        for name in ALL_MODELS:
            write_model(tmp_path, name, scale_graph(3), SCALE_CONFIG, "2/model.onnx")
        assert main(["reload", "mine", "--url", server.http_url, "-q"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert sorted(said) == sorted(f"{name} version 2" for name in ALL_MODELS)
        assert said[-1] == "mine version 2"  # after the models that it calls
        with contextlib.closing(Transport(parse_url(server.http_url))) as transport:
            assert set(transport.ready_models().values()) == {"2"}


def test_a_model_that_fails_in_a_reload_says_why(tmp_path, capsys):
    write_model(tmp_path, "scale", scale_graph(2), SCALE_CONFIG)
    with LocalServer(tmp_path) as server:
        path = tmp_path / "scale" / "config.pbtxt"
        path.write_text(f"{path.read_text()}max_batch_size: zero\n")
        assert main(["reload", "scale", "--url", server.http_url, "-q"]) == 1
        assert f"{path}, line" in capsys.readouterr().err
