"""The config.pbtxt of the session models of images, and of the models that only encode compressed images."""

from __future__ import annotations

from collections.abc import Mapping

from ...families.base import Family
from ...families.names import encoder_jpeg_name, preprocess_name
from ...families.tables import ENCODER, Tensor
from ...repository.config import QUEUE, ConfigTensor, tensor_list, tensor_text
from ...wire import contract
from ...wire.contract import WireTensor
from ...wire.pair import ModelPair
from ..config_text import checked, explained, parameter, parameter_lines, program

ENCODING_FAMILIES = ("sam2",)
"""Families with models that only encode compressed images, for clients with a decoder of their own."""
SIZE = WireTensor(contract.IMAGE_SIZE, "INT32", (2,), note="width, height of the original")
ENCODED_IMAGE = (
    f"input [{tensor_text(Tensor(contract.ENCODED_IMAGE, 'BYTES', (1,)))}]  # JPEG, PNG, WebP, TIFF, BMP, ..."
)


def session_config(family: Family, variant: str | None = None) -> str:
    """Return the config.pbtxt of a session model.

    Args:
        family: the SAM family.
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
        f"input {tensor_list([explained(tensor) for tensor in contract.inputs(family)])}",
        f"output {tensor_list([explained(tensor) for tensor in contract.outputs(family)])}",
        "# One instance is one cache; it works on many requests at a time.",
        "instance_group [{ count: 1, kind: KIND_AUTO }]",
    ]
    lines += parameter_lines(contract.parameters(family, variant))
    return checked(lines)


def session_program(family: Family) -> str:
    """Return the text of model.py in the folder of a session model."""
    return program("image", f"{family.label} with the images kept on the server; see docs/reference/session-models.md.")


def preprocess_program(family: Family) -> str:
    """Return the text of model.py in the folder of the model that turns images into the encoder's input."""
    purpose = f"Images into the input of the {family.label} encoder; see docs/reference/session-models.md."
    return program("image", purpose, "preprocess_model")


def preprocess_config(family: Family) -> str:
    """Return the config.pbtxt of the model that turns a compressed image into the encoder's input."""
    (pixels,) = family.encoder.inputs
    one_image = ConfigTensor(pixels.name, pixels.dtype, (1, *pixels.shape[1:]))
    subject = f"Any image -> the input of {family.model_name(ENCODER)}, resized as the official predictor does it."
    return checked(
        [
            f"# {subject} A step of {encoder_jpeg_name(family.name)}.",
            f'name: "{preprocess_name(family.name)}"',
            'backend: "python"',
            "max_batch_size: 0",
            ENCODED_IMAGE,
            f"output {tensor_list([one_image, explained(SIZE)])}",
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
    return checked(
        [
            f"# Any image -> {family.name.upper()}'s embeddings, for clients with a decoder of their own.",
            f'name: "{encoder_jpeg_name(family.name)}"',
            'platform: "ensemble"',
            "max_batch_size: 0",
            ENCODED_IMAGE,
            f"output {tensor_list([*embeddings, explained(SIZE)])}",
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
