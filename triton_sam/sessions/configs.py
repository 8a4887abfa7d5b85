"""Writes the models of a variant that are not ONNX from the wire contract: config.pbtxt and programs.

These are the session models of images and videos, and the models that only encode compressed images. An export writes
the models of its variant, complete_repository() those missing in repositories of earlier versions, and
`tools/maintain/write_configs.py` the committed models of the demo model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._common.files import atomic_write
from ..errors import RepositoryError
from ..families import FAMILIES, PACKAGED, get_family, model_name, spec_of, variant_of
from ..families.base import Family
from ..families.tables import DECODER, ENCODER, Tensor, encoder_jpeg_name, preprocess_name
from ..repository.config import (
    CONFIG_NAME,
    FAMILY_KEY,
    QUEUE,
    ConfigTensor,
    config_for,
    parse_config,
    tensor_list,
    tensor_text,
)
from ..repository.folder import list_models, weights_in
from ..wire import contract
from ..wire import video as video_wire
from ..wire.contract import Parameter, WireTensor
from ..wire.pair import ModelPair

PROGRAM = "1/model.py"
Files = Mapping[str, str]
"""Texts by path in the folder of the model."""
ENCODING_FAMILIES = ("sam2",)
"""Families with models that only encode compressed images, for clients with their own decoder."""
SIZE = WireTensor(contract.IMAGE_SIZE, "INT32", (2,), note="width, height of the original")
ENCODED_IMAGE = (
    f"input [{tensor_text(Tensor(contract.ENCODED_IMAGE, 'BYTES', (1,)))}]  # JPEG, PNG, WebP, TIFF, BMP, ..."
)


def programs(family: Family, variant: str | None = None, *, video: bool = True) -> dict[str, Files]:
    """Return the files of all models of a variant that are not ONNX, by model name.

    Clients send images of the official size, so a variant of another size (Family.at) has no session model. Only the
    families of this package have programs.

    Args:
        variant: name of the variant; None for the family's name.
    """
    if family.name not in PACKAGED:
        return {}
    name = variant or family.name
    found: dict[str, Files] = {}
    if family.name in ENCODING_FAMILIES and name == family.name:
        purpose = f"Images into the input of the {family.label} encoder; see docs/reference/session-models.md."
        text = program("image", purpose, "preprocess_model")
        found[preprocess_name(name)] = {CONFIG_NAME: preprocess_config(family), PROGRAM: text}
        # Triton requires a version folder, and git does not store empty folders.
        found[encoder_jpeg_name(name)] = {CONFIG_NAME: encoder_jpeg_config(family), "1/.gitkeep": ""}
    if family.image_size == get_family(family.name).image_size:
        purpose = f"{family.label} with the images kept on the server; see docs/reference/session-models.md."
        found[name] = {CONFIG_NAME: session_config(family, name), PROGRAM: program("image", purpose)}
    if video and family.tracking:
        found[video_wire.video_model(family, name)] = {
            CONFIG_NAME: video_config(family, name),
            PROGRAM: video_program(),
        }
    return found


@dataclass(frozen=True)
class Missing:
    """The programs that a repository lacks.

    Args:
        warnings: a line for each model that cannot be written, because another model has its name.
    """

    files: dict[Path, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def missing_programs(repository: Path, family: Family, variant: str | None = None, *, video: bool = True) -> Missing:
    """Return the programs of a variant that a repository lacks, or has for tensors of other sizes or names.

    A config.pbtxt with the same tensors stays unchanged, because it may have settings of the host.
    """
    missing = Missing()
    for model, files in programs(family, variant, video=video).items():
        folder = repository / model
        there = _config_in(folder)
        wanted = parse_config(files[CONFIG_NAME])
        if there is not None and not _is_program(there, wanted):
            missing.warnings.append(f"{folder} is another model, so {model} is not written: choose another --name")
            continue
        keeps_config = there is not None and _has_same_tensors(there, wanted)
        for path, text in files.items():
            if not (path == CONFIG_NAME and keeps_config) and _text_of(folder / path) != text:
                missing.files[folder / path] = text
    return missing


def write_programs(repository: Path, family: Family, variant: str | None = None, *, video: bool = True) -> list[str]:
    """Write the programs of missing_programs() and return its warnings."""
    missing = missing_programs(repository, family, variant, video=video)
    for path, text in missing.files.items():
        _write(path, text)
    return missing.warnings


def complete_repository(repository: Path) -> list[Path]:
    """Write the missing programs of the models with weights in an older repository; return the written files.

    Earlier versions of the package contained the config.pbtxt files and session models of all families. Now an export
    writes them.
    """
    written = []
    for name, graph in graphs_without_config(repository).items():
        with contextlib.suppress(RepositoryError):  # a damaged file, whose model servers do not load
            _write(repository / name / CONFIG_NAME, config_for(graph, name, graph.name))
            written.append(repository / name / CONFIG_NAME)
    for path, text in lacking_programs(repository).items():
        _write(path, text)
        written.append(path)
    return written


def graphs_without_config(repository: Path) -> dict[str, Path]:
    """Return the ONNX file of each model that has no config.pbtxt, by model."""
    found = {}
    for model in list_models(repository):
        graphs = [file for file in weights_in(model.path) if file.suffix == ".onnx"]
        if model.role and len(graphs) == 1 and not (model.path / CONFIG_NAME).exists():
            found[model.name] = graphs[0]
    return found


def lacking_programs(repository: Path) -> dict[Path, str]:
    """Return the missing files of programs() for the models with weights and a config.pbtxt, by path."""
    found: dict[Path, str] = {}
    models = {model.name: model for model in list_models(repository) if model.has_weights and not model.problem}
    for name, model in models.items():
        variant = variant_of(name)
        if model.role != ENCODER or model_name(variant, DECODER) not in models:
            continue
        family = _family_of(repository / model_name(variant, DECODER), model.metadata)
        tracking = family.tracking.models if family is not None and family.tracking is not None else {}
        video = bool(tracking) and all(model_name(variant, role) in models for role in tracking)
        for program, files in (programs(family, variant, video=video) if family is not None else {}).items():
            there = _config_in(repository / program)
            if there is None or _is_program(there, parse_config(files[CONFIG_NAME])):
                paths = {repository / program / path: text for path, text in files.items()}
                # An empty file only keeps its folder in Git.
                found |= {path: text for path, text in paths.items() if not (path if text else path.parent).exists()}
    return found


def _family_of(decoder: Path, metadata: Mapping[str, str]) -> Family | None:
    """Return the family of a pair at the size of its images, from the encoder's metadata or the decoder's tensors."""
    family = FAMILIES.get(metadata.get("triton_sam.family", ""))
    if family is None:  # published files have no metadata
        spec = spec_of(tensor.name for tensor in _config_in(decoder).input)
        family = next((each for each in FAMILIES.values() if spec is not None and each.decoder == spec), None)
    return None if family is None else family.at(int(metadata.get("triton_sam.image_size", family.image_size)))


def _config_in(folder: Path) -> Any:
    """Return the ModelConfig in a folder; an empty one if it cannot be parsed, None without a file."""
    text = _text_of(folder / CONFIG_NAME)
    try:
        return None if text is None else parse_config(text)
    except RepositoryError:
        return parse_config("")


def _is_program(there: Any, wanted: Any) -> bool:
    """Return whether two models are of the same kind."""
    return bool(
        (there.backend, there.platform) == (wanted.backend, wanted.platform)
        and (FAMILY_KEY in there.parameters) == (FAMILY_KEY in wanted.parameters)
    )


def _has_same_tensors(there: Any, wanted: Any) -> bool:
    """Return whether two models have the same tensors and call the same models."""
    names = [key for key, value in wanted.parameters.items() if not value.string_value.isdecimal()]
    return bool(
        (list(there.input), list(there.output)) == (list(wanted.input), list(wanted.output))
        and there.ensemble_scheduling == wanted.ensemble_scheduling
        and all(there.parameters[key] == wanted.parameters[key] for key in names)
    )


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


def session_config(family: Family, variant: str | None = None) -> str:
    """Return the config.pbtxt of a session model.

    Args:
        variant: name of the model pair that it uses, which is also its own name; None for the default pair.
    """
    subject = f"{family.label} with the images kept on the server: an image once, then an id and a prompt."
    lines = [
        f"# {subject} See docs/reference/session-models.md.",
        f'name: "{ModelPair(family, variant).session_model}"',
        'backend: "python"',
        "# One request is one image; several objects are prompts of one request.",
        "max_batch_size: 0",
        *QUEUE,
        f"input {tensor_list([with_note(tensor) for tensor in contract.inputs(family)])}",
        f"output {tensor_list([with_note(tensor) for tensor in contract.outputs(family)])}",
        "# One instance is one cache; it works on many requests at a time.",
        "instance_group [{ count: 1, kind: KIND_AUTO }]",
    ]
    lines += parameter_lines(contract.parameters(family, variant))
    return checked_config(lines)


def preprocess_config(family: Family) -> str:
    """Return the config.pbtxt of the model that turns a compressed image into the encoder's input."""
    (pixels,) = family.encoder.inputs
    one_image = ConfigTensor(pixels.name, pixels.dtype, (1, *pixels.shape[1:]))
    subject = f"Any image -> the input of {family.model_name(ENCODER)}, resized as the official predictor does it."
    return checked_config(
        [
            f"# {subject} A step of {encoder_jpeg_name(family.name)}.",
            f'name: "{preprocess_name(family.name)}"',
            'backend: "python"',
            "max_batch_size: 0",
            ENCODED_IMAGE,
            f"output {tensor_list([one_image, with_note(SIZE)])}",
            "instance_group [{ count: 1, kind: KIND_CPU }]",
            parameter("family", family.name.upper()),
        ]
    )


def encoder_jpeg_config(family: Family) -> str:
    """Return the config.pbtxt of the ensemble that turns a compressed image into embeddings."""
    (pixels,) = family.encoder.input_names
    embeddings = [ConfigTensor(spec.name, spec.dtype, spec.shape) for spec in family.encoder.outputs]
    steps = (
        _step(preprocess_name(family.name), (contract.ENCODED_IMAGE,), (pixels, contract.IMAGE_SIZE)),
        _step(family.model_name(ENCODER), (pixels,), family.encoder.output_names),
    )
    return checked_config(
        [
            f"# Any image -> {family.name.upper()}'s embeddings, for clients with a decoder of their own.",
            f'name: "{encoder_jpeg_name(family.name)}"',
            'platform: "ensemble"',
            "max_batch_size: 0",
            ENCODED_IMAGE,
            f"output {tensor_list([*embeddings, with_note(SIZE)])}",
            "ensemble_scheduling {\n  step [",
            ",\n".join(steps),
            "  ]\n}",
        ]
    )


def _step(model: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    maps: Mapping[str, tuple[str, ...]] = {"input_map": inputs, "output_map": outputs}
    lines = [f'{kind} {{ key: "{name}" value: "{name}" }}' for kind, names in maps.items() for name in names]
    return "\n".join(
        ["    {", *(f"      {line}" for line in (f'model_name: "{model}"', "model_version: -1", *lines)), "    }"]
    )


def video_program() -> str:
    """Return the text of model.py in the folder of a video model."""
    return program(
        "video", "Objects are followed through videos, which are kept on the server; see docs/reference/video.md."
    )


def video_config(family: Family, variant: str | None = None) -> str:
    """Return the config.pbtxt of a video model.

    Args:
        variant: name of the models that it uses, for example "sam2.1_large"; None for the default ones.
    """
    subject = f"{family.name.upper()} for videos, with frames and memory on the server: a prompt, then frame by frame."
    return checked_config(
        [
            f"# {subject} See docs/reference/video.md.",
            f'name: "{video_wire.video_model(family, variant)}"',
            'backend: "python"',
            "# One request is one operation on one session; all objects of a session are one batch inside the model.",
            "max_batch_size: 0",
            *QUEUE,
            f"input {tensor_list([with_note(tensor) for tensor in video_wire.inputs()])}",
            f"output {tensor_list([with_note(tensor) for tensor in video_wire.outputs(family)])}",
            "# One instance keeps all sessions; it works on many requests at a time.",
            "instance_group [{ count: 1, kind: KIND_AUTO }]",
            *parameter_lines(video_wire.parameters(family, variant)),
        ]
    )


def program(package: str, purpose: str, module: str = "triton_model") -> str:
    """Return the text of a model.py that imports its program from a package in triton_sam.sessions."""
    return f'''"""{purpose}"""

try:
    from triton_sam.sessions.{package}.{module} import TritonPythonModel
except ImportError as error:
    raise ImportError(
        "this model needs the triton_sam package in Triton's Python: use the image of scripts/build_image.sh, "
        f"or install the package there ({{error}})"
    ) from error

__all__ = ["TritonPythonModel"]
'''


def with_note(tensor: WireTensor) -> ConfigTensor:
    """Return a tensor with its comment for config.pbtxt: its dynamic dimensions, and its note."""
    is_free = any(isinstance(side, str) for side in tensor.shape)
    words = [" x ".join(map(str, tensor.shape))] if is_free else []
    comment = ", ".join([*words, *([tensor.note] if tensor.note else [])])
    return ConfigTensor(tensor.name, tensor.dtype, tensor.shape, tensor.optional, comment, tensor.heading)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def parameter_lines(parameters: Iterable[Parameter]) -> list[str]:
    """Return the lines of parameters, with their meanings as comments above them."""
    lines = []
    for item in parameters:
        lines += [f"# {item.meaning}"] if item.meaning else []
        lines.append(parameter(item.name, item.value))
    return lines


def checked_config(lines: list[str]) -> str:
    """Return lines as the text of a config.pbtxt."""
    text = "\n".join(lines) + "\n"
    parse_config(text)
    return text
