"""Models in this process in place of a server. Numbers below 1e-38 count as zero where they compute."""

import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam._common.onnx_session import flush_in_this_thread
from triton_sam.errors import ModelNotReadyError

flushes = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="not possible on this system"
)

_SECOND_SESSION = """
import sys
from pathlib import Path
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from triton_sam.transport.onnx import OnnxTransport

tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
node = helper.make_node("Mul", ["x", "x2"], ["y"])
graph = helper.make_graph([node], "product", [tensor("x"), tensor("x2")], [tensor("y")])
file = Path(sys.argv[1]) / "product.onnx"
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)
onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])  # decides for the thread that opens it
arrays = {"x": np.full(1, 1e-40, np.float32), "x2": np.ones(1, np.float32)}
(product,) = OnnxTransport({"product": file}).infer("product", arrays, ["y"]).values()
assert float(product[0]) == 0, product
assert float((arrays["x"] * arrays["x2"])[0]) > 0, "the thread of the caller changed, too"
"""


def _product():
    return float((np.full(1, 1e-40, np.float32) * np.ones(1, np.float32))[0])


@flushes
def test_one_thread_flushes_and_others_do_not():
    with ThreadPoolExecutor(1) as changed, ThreadPoolExecutor(1) as plain:
        before = plain.submit(_product).result()
        assert changed.submit(flush_in_this_thread).result()
        assert changed.submit(_product).result() == 0
        assert plain.submit(_product).result() == before


@flushes
def test_a_model_that_is_opened_after_another_flushes(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    script = [sys.executable, "-c", _SECOND_SESSION, str(tmp_path)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_client_finds_and_uses_the_models_of_its_transport(images):
    pytest.importorskip("onnxruntime")
    from triton_sam.transport.onnx import OnnxTransport

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
