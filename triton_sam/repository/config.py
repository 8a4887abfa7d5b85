"""The config.pbtxt of a model, from a graph's signature or from another model, and the rules for model names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common.extras import missing
from .._common.text import first_line
from ..errors import ConfigurationError, RepositoryError
from ..families import FAMILIES, families_like
from ..families.sam2 import SAM2
from ..families.tables import Tensor

if TYPE_CHECKING:
    import onnx


CONFIG_NAME = "config.pbtxt"
CHECKPOINT_KEY = "checkpoint"
"""The parameter of config.pbtxt that marks the demo model for clients."""
FAMILY_KEY = "family"
"""The parameter of config.pbtxt that names a model's family, if several families have the same tensors."""
ALIAS_KEY = "alias_of"
"""The parameter of config.pbtxt with the target of an alias, if the alias is a program instead of an ensemble."""

DECODER_IN_SESSION = "decoder_in_session"
"""The parameter of a session model's config.pbtxt that runs the decoder in its process: true or false."""
DECODER_IN_SESSION_VARIABLE = "TRITON_SAM_DECODER_IN_SESSION"
"""The environment variable that does the same for session models without that parameter: 1, 0 or IF_POSSIBLE."""
IF_POSSIBLE = "if possible"
"""Run the decoder in the session model on a CPU, and otherwise through Triton, without an error."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
VERSION = re.compile(r"[1-9][0-9]*")
"""Matches the name of a version folder."""
VERSION_TO_TRITON = re.compile(r"\s*\+?[1-9].*", re.DOTALL)
"""Matches all names that Triton reads as versions. It reads the leading digits: `2.bak` is 2."""


def check_name(name: str) -> str:
    """Check that a model name is safe as a folder name and in a URL, and return it.

    Raises:
        ConfigurationError: the name is not safe, for example because of a path separator, a leading dot or a space.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(name_problem(name))
    return name


def name_problem(name: str) -> str:
    """Return the error message for an invalid name."""
    return f"{name!r} is not a valid model name: use letters, digits, '.', '_' and '-', with a letter or digit first"


QUEUE = (
    "# No batching, which a size of 0 rules out, but Triton's queue: what is cancelled there is never computed.",
    "dynamic_batching {}",
)
"""Lines of the config.pbtxt of every cancellable model."""

# TensorProto.DataType -> Triton's name
_TYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
}


@dataclass(frozen=True)
class ConfigTensor(Tensor):
    """One input or output, with a comment after it and a heading above it in config.pbtxt."""

    comment: str = ""
    heading: str = ""


def config_for(model: onnx.ModelProto | Path, name: str, filename: str = "model.onnx") -> str:
    """Write the config.pbtxt of an ONNX model from the graph's own signature.

    Dimensions equal the graph's, with -1 for a symbol: NVIDIA's ONNX Runtime backend refuses anything else. An input
    with a default in the graph is optional. The text depends only on the signature, so another export leaves a
    committed file unchanged. There are two exceptions, because clients cannot read ONNX metadata from Triton:
    parameters mark the demo model, and a family whose tensors equal those of a family registered earlier.

    Args:
        model: the graph, or the path of its file.
        name: model name in Triton.
        filename: file in the version folder.

    Raises:
        RepositoryError: the file is not an ONNX model, the signature has a type that Triton does not support, or Triton
            could not parse the result.
        MissingDependencyError: the onnx package is missing.
    """
    check_name(name)
    proto = _load(model) if isinstance(model, Path) else model
    graph = proto.graph
    metadata = {item.key: item.value for item in proto.metadata_props}
    defaults = {item.name for item in graph.initializer}
    inputs = [_tensor(value, value.name in defaults) for value in graph.input]
    lines = [
        "# Written by the exporter from the signature of the ONNX graph; a change here must keep its dimensions.",
        f'name: "{name}"',
        'backend: "onnxruntime"',
        *([f'default_model_filename: "{filename}"'] if filename != "model.onnx" else []),
        "# The first dimension is the caller's business: one image serves many prompts.",
        "max_batch_size: 0",
        *QUEUE,
        f"input {tensor_list(inputs)}",
        f"output {tensor_list([_tensor(value) for value in graph.output])}",
        "# A GPU where there is one, else the CPU. One instance: Triton's two on a CPU would share its threads.",
        "instance_group [{ count: 1, kind: KIND_AUTO }]",
        "# One run when an instance starts, so that the first click does not wait for GPU kernels. `triton-sam serve`",
        "# leaves it out on a CPU, where it would only make the start longer.",
        f'model_warmup [{{ name: "zeros", batch_size: 1, count: 1, inputs {_warm_up(inputs)} }}]',
        *_demo_lines(metadata.get("triton_sam.checkpoint")),
        *_family_lines(metadata.get("triton_sam.family")),
    ]
    text = "\n".join(lines) + "\n"
    parse_config(text)
    return text


def _demo_lines(checkpoint: str | None) -> list[str]:
    if checkpoint != SAM2.built_in:
        return []
    return [
        "# The small model that comes with the project: clients say so to their users.",
        f'parameters {{ key: "{CHECKPOINT_KEY}" value {{ string_value: "{checkpoint}" }} }}',
    ]


def _family_lines(name: str | None) -> list[str]:
    family = FAMILIES.get(name or "")
    if family is None or families_like(family)[0] is family:
        return []
    return [
        f"# {families_like(family)[0].label} has the same tensors: this tells the families apart.",
        f'parameters {{ key: "{FAMILY_KEY}" value {{ string_value: "{name}" }} }}',
    ]


def parse_config(text: str, path: Path | None = None) -> Any:
    """Parse the text of a config.pbtxt into Triton's own ModelConfig message.

    Args:
        text: the text.
        path: the text's file, for error messages; None if the caller adds it.

    Raises:
        RepositoryError: Triton could not parse the text.
    """
    # Imported here, because clients import this package only for its names, and these modules import gRPC.
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        where = "" if path is None else f"{path}: "
        raise RepositoryError(f"{where}not a valid {CONFIG_NAME}: {error}") from error


def tensor_list(tensors: Sequence[ConfigTensor]) -> str:
    """Return the value of ``input`` or ``output``: one line per tensor, with its heading and comment."""
    lines = []
    for tensor in tensors:
        comma = "" if tensor is tensors[-1] else ","
        comment = f"  # {tensor.comment}" if tensor.comment else ""
        lines += [f"  # {tensor.heading}"] if tensor.heading else []
        lines.append(f"  {tensor_text(tensor)}{comma}{comment}")
    return "\n".join(["[", *lines, "]"])


def tensor_text(tensor: Tensor) -> str:
    """Return one input or output, on one line."""
    dims = [side if isinstance(side, int) else -1 for side in tensor.shape] or [1]
    ending = ", optional: true" if tensor.optional else ""
    return f'{{ name: "{tensor.name}", data_type: {_config_type(tensor)}, dims: {dims}{ending} }}'


def _tensor(value: onnx.ValueInfoProto, optional: bool = False) -> ConfigTensor:
    kind = value.type.tensor_type
    if kind.elem_type not in _TYPES:
        raise RepositoryError(f"tensor {value.name} has ONNX type {kind.elem_type}, which Triton does not support")
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "any" for dim in kind.shape.dim)
    comment = " x ".join(map(str, shape)) or "scalar"
    return ConfigTensor(value.name, _TYPES[kind.elem_type], shape, optional, comment=comment)


def _config_type(tensor: Tensor) -> str:
    """Return the name of a type in config.pbtxt, which calls BYTES a string."""
    return "TYPE_STRING" if tensor.dtype == "BYTES" else f"TYPE_{tensor.dtype}"


def _warm_up(inputs: Sequence[Tensor]) -> str:
    """Return one sample of zeros with every required input; dynamic dimensions are 1."""
    samples = ",\n".join(f"  {_sample(tensor)}" for tensor in inputs if not tensor.optional)
    return f"[\n{samples}\n]"


def _sample(tensor: Tensor) -> str:
    dims = [side if isinstance(side, int) else 1 for side in tensor.shape] or [1]
    meaning = f"data_type: {_config_type(tensor)}, dims: {dims}, zero_data: true"
    return f'{{ key: "{tensor.name}", value: {{ {meaning} }} }}'


def _load(path: Path) -> onnx.ModelProto:
    try:
        import onnx
    except ImportError as error:
        raise missing("writing a config.pbtxt needs", "export", error) from error
    try:
        return onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # onnx and protobuf raise various errors for damaged files
        raise RepositoryError(f"{path} is not an ONNX model: {first_line(error)}") from error
