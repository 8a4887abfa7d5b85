"""OpenVINO in the real Triton with the built-in model. The tests that compute need the openvino package."""

from pathlib import Path

import numpy as np
import pytest
from support.commands import copy_committed

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam._common.extras import find_package
from triton_sam.errors import LocalServerError
from triton_sam.local_server import LocalServer
from triton_sam.local_server.backends.onnxruntime import openvino_session
from triton_sam.masks.boxes import intersection_over_union
from triton_sam.repository.accelerators import Tuning, tune

COMMITTED = bundled("model_repository")
HAS_OPENVINO = find_package("openvino") is not None
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="openvino is not installed: pip install openvino")
IMAGE = bundled("test/images") / "coffee.jpg"


@pytest.fixture
def repository(tmp_path):
    return copy_committed(tmp_path, "sam2_encoder", "sam2_decoder")


def choose(repository: Path, tuning: Tuning) -> None:
    path = repository / "sam2_encoder" / "config.pbtxt"
    path.write_text(tune(path.read_text(), tuning))


def mask(server: LocalServer) -> np.ndarray:
    with SAM2TritonClient(server.http_url, embeddings="client") as client:
        client.set_image(IMAGE)
        return client.segment(point_coords=[[300, 200]], point_labels=[1])[0].mask


@pytest.mark.skipif(HAS_OPENVINO, reason="openvino is installed")
def test_a_model_for_openvino_says_what_to_install(repository):
    choose(repository, Tuning("openvino", precision="bf16"))
    with pytest.raises(LocalServerError, match=r"pip install openvino"):
        LocalServer(repository, models=["sam2_encoder"]).start()


@pytest.mark.slow
@needs_openvino
def test_a_configured_model_computes_with_openvino(repository):
    choose(repository, Tuning("openvino", precision="fp32"))
    with LocalServer(repository) as server:
        found = mask(server)
        assert "on OpenVINO fp32" in server.log
    choose(repository, Tuning())
    with LocalServer(repository) as plain:
        expected = mask(plain)
        assert "OpenVINO" not in plain.log
    assert intersection_over_union(found, expected) >= 0.9999


@pytest.mark.slow
@needs_openvino
def test_wrong_shapes_types_and_batches():
    """One compiled model for all, because it takes seconds."""
    import onnxruntime

    file = COMMITTED / "sam2_encoder" / "1" / "model.onnx"
    session = openvino_session.OpenVinoSession(file, "fp32", 2)
    image = np.random.default_rng(0).random((2, 3, 1024, 1024), np.float32)
    name = "image_embeddings"
    (both,) = session.run([name], {"image": image})
    (expected,) = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(
        [name], {"image": image}
    )
    assert np.abs(both - expected).max() < 1e-3
    for wrong in (image[:0], image[:, :2], image[:1].astype(np.float64)):
        with pytest.raises(RuntimeError) as caught:
            session.run([name], {"image": wrong})
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="inputs have defaults"):
        openvino_session.OpenVinoSession(COMMITTED / "sam2_decoder" / "1" / "model.onnx", "fp32")
    with pytest.raises(ValueError, match="'int4'"):
        openvino_session.OpenVinoSession(file, "int4")
