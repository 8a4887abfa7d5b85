"""Numbers below 1e-38 count as zero where ONNX Runtime computes, whatever was opened before."""

import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from triton_sam._common.denormals import flush_in_this_thread

pytestmark = pytest.mark.skipif(
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


def _product() -> float:
    return float((np.full(1, 1e-40, np.float32) * np.ones(1, np.float32))[0])


def test_one_thread_flushes_and_others_do_not():
    with ThreadPoolExecutor(1) as changed, ThreadPoolExecutor(1) as plain:
        before = plain.submit(_product).result()
        assert changed.submit(flush_in_this_thread).result()
        assert changed.submit(_product).result() == 0
        assert plain.submit(_product).result() == before


def test_a_model_that_is_opened_after_another_flushes(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    script = [sys.executable, "-c", _SECOND_SESSION, str(tmp_path)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
