"""The configuration and the programs that an export writes, without its weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from triton_sam.families import get_family, split_model_name
from triton_sam.families.tables import ModelSpec
from triton_sam.repository.config import config_for
from triton_sam.sessions.configs import programs, write_programs

WIDTH = 64
"""The size of a dimension that depends on the size of the model (0 in the tables), for the sizes of the tests."""
TYPES = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64, "INT32": TensorProto.INT32, "BOOL": TensorProto.BOOL}


@cache
def config_text(model: str) -> str:
    """Return the config.pbtxt of a model named after its family, such as "sam1_encoder"."""
    split = split_model_name(model)
    if split is None:
        return programs(get_family(model.partition("_")[0]))[model]["config.pbtxt"]
    spec = get_family(split[0]).every_model[split[1]]
    return config_for(signature(spec, split[0]), model, spec.filename)


def write_family(folder: Path, family: str) -> None:
    """Write all files of a family except its ONNX files; existing files are kept."""
    for role in get_family(family).every_model:
        model = folder / f"{family}_{role}"
        if not model.exists():
            model.mkdir(parents=True)
            (model / "config.pbtxt").write_text(config_text(model.name))
    write_programs(folder, get_family(family))


def signature(spec: ModelSpec, family: str) -> onnx.ModelProto:
    """Return a graph without nodes, with the inputs, defaults and outputs of a model."""

    def values(tensors):
        shapes = [[WIDTH if side == 0 else side for side in one.shape] for one in tensors]
        return [
            helper.make_tensor_value_info(one.name, TYPES[one.dtype], shape)
            for one, shape in zip(tensors, shapes, strict=True)
        ]

    defaults = [helper.make_tensor(one.name, TYPES[one.dtype], [0], []) for one in spec.inputs if one.optional]
    graph = helper.make_graph([], "signature", values(spec.inputs), values(spec.graph_outputs), defaults)
    model = helper.make_model(graph)
    onnx.helper.set_model_props(model, {"triton_sam.family": family})
    return model
