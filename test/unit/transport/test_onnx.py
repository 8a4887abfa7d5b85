"""Models in this process in place of a server, through the client's own calls."""

import numpy as np
import pytest

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.errors import ModelNotReadyError

pytest.importorskip("onnxruntime")
from triton_sam.transport.onnx import OnnxTransport


def test_the_client_finds_and_uses_the_models_of_its_transport(images):
    repository = bundled("model_repository")
    names = ("sam2_encoder", "sam2_decoder")
    transport = OnnxTransport({name: repository / name / "1" / "model.onnx" for name in names})
    with SAM2TritonClient("localhost:1", transport=transport) as client:
        assert client.is_ready()
        assert client.models().variants == {"sam2": ("sam2",)}
        client.set_image(images / "shapes.jpg")  # there is no session model here
        masks, _ = client.predict([[200, 180]])
        assert masks.shape == (1, 1, 256, 256)
        assert np.isfinite(masks).all()
    assert not transport.is_ready()
    with pytest.raises(ModelNotReadyError, match="no model sam2_encoder in this process"):
        transport.infer("sam2_encoder", {}, ())
