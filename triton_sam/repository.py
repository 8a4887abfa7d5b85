"""The model repository: where it is, what lies in it, and the config.pbtxt of a model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ._extras import missing
from ._onnx_header import read_metadata
from .bundle import bundled
from .errors import ConfigurationError, RepositoryError

if TYPE_CHECKING:
    import onnx

REPOSITORY_VARIABLE = "TRITON_SAM_REPOSITORY"
CONFIG_NAME = "config.pbtxt"

BUILT_IN_CHECKPOINT = "sam2.1_hiera_micro"
"""Name of the small default model, whose version 1 is committed."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

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


@dataclass(frozen=True)
class RepositoryModel:
    """One model folder of a repository.

    Args:
        name: name of the folder, which is the model's name in Triton.
        role: encoder or decoder by the name's ending, None for other models.
        versions: numeric version folders, ascending.
        has_weights: see weights_in(); an ensemble has none.
        problem: what Triton would refuse, one line; empty when nothing is wrong.
        metadata: what the exporter noted in the newest version's ONNX file (`triton_sam.*` keys), else empty.
    """

    name: str
    role: Literal["encoder", "decoder"] | None
    versions: tuple[int, ...]
    has_weights: bool
    problem: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


def pair_names(variant: str) -> tuple[str, str]:
    """Return the names of a variant's encoder and decoder."""
    return f"{variant}_encoder", f"{variant}_decoder"


def models_to_load(repository: Path, variant: str) -> list[str]:
    """Return what a local server loads for a variant: its session model, which brings the pair along, or the pair."""
    return [variant] if (repository / variant / CONFIG_NAME).is_file() else list(pair_names(variant))


def default_repository() -> Path:
    """Return the model repository that commands use when none is named.

    In this order: the environment variable TRITON_SAM_REPOSITORY, `./model_repository`, the one of the checkout that
    holds this package, the one inside the installed package. It need not exist.
    """
    named = os.environ.get(REPOSITORY_VARIABLE)
    if named:
        return Path(named)
    here = Path("model_repository")
    return here if here.is_dir() else bundled("model_repository")


def version_folders(folder: Path) -> list[Path]:
    """Return the version folders of a model, lowest first."""
    found = (path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def weights_in(folder: Path) -> list[Path]:
    """Return what a model's newest version holds by name; Triton would load no other.

    Hidden files, with which git keeps folders, do not count. A folder does: some backends want one.
    """
    newest = version_folders(folder)[-1:]
    return sorted(path for version in newest for path in version.iterdir() if not path.name.startswith("."))


def check_name(name: str) -> str:
    """Return a model name that is safe as a folder name and in a URL.

    Raises:
        ConfigurationError: it is not; path separators, a leading dot and blanks are refused.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be a model name: letters, digits, '.', '_' and '-' only, a letter or digit first"
        )
    return name


def list_models(repository: Path) -> list[RepositoryModel]:
    """Return the models of a repository by name.

    Raises:
        RepositoryError: there is no such folder.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: give --model-repository, or export a model")
    folders = sorted(path for path in repository.iterdir() if path.is_dir() and _NAME.fullmatch(path.name))
    return [_inspect(folder) for folder in folders]


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


def _inspect(folder: Path) -> RepositoryModel:
    versions = version_folders(folder)
    files = weights_in(folder)
    config, problems = _check_config(folder)
    wanted = (config.default_model_filename if config is not None else "") or "model.onnx"
    if files and config is not None and config.backend == "onnxruntime" and wanted not in {path.name for path in files}:
        problems.append(f"version {versions[-1].name} holds no {wanted}")
    metadata, fault = _metadata(versions[-1] / wanted) if versions else ({}, None)
    return RepositoryModel(
        name=folder.name,
        role=next((role for role in ("encoder", "decoder") if folder.name.endswith(f"_{role}")), None),
        versions=tuple(int(version.name) for version in versions),
        has_weights=bool(files),
        problem="; ".join([*problems, *([fault] if fault else [])]),
        metadata=metadata,
    )


def _check_config(folder: Path) -> tuple[Any, list[str]]:
    path = folder / CONFIG_NAME
    try:
        config = parse_config(path.read_text("utf-8"))
    except FileNotFoundError:
        return None, [f"no {CONFIG_NAME}"]
    except (OSError, UnicodeDecodeError, RepositoryError) as error:
        return None, [f"{CONFIG_NAME}: {error}"]
    if config.name and config.name != folder.name:
        return config, [f"{CONFIG_NAME} names the model {config.name!r}, its folder is {folder.name!r}"]
    return config, []


def _metadata(path: Path) -> tuple[dict[str, str], str | None]:
    if path.suffix != ".onnx" or not path.is_file():
        return {}, None
    try:
        return read_metadata(path), None
    except (OSError, ValueError) as error:
        return {}, f"{path.parent.name}/{path.name}: {error}"
