"""The config.pbtxt of a model: written from the signature of an ONNX graph, and parsed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from .._common.extras import missing
from ..errors import RepositoryError
from .names import CONFIG_NAME, check_name

if TYPE_CHECKING:
    import onnx

# TensorProto.DataType -> Triton's name in config.pbtxt
_TYPES = {
    1: "TYPE_FP32",
    2: "TYPE_UINT8",
    3: "TYPE_INT8",
    6: "TYPE_INT32",
    7: "TYPE_INT64",
    8: "TYPE_STRING",
    9: "TYPE_BOOL",
    10: "TYPE_FP16",
    11: "TYPE_FP64",
}


def config_for(model: onnx.ModelProto | Path, name: str, filename: str = "model.onnx") -> str:
    """Write the config.pbtxt of an ONNX model from the graph's own signature.

    Dimensions equal the graph's, -1 where it has a symbol: NVIDIA's ONNX Runtime backend refuses anything else. An
    input with a default in the graph is optional. The text depends on the signature alone, so that exporting again
    leaves a committed file as it is.

    Args:
        model: the graph, or the path of its file.
        name: model name in Triton.
        filename: file in the version folder.

    Raises:
        RepositoryError: the signature holds a type that Triton does not know, or Triton could not parse the result.
        MissingDependencyError: the onnx package is missing.
    """
    check_name(name)
    graph = (_load(model) if isinstance(model, Path) else model).graph
    defaults = {item.name for item in graph.initializer}
    lines = [
        "# Written by the exporter from the signature of the ONNX graph; a change here must keep its dimensions.",
        f'name: "{name}"',
        'backend: "onnxruntime"',
        *([f'default_model_filename: "{filename}"'] if filename != "model.onnx" else []),
        "# The first dimension is the caller's business: one image serves many prompts.",
        "max_batch_size: 0",
        "# No batching, which a size of 0 rules out, but Triton's queue: what is cancelled there is never computed.",
        "dynamic_batching {}",
        f"input {_tensors(graph.input, defaults)}",
        f"output {_tensors(graph.output, set())}",
        "# A GPU where there is one, else the CPU. One instance: Triton's two on a CPU would share its threads.",
        "instance_group [{ count: 1, kind: KIND_AUTO }]",
        "# One run when an instance starts, so that the first click does not wait for GPU kernels. `triton-sam serve`",
        "# leaves it out on a CPU, where it would only make the start longer.",
        f'model_warmup [{{ name: "zeros", batch_size: 1, inputs {_warm_up(graph.input, defaults)} }}]',
    ]
    text = "\n".join(lines) + "\n"
    parse_config(text)
    return text


def parse_config(text: str) -> Any:
    """Parse the text of a config.pbtxt into Triton's own ModelConfig message.

    Raises:
        RepositoryError: Triton could not parse it.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise RepositoryError(f"not a valid {CONFIG_NAME}: {error}") from error


def _tensors(values: Any, defaults: set[str]) -> str:
    lines = [
        f"  {_tensor(value, value.name in defaults)}{'' if value is values[-1] else ','}  # {_symbols(value)}"
        for value in values
    ]
    return "\n".join(["[", *lines, "]"])


def _tensor(value: onnx.ValueInfoProto, optional: bool) -> str:
    tensor = value.type.tensor_type
    if tensor.elem_type not in _TYPES:
        raise RepositoryError(f"tensor {value.name} has ONNX type {tensor.elem_type}, which Triton does not know")
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim] or [1]
    ending = ", optional: true" if optional else ""
    return f'{{ name: "{value.name}", data_type: {_TYPES[tensor.elem_type]}, dims: {dims}{ending} }}'


def _warm_up(values: Any, defaults: set[str]) -> str:
    """Return one sample of zeros: every needed input, one of everything that has no fixed number."""
    samples = [_sample(value) for value in values if value.name not in defaults]
    return "\n".join(["[", *(f"  {sample}{'' if sample is samples[-1] else ','}" for sample in samples), "]"])


def _sample(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim] or [1]
    meaning = f"data_type: {_TYPES[tensor.elem_type]}, dims: {dims}, zero_data: true"
    return f'{{ key: "{value.name}", value: {{ {meaning} }} }}'


def _symbols(value: onnx.ValueInfoProto) -> str:
    symbols = [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
    return " x ".join(symbols) or "scalar"


def _load(path: Path) -> onnx.ModelProto:
    try:
        import onnx
    except ImportError as error:
        raise missing("writing a config.pbtxt needs", "export", error) from error
    return onnx.load(path, load_external_data=False)
