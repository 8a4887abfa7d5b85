"""The rows of a family's table: tensors, models, sizes, checkpoints and command-line options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from types import MappingProxyType

ENCODER, DECODER = "encoder", "decoder"
"""The roles of the model pair, which every family has."""

MAX_PROMPTS = 64
"""Maximum number of prompts in one request to a decoder, each of which takes about 35 MB of memory."""
MAX_PROMPT_POINTS = 2048
"""Maximum number of points in one request to a decoder, over all prompts, each of which takes about 1 MB of memory."""

GUARD_PREFIX = "guard/"
"""Prefix of the nodes that reject tensors of wrong sizes in an exported graph; see export/guards.py."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model, as in requests and responses.

    Args:
        name: the tensor's name in the ONNX graph and in config.pbtxt.
        dtype: Triton's name of the data type, for example "FP32".
        shape: a number for a fixed dimension, 0 if it depends on the size of the model, and a symbol for a dynamic one.
            Dimensions with the same symbol are equal.
        optional: whether a request may leave the tensor out, because the graph has a default for it.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    optional: bool = False


@dataclass(frozen=True)
class Dimension:
    """The sizes that a request may give to the dimensions with one symbol.

    The exported graph rejects all others, because some versions of ONNX Runtime crash on them or return wrong results.

    Args:
        minimum: the smallest size.
        choices: the sizes that each dimension with the symbol may have independently: numbers, and other symbols of
            the model's inputs. Empty: all dimensions with the symbol must be equal.
    """

    minimum: int = 1
    choices: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """One model of a family.

    Args:
        role: the model's task in the family, for example "encoder" or "memory_attention". The model's name in Triton
            ends in the role.
        inputs: the input tensors, in the order of the graph.
        outputs: the output tensors, in the order of the graph.
        further_outputs: outputs of exported graphs that follow the others. Published files lack them, and only session
            models request them.
        filename: name of the ONNX file in a version folder.
        dimensions: the sizes that the symbols of the inputs may have. All dimensions with a symbol that is not listed
            must be equal and at least 1; a dimension of an optional input may also be 1, as in its default.
        limits: the largest product of the sizes of some symbols, because the memory of a request grows with it. The
            symbols of a limit are those of one required input. Encoders have none, because a limit changes the bits
            of EdgeTAM's embeddings in ONNX Runtime.
    """

    role: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    filename: str = "model.onnx"
    further_outputs: tuple[Tensor, ...] = ()
    dimensions: Mapping[str, Dimension] = field(default_factory=lambda: MappingProxyType({}))
    limits: Mapping[tuple[str, ...], int] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of the graph."""
        return tuple(tensor.name for tensor in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of the graph, without the further ones."""
        return tuple(tensor.name for tensor in self.outputs)

    @property
    def graph_outputs(self) -> tuple[Tensor, ...]:
        """All outputs of an exported graph, in its order."""
        return (*self.outputs, *self.further_outputs)


def by_role(*specs: ModelSpec) -> Mapping[str, ModelSpec]:
    """Return a read-only mapping of models by role, in the given order, for Family.models."""
    return MappingProxyType({spec.role: spec for spec in specs})


@dataclass(frozen=True)
class ModelSize:
    """One size of a family.

    Args:
        name: the size as the command line names it, for example "base_plus".
        official: False for a size that only tests use.
        model: the exporter's name of the configuration, for example a configuration file. If it is empty, it becomes
            ``name``.
        config: the value of ``triton_sam.config`` in the metadata of exported files. If it is empty, it becomes the
            last path component of ``model``, without the suffix.
        aliases: other spellings of the size that the command line accepts.
    """

    name: str
    official: bool = True
    model: str = ""
    config: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Derive the names that are empty."""
        object.__setattr__(self, "model", self.model or self.name)
        object.__setattr__(self, "config", self.config or PurePosixPath(self.model).stem)


@dataclass(frozen=True)
class Checkpoint:
    """One published checkpoint file: an official one or a fine-tune.

    Args:
        family: name of the family, for example "sam2".
        size: size of the model, for example "base_plus".
        url: URL of the published file.
        bytes: size of the file in bytes; None if it is unknown.
        sha256: SHA-256 of the file, as 64 lower-case hexadecimal digits. Empty if it is not published.
        name: name of a fine-tune, and of its models in Triton. Empty for an official file.
        other_hash: the publisher's hash if it is not a SHA-256: "xxh128:" or "md5:" and hexadecimal digits. Without any
            hash, the file is on the Hugging Face hub, which sends its SHA-256 with each download.
        image_size: side of the encoder's image in pixels; None: the family's.
        licence: SPDX identifier of the weights' licence, or the publisher's statement about it.
        purpose: what the weights were trained for.
    """

    family: str
    size: str
    url: str
    bytes: int | None
    sha256: str
    name: str = ""
    other_hash: str = ""
    image_size: int | None = None
    licence: str = "Apache-2.0"
    purpose: str = "all images"

    @property
    def word(self) -> str:
        """The name of the file on the command line, after the family: the fine-tune's name, or the size."""
        return self.name or self.size

    @property
    def key(self) -> str:
        """Family and word, for example "sam2/base_plus"."""
        return f"{self.family}/{self.word}"

    @property
    def file_name(self) -> str:
        """Name of the downloaded file, for example "sam2.1_hiera_tiny.pt"; for a fine-tune, its name."""
        published = PurePosixPath(self.url.partition("?")[0])
        return f"{self.name}{published.suffix or '.pt'}" if self.name else published.name or "checkpoint.pt"

    @property
    def digest(self) -> str:
        """The published hash as ALGORITHM:HEXADECIMAL; empty if none is published."""
        return f"sha256:{self.sha256}" if self.sha256 else self.other_hash


@dataclass(frozen=True)
class HubFiles:
    """A family's files on the Hugging Face hub.

    Args:
        onnx: hub repository with the published ONNX models. Their file names are ModelSpec.filename with the suffix
            of the precision.
        checkpoint: hub repository with the checkpoint in transformers' format; a download needs a login.
        licence: name of the weights' licence.
        precisions: maps each precision to the suffix of its file names; the first one is the default.
    """

    onnx: str
    checkpoint: str
    licence: str
    precisions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"fp32": "", "fp16": "_fp16"}))


@dataclass(frozen=True)
class Option:
    """A command-line option that only one family has.

    Args:
        flag: the option itself, for example "--no-memory".
        help: the text for --help, without the family's name.
        commands: names of the commands that have the option.
        choices: the values that the option accepts; empty if it accepts any text.
        metavar: the placeholder for the value in --help.
        is_switch: True if the option takes no value.
        names_model: True if the value is the exporter's name of the model (ModelSize.model), which replaces --size.
        size: if it is not empty, the option is a switch that means --size with this value.
        is_folder: True if the value is a folder; `triton-sam setup` checks that it exists before a download.
    """

    flag: str
    help: str
    commands: tuple[str, ...] = ("export",)
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    is_switch: bool = False
    names_model: bool = False
    size: str = ""
    is_folder: bool = False

    @property
    def destination(self) -> str:
        """Name of the option's value in the parsed arguments and in Settings.options."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def replaces_size(self) -> bool:
        """Whether the option replaces --size."""
        return self.names_model or bool(self.size)


def model_name(variant: str, role: str) -> str:
    """Return the name of a variant's model in Triton, for example "sam2.1_large_encoder"."""
    return f"{variant}_{role}"


def pair_names(variant: str) -> tuple[str, str]:
    """Return the names of a variant's encoder and decoder."""
    return model_name(variant, ENCODER), model_name(variant, DECODER)


def video_name(variant: str) -> str:
    """Return the name of a variant's video model in Triton, for example "sam2_video"."""
    return f"{variant}_video"


def preprocess_name(variant: str) -> str:
    """Return the name of the model that turns images into the encoder's input, for example "sam2_preprocess"."""
    return f"{variant}_preprocess"


def encoder_jpeg_name(variant: str) -> str:
    """Return the name of the ensemble of preprocessing model and encoder, for example "sam2_encoder_jpeg"."""
    return f"{variant}_encoder_jpeg"
