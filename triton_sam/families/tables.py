"""The rows that a family's table consists of: tensors, models, sizes, checkpoints, options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType

ENCODER, DECODER = "encoder", "decoder"
"""Roles of the model pair, which every family has."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model as it stands on the wire.

    Args:
        name: tensor name in the ONNX graph and in config.pbtxt.
        dtype: Triton's name of the type, for example "FP32".
        shape: a number for a fixed dimension, a symbol for a free one. Dimensions that share a symbol are equal.
        optional: the graph has a default, the request may leave it out.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    optional: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """One model of a family.

    Args:
        role: the model's place in the family, for example "encoder" or "memory_attention"; its name in Triton ends in
            the role.
        inputs: in graph order.
        outputs: in graph order.
        filename: name of the ONNX file in a version folder.
    """

    role: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    filename: str = "model.onnx"

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in graph order."""
        return tuple(tensor.name for tensor in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in graph order."""
        return tuple(tensor.name for tensor in self.outputs)


def by_role(*specs: ModelSpec) -> Mapping[str, ModelSpec]:
    """Return models as a family keeps them: by role, in the given order."""
    return MappingProxyType({spec.role: spec for spec in specs})


@dataclass(frozen=True)
class ModelSize:
    """One size of a family.

    Args:
        name: the size on the command line, for example "base_plus".
        official: False for a size that exists for tests alone.
        model: the exporter's own name of the configuration, for example a configuration file; empty: the size's name.
        config: the name that exported files carry as ``triton_sam.config``; empty: the last part of ``model`` without
            its ending.
        aliases: other spellings of the size that the command line accepts.
    """

    name: str
    official: bool = True
    model: str = ""
    config: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Fill in the names that follow from the others."""
        object.__setattr__(self, "model", self.model or self.name)
        object.__setattr__(self, "config", self.config or PurePosixPath(self.model).stem)


@dataclass(frozen=True)
class Checkpoint:
    """One official checkpoint file.

    Args:
        family: name of the family, for example "sam2".
        size: size of the model, for example "base_plus".
        url: the address where the file is published.
        bytes: size of the file; None where unknown.
        sha256: SHA-256 of the file, 64 lower-case hexadecimal digits.
    """

    family: str
    size: str
    url: str
    bytes: int | None
    sha256: str

    @property
    def key(self) -> str:
        """Family and size, for example "sam2/base_plus"."""
        return f"{self.family}/{self.size}"

    @property
    def file_name(self) -> str:
        """Name of the file, for example "sam2.1_hiera_tiny.pt"."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class HubFiles:
    """A family's files on the Hugging Face hub.

    Args:
        onnx: hub repository with the published ONNX models, named after the file names of the family's models.
        checkpoint: hub repository with the checkpoint in transformers' format, which asks for a login.
        precisions: precision -> ending of the published file names; the first one is the default.
    """

    onnx: str
    checkpoint: str
    precisions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"fp32": "", "fp16": "_fp16"}))


@dataclass(frozen=True)
class Option:
    """An option of the command line that one family has.

    Args:
        flag: for example "--no-memory".
        help: a line for --help, without the family's name.
        commands: names of the commands that have the option.
        choices: the values that it takes; empty: any text.
        metavar: stands for the value in --help.
        is_switch: the option takes no value.
        names_model: the value is the exporter's name of the model, so that it replaces --size.
        size: the switch stands for --size with this value.
    """

    flag: str
    help: str
    commands: tuple[str, ...] = ("export",)
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    is_switch: bool = False
    names_model: bool = False
    size: str = ""

    @property
    def destination(self) -> str:
        """Name of the option's value among the parsed arguments and in the exporter's options."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def replaces_size(self) -> bool:
        """Whether the option says which size is meant, in other words than --size."""
        return self.names_model or bool(self.size)
