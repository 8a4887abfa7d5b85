"""Texts of config.pbtxt that are written from ONNX graphs."""

import pytest

from triton_sam.families.sam2 import SAM2
from triton_sam.repository import config_for, parse_config

onnx = pytest.importorskip("onnx")


@pytest.mark.parametrize(("checkpoint", "said"), [(SAM2.built_in, SAM2.built_in), ("sam2.1_hiera_large", None)])
def test_only_the_demo_model_names_its_checkpoint(checkpoint, said):
    """Triton tells clients the configuration of a model, but not the metadata of its graph."""
    sides = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "graph", sides[:1], sides[1:])
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {"triton_sam.checkpoint": checkpoint})
    parameters = parse_config(config_for(model, "sam2_encoder")).parameters
    assert (parameters["checkpoint"].string_value if "checkpoint" in parameters else None) == said
