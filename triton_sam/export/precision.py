"""Conversion of FP32 graphs to lower precision: FP16 for GPUs, and int8 matrix products for CPUs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from .._common.progress import quiet
from ..errors import ExportError
from . import onnx_tools

_FP32_OPERATORS = {"Cast", "Constant", "ConstantOfShape", "Range", "Resize", "ReduceMean", "ReduceSum", "Sub", "Pow"}
"""Operators that stay in FP32.

They produce or count numbers, or compute the squares of a norm, which overflow FP16 for values above 255.
"""


_COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with FP16 weights and arithmetic. Its inputs and outputs stay FP32.

    Some parts stay FP32: the encoding of points, which is sin and cos of about ten periods across the image, so FP16
    would move points by pixels; the norms, which square activations; and the counts of pixels with their ratios,
    because FP16 represents integers exactly only up to 2048, and none above 65,504.
    """
    return _HalfWriter(model).write()


def quantise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its matrix products in int8.

    Weights are quantised now, per output channel; activations are quantised at run time.
    """
    try:
        with tempfile.TemporaryDirectory() as folder, quiet():
            return _quantise_in(Path(folder), model)
    except OSError as error:
        raise ExportError(
            f"int8 cannot write to the folder for temporary files ($TMPDIR, else /tmp): {error.strerror or error}"
        ) from error


def _quantise_in(folder: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    source, target = folder / "fp32.onnx", folder / "int8.onnx"
    large = onnx_tools.is_large(model)
    onnx.save_model(model, source, save_as_external_data=large)
    try:
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            # Unsigned, because signed weights saturate in the 16-bit sums of AVX2 (mask IoU 0.90 instead of 0.98).
            weight_type=QuantType.QUInt8,
            use_external_data_format=large,
            # The quantiser cannot infer the output types of ONNX Runtime's own operators, which are FP32 here.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
    except (ValueError, RuntimeError) as error:
        raise ExportError(f"ONNX Runtime could not quantise the model: {error}") from error
    return onnx.load(target)


class _HalfWriter:
    """Rewrites a graph node by node, and inserts a cast where a node needs a value in the other type (FP16 or FP32).

    onnxruntime.transformers.float16 (1.31) leaves the nodes unsorted, so its graphs fail onnx.checker, and it is less
    exact. Measured with `triton-sam verify --precision fp16` (demo model): largest difference of a logit 0.042 here,
    0.081 there, 0.20 there with the same nodes in FP32; smallest IoU 0.9976, 0.9951, 0.9926.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.fp32_nodes = _fp32_nodes(model)
        self.floats = _float_values(model)
        self.weights = {item.name: item for item in model.graph.initializer if item.data_type == TensorProto.FLOAT}
        self.half: set[str] = set()
        """The names of values that are FP16."""
        self.copies: dict[str, str] = {}
        """Maps a value to the name of its copy in the other type."""
        self.nodes: list[NodeProto] = []

    def write(self) -> onnx.ModelProto:
        outputs = {value.name for value in self.model.graph.output}
        for node in self.model.graph.node:
            in_half = node.name not in self.fp32_nodes
            for index, name in enumerate(node.input):
                if name in self.floats:
                    node.input[index] = self._typed(name, in_half)
            self.nodes.append(node)
            if not in_half:
                continue
            for index, name in enumerate(node.output):
                if name in outputs:
                    node.output[index] = f"{name}.half"
                    self._cast(f"{name}.half", name, TensorProto.FLOAT)
                    self.copies[name] = f"{name}.half"
                elif name in self.floats:
                    self.half.add(name)
        return self._finish()

    def _typed(self, name: str, half: bool) -> str:
        """Return the name under which a value has the wanted type; add a copy in that type if there is none."""
        if (name in self.half) == half:
            return name
        if name not in self.copies:
            self.copies[name] = f"{name}.half" if half else f"{name}.float"
            if name in self.weights:
                self._add_half_weight(name)
            else:
                self._cast(name, self.copies[name], TensorProto.FLOAT16 if half else TensorProto.FLOAT)
        return self.copies[name]

    def _cast(self, source: str, target: str, to: int) -> None:
        self.nodes.append(helper.make_node("Cast", [source], [target], f"{target}.cast", to=to))

    def _add_half_weight(self, name: str) -> None:
        limit = np.finfo(np.float16).max
        values = numpy_helper.to_array(self.weights[name])
        clipped = np.where(np.isfinite(values), np.clip(values, -limit, limit), values).astype(np.float16)
        self.model.graph.initializer.append(numpy_helper.from_array(clipped, self.copies[name]))

    def _finish(self) -> onnx.ModelProto:
        graph = self.model.graph
        del graph.node[:]
        graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in node.input}
        kept = [item for item in graph.initializer if item.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        return self.model


def _float_values(model: onnx.ModelProto) -> set[str]:
    """Return the names of all FP32 values in a graph."""
    graph = onnx.shape_inference.infer_shapes(_without_weights(model)).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    names = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return names | {item.name for item in model.graph.initializer if item.data_type == TensorProto.FLOAT}


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model in which FP32 weights are inputs.

    It is for shape inference, which serialises the model, and a protobuf message cannot exceed 2 GiB.
    """
    skeleton = onnx.ModelProto()
    skeleton.ir_version = model.ir_version
    skeleton.opset_import.extend(model.opset_import)
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    # ONNX cannot infer the output types of ONNX Runtime's own operators, which are FP32 here.
    for node in graph.node:
        if node.domain == onnx_tools.ONNX_RUNTIME_DOMAIN:
            graph.value_info.extend(helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in node.output)
    for item in model.graph.initializer:
        if item.data_type == TensorProto.FLOAT:
            graph.input.append(helper.make_tensor_value_info(item.name, TensorProto.FLOAT, item.dims))
        else:
            graph.initializer.append(item)
    return skeleton


def _fp32_nodes(model: onnx.ModelProto) -> set[str]:
    """Return the names of the nodes that stay FP32."""
    nodes = model.graph.node
    kept = {node.name for node in nodes if node.op_type in _FP32_OPERATORS}
    kept |= _upstream(model, {node.name for node in nodes if node.op_type in ("Sin", "Cos")})
    # A norm divides by sqrt(variance + epsilon): the addition before the root and the division after it stay FP32.
    roots = [node for node in nodes if node.op_type == "Sqrt"]
    before = {name for node in roots for name in node.input}
    after = {name for node in roots for name in node.output}
    kept |= {node.name for node in roots}
    kept |= {node.name for node in nodes if before.intersection(node.output) or after.intersection(node.input)}
    # A ratio of two counts of pixels, which exceed FP16 above 65,504, and its comparison with a threshold stay FP32.
    counts = {name for node in nodes if node.op_type == "ReduceSum" for name in node.output}
    ratios = [node for node in nodes if node.op_type == "Div" and counts.intersection(node.input)]
    compared = counts.union(*(node.output for node in ratios))
    kept |= {node.name for node in ratios}
    kept |= {node.name for node in nodes if node.op_type in _COMPARISONS and compared.intersection(node.input)}
    return kept


def _upstream(model: onnx.ModelProto, names: set[str]) -> set[str]:
    """Return the names of these nodes and of all their dependencies."""
    producers = {output: node for node in model.graph.node for output in node.output}
    pending = [node for node in model.graph.node if node.name in names]
    found: set[str] = set()
    while pending:
        node = pending.pop()
        if node.name not in found:
            found.add(node.name)
            pending += [producers[name] for name in node.input if name in producers]
    return found
