"""Tiny ONNX models in a generated model repository, and the files that an export writes, without its weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from triton_sam.export import onnx_tools
from triton_sam.export.exporter import Exporter
from triton_sam.export.pipeline import Exported, export_models
from triton_sam.export.settings import Settings
from triton_sam.families import get_family, split_model_name
from triton_sam.families.tables import ModelSpec
from triton_sam.repository import BUILT_IN_CHECKPOINT
from triton_sam.repository.config import config_for
from triton_sam.sessions.configs import programs, write_programs

if TYPE_CHECKING:
    import onnx
else:
    onnx = pytest.importorskip("onnx")
pytest.importorskip("geventhttpclient", reason="tritonclient.http needs it, and the local extra brings it")
http = pytest.importorskip("tritonclient.http")
tritonclient_utils = pytest.importorskip("tritonclient.utils")
pytest.importorskip("pytriton", reason="needs the local extra: pip install -c constraints.txt -e '.[local]'")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

CPU = "instance_group { kind: KIND_CPU count: 1 }\n"
MATRIX = "dims: [-1, -1]"
SCALE_CONFIG = f"""backend: "onnxruntime"
max_batch_size: 0
input [
  {{ name: "x" data_type: TYPE_FP32 {MATRIX} }},
  {{ name: "scale" data_type: TYPE_FP32 dims: [1] optional: true }}
]
output {{ name: "y" data_type: TYPE_FP32 {MATRIX} }}
{CPU}"""
TYPED_CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 0\n' + CPU
for name, kind in {"half": "FP16", "long": "INT64", "text": "STRING"}.items():
    TYPED_CONFIG += f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [-1] }}\n'
    TYPED_CONFIG += f'output {{ name: "{name}_out" data_type: TYPE_{kind} dims: [-1] }}\n'
# Calls `scale` twice through Triton. `scale` is in a parameter, which makes it a dependency.
BLS_MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            for _ in range(2):
                call = pb_utils.InferenceRequest(
                    model_name="scale", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x.as_numpy())])
                x = pb_utils.get_output_tensor_by_name(call.exec(), "y")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]))
        return answers
"""
WAITING_MODEL = """
import time
from pathlib import Path
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        Path({folder!r}, "begun").touch()
        while not Path({folder!r}, "wanted").exists():
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy())]) for each in requests]
"""  # makes a file at a request, and answers as soon as another file exists
ENSEMBLE = f"""platform: "ensemble"
max_batch_size: 0
input {{ name: "a" data_type: TYPE_FP32 {MATRIX} }}
output {{ name: "b" data_type: TYPE_FP32 {MATRIX} }}
ensemble_scheduling {{ step [ {{
  model_name: "scale" model_version: -1
  input_map {{ key: "x" value: "a" }} output_map {{ key: "y" value: "b" }} }} ] }}
"""


def scale_graph(factor: float = 2.0) -> onnx.ModelProto:
    """y = x * scale, with an optional scale."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "d"]) for name in "xy")
    scale = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1])
    default = numpy_helper.from_array(np.array([factor], np.float32), "scale")
    return model_of([helper.make_node("Mul", ["x", "scale"], ["y"])], [x, scale], [y], [default])


def add_graph(width: int = 4) -> onnx.ModelProto:
    """y = x + (0, 1, 2, ...), which fails for an x of another width."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "d"]) for name in "xy")
    steps = numpy_helper.from_array(np.arange(width, dtype=np.float32), "steps")
    return model_of([helper.make_node("Add", ["x", "steps"], ["y"])], [x], [y], [steps])


def typed_graph() -> onnx.ModelProto:
    """Passes FP16, INT64 and strings through."""
    types = {"half": TensorProto.FLOAT16, "long": TensorProto.INT64, "text": TensorProto.STRING}
    inputs = [helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in types.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", kind, ["n"]) for name, kind in types.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in types]
    return model_of(nodes, inputs, outputs)


def model_of(nodes: list, inputs: list, outputs: list, initializers: Sequence = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def write_model(
    repository: Path, name: str, graph: Any, config: str | None, file: str = "1/model.onnx", **save: Any
) -> Path:
    path = repository / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(graph, bytes):
        path.write_bytes(graph)
    else:
        onnx.save(graph, path, **save)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return path


def config_of(x: str = f"TYPE_FP32 {MATRIX}", *, batch: int = 0, more: str = CPU) -> str:
    return (
        f'backend: "onnxruntime"\nmax_batch_size: {batch}\ninput {{ name: "x" data_type: {x} }}\n'
        f'output {{ name: "y" data_type: {x} }}\n{more}'
    )


def infer(client: Any, model: str, outputs: list[str] | None = None, version: str = "", **arrays: np.ndarray):
    inputs = []
    for name, array in arrays.items():
        tensor = http.InferInput(name, list(array.shape), tritonclient_utils.np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    wanted = [http.InferRequestedOutput(name) for name in outputs] if outputs else None
    return client.infer(model, inputs, model_version=version, outputs=wanted)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def write_repository(root: Path) -> Path:
    """Write a model repository with one model for each feature of the backend."""
    write_model(root, "scale", scale_graph(), SCALE_CONFIG)
    write_model(root, "add", add_graph(), config_of())
    renamed = config_of(more=CPU + 'default_model_filename: "weights.onnx"')
    write_model(root, "renamed", scale_graph(3), renamed, "1/weights.onnx")
    outside: dict[str, Any] = {"save_as_external_data": True, "location": "steps.bin", "size_threshold": 0}
    write_model(root, "external", add_graph(512), config_of(), **outside)
    write_model(root, "versions", scale_graph(1), config_of(more=CPU + "version_policy { all {} }"))
    write_model(root, "versions", scale_graph(7), None, "7/model.onnx")
    threads = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }'
    batched = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
    write_model(
        root, "batched", scale_graph(), config_of("TYPE_FP32 dims: [-1]", batch=8, more=CPU + batched + threads)
    )
    write_model(root, "typed", typed_graph(), TYPED_CONFIG)
    bls = config_of(more=CPU + 'parameters { key: "calls" value: { string_value: "scale" } }')
    write_model(root, "bls", BLS_MODEL.encode(), bls.replace("onnxruntime", "python"), "1/model.py")
    (root / "chain" / "1").mkdir(parents=True)
    (root / "chain" / "config.pbtxt").write_text(ENSEMBLE)
    (root / "weightless" / "1").mkdir(parents=True)
    (root / "weightless" / "1" / ".gitkeep").touch()
    (root / "weightless" / "config.pbtxt").write_text(config_of())
    return root


FLOAT = onnx.TensorProto.FLOAT


def zeros(_: Any, spec: Any) -> Any:
    """Return a graph with the signature of a model that returns zeros."""

    def values(tensors: Any) -> Any:
        return [onnx.helper.make_tensor_value_info(tensor.name, FLOAT, tensor.shape) for tensor in tensors]

    nodes, shapes = [], []
    for tensor in spec.outputs:
        shape = [side if isinstance(side, int) else 1 for side in tensor.shape]
        shapes.append(onnx.helper.make_tensor(f"{tensor.name}.shape", onnx.TensorProto.INT64, [len(shape)], shape))
        nodes.append(onnx.helper.make_node("ConstantOfShape", [shapes[-1].name], [tensor.name], tensor.name))
    graph = onnx.helper.make_graph(nodes, spec.role, values(spec.inputs), values(spec.outputs), shapes)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", onnx_tools.OPSET)])


class Zeros(Exporter):
    """Exports graphs that return zeros as if they were the micro model."""

    name = "sam2"
    stride = 32

    def load(self, *_: Any, **__: Any) -> Any:
        return torch.nn.Linear(1, 1)

    def trace(self, model: Any, spec: Any, options: Any) -> Any:
        return zeros(model, spec)

    def config(self, settings: Settings) -> str:
        return BUILT_IN_CHECKPOINT


class Proved(Zeros):
    """Skips the trial run of its graphs, which takes most of the time."""

    is_proved = True


def export_zeros(repository: Path, exporter: Exporter | None = None, **options: Any) -> Exported:
    """Export zeros as if they were the micro model, with the options of Settings."""
    if "checkpoint" not in options:
        options = {"random_seed": 0, **options}
    return export_models(exporter or Zeros(), Settings(repository, **options))


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
