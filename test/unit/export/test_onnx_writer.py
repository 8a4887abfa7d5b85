"""The writer of ONNX files: byte for byte what protobuf writes, without all weights in memory."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from triton_sam.export import onnx_tools  # noqa: E402

LARGE, SHAPE = 12, (512, 512)


def model_of(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return a model that adds its weights to its input; it sets fields before, behind and between the weights."""
    nodes = [helper.make_node("Identity", ["x"], ["sum0"])]
    nodes += [helper.make_node("Add", [f"sum{i}", name], [f"sum{i + 1}"]) for i, name in enumerate(weights)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 512]) for name in ("x", f"sum{len(weights)}")
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    tensors.append(helper.make_tensor("unused", TensorProto.INT64, [2], [3, 4]))  # not stored as raw data
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], tensors, doc_string="text")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx_tools.set_metadata(model, {"b": "ü", "a": "1"})
    return model


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    found = {f"weight{i}": draw.random(SHAPE, np.float32) for i in range(LARGE)}
    return {**found, "small": draw.random((1, 512), np.float32)}


def without_content(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    for item in model.graph.initializer:
        if item.name in names:
            item.ClearField("raw_data")
    return model


def test_files_equal_those_of_protobuf(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    model = model_of(weights)
    expected = model.SerializeToString()
    assert onnx_tools.save(model, tmp_path / "whole.onnx") == [tmp_path / "whole.onnx"]
    assert (tmp_path / "whole.onnx").read_bytes() == expected
    late = ["weight0", "weight5", f"weight{LARGE - 1}"]
    later = {name: partial(weights.__getitem__, name) for name in late}
    onnx_tools.save(without_content(model, late), tmp_path / "late.onnx", later)
    assert (tmp_path / "late.onnx").read_bytes() == expected


def test_large_weights_go_to_a_file_of_their_own(
    weights: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_tools, "EXTERNAL_DATA_LIMIT", 3_000_000)  # more than the weight that is there
    late = [f"weight{i}" for i in range(1, LARGE)]
    model = without_content(model_of(weights), late)
    files = onnx_tools.save(model, tmp_path / "model.onnx", {name: partial(weights.__getitem__, name) for name in late})
    assert [file.name for file in files] == ["model.onnx", "model.onnx.data"]
    assert files[0].stat().st_size < 10_000
    assert files[1].stat().st_mode == files[0].stat().st_mode  # Triton may run as another user
    onnx_tools.check(files[0])
    found = {item.name: numpy_helper.to_array(item) for item in onnx.load(files[0]).graph.initializer}
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)


def test_memory_holds_one_weight_at_a_time(tmp_path: Path) -> None:
    names = [f"weight{i}" for i in range(LARGE)]
    model = without_content(model_of(dict.fromkeys(names, np.zeros(SHAPE, np.float32))), names)
    tracemalloc.start()
    try:
        onnx_tools.save(model, tmp_path / "model.onnx", {name: partial(np.ones, SHAPE, np.float32) for name in names})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "model.onnx").stat().st_size > LARGE * 2**20
    assert peak < 3 * 2**20


def test_a_weight_of_another_shape_is_a_fault_of_the_template(tmp_path: Path) -> None:
    model = without_content(model_of({"weight": np.zeros(SHAPE, np.float32)}), ["weight"])
    with pytest.raises(AssertionError, match=r"weight is float32 \(512, 1\)"):
        onnx_tools.save(model, tmp_path / "model.onnx", {"weight": partial(np.ones, (512, 1), np.float32)})
