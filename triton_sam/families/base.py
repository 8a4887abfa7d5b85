"""The table of a family.

A family is data and pure functions, and does no I/O. The names and shapes here are the wire contract: the exporters,
the model repository, the clients, the commands and the tests all read them from here. The exporter of a family needs
torch, so the table has only its name, in the string ``exporter``, and it is imported lazily.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError
from .tables import DECODER, ENCODER, Checkpoint, HubFiles, ModelSize, ModelSpec, Option, Tensor, model_name
from .tracking import Tracking

FloatArray = npt.NDArray[np.float32]
Size = tuple[int, int]
"""Width and height in pixels, in Pillow's order."""

LABEL_BACKGROUND = 0
LABEL_FOREGROUND = 1
LABEL_BOX_TOP_LEFT = 2
LABEL_BOX_BOTTOM_RIGHT = 3
LABEL_NO_POINT = -2
"""Pads prompts with few points, so that prompts of different lengths fit into one batch.

Exported decoders mask it out of every attention."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """Everything that differs between families. triton_sam.families.register() adds one to the table of families."""

    name: str
    """The family's name: letters and digits, a letter first."""
    label: str
    """The family's name in messages, for example "SAM2"."""
    title: str = ""
    """The family's name in tables for users, for example "SAM2.1". If it is empty, they show the label."""
    models: Mapping[str, ModelSpec]
    """The family's models by role. "encoder" and "decoder" are required; a family may have further roles."""
    tracking: Tracking | None = None
    """The models that follow objects through a video; None if the family has none."""
    concepts: Mapping[str, ModelSpec] = field(default_factory=dict)
    """The models that find every instance of a concept, by role; empty if the family has none."""

    image_size: int
    """Side of the square image that the encoder takes, in pixels."""
    mask_size: int
    """Side of the low-resolution mask logits, in pixels."""
    value_range: tuple[float, float]
    """The values (black, white) in the encoder's input that stand for 0 and 255 of an 8-bit image."""
    keep_aspect: bool
    """How an image becomes square. True: its longest side is scaled to ``image_size``, and the rest is padded. False:
    width and height are both scaled to ``image_size``, which changes the aspect ratio."""
    pad_color: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """RGB colour of the padding that ``keep_aspect`` adds, in ``value_range``."""
    pixel_mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of RGB values in 0..1 by which the official predictor normalises an image. The default is ImageNet's."""
    pixel_std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation of RGB values in 0..1 by which the official predictor divides. The default is ImageNet's."""
    resampling: Literal["float", "pillow", "fixed_point"] = "float"
    """Arithmetic of the official predictor's resize, which is bilinear with antialiasing. "float" uses floating point,
    "pillow" rounds to bytes as Pillow does, and "fixed_point" rounds to bytes as torch does."""

    decoder_inputs: Callable[
        [FloatArray, npt.NDArray[np.int64], FloatArray | None, FloatArray | None], dict[str, npt.NDArray[np.generic]]
    ]
    """Turns checked prompts into the decoder's input tensors, by name, except the embeddings. Its arguments are
    (P,N,2) points x, y in pixels of the model's frame, where N may be 0; (P,N) labels, each one of the LABEL_*
    constants; (P,4) boxes x1, y1, x2, y2 in the model's frame, or None; and (1 or P,1,mask_size,mask_size) logits of an
    earlier prediction, or None."""
    requested_outputs: Callable[[bool], Sequence[str]]
    """Returns the names of the decoder's outputs that a prediction needs, in the order (masks, scores). Its argument is
    ``multimask_output``."""
    read_masks: Callable[[Mapping[str, FloatArray], bool], tuple[FloatArray, FloatArray]]
    """Turns the decoder's outputs into (P,M,h,w) logits and (P,M) predicted IoUs. Its arguments are the outputs by
    name, and ``multimask_output``: with it, M is ``candidates``, and 1 without."""
    masks_out_padding: bool = True
    """Whether every decoder of the family, including published ones, masks LABEL_NO_POINT out of its attention."""
    takes_mask: bool = True
    """Whether the decoder accepts the mask logits of an earlier prediction as a prompt."""
    candidates: int = 3
    """Number of masks that the decoder returns for each object with ``multimask_output``."""
    logit_limit: float | None = None
    """The official predictor clamps the low-resolution logits that it returns to [-limit, limit]. None: no clamping."""

    sizes: tuple[ModelSize, ...] = ()
    """The sizes of the model; the official sizes are in ascending order."""
    default_size: str = ""
    """The default size of a checkpoint to download."""
    random_size: str = ""
    """The default size of a model with random weights."""
    quick_size: str = ""
    """The size that is fastest to export and to serve, for tests and measurements."""
    built_in: str = ""
    """Name of the checkpoint whose export is part of this package, as version 1. Empty if the package has none."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """The official checkpoint files, in ascending order of size."""
    fine_tunes: tuple[Checkpoint, ...] = ()
    """Checkpoint files of the family's architecture: trained by others, or official ones of earlier versions."""
    checkpoint_takes_size: bool = True
    """Whether the caller may choose the size of a checkpoint. False if the checkpoint determines its size."""
    hub: HubFiles | None = None
    """The family's published ONNX models and gated checkpoint on the Hugging Face hub, if it has them."""

    options: tuple[Option, ...] = ()
    """Command-line options that only this family has."""
    exporter: str = ""
    """The family's triton_sam.export.exporter.Exporter, as "package.module:NAME"; it is imported lazily."""
    filled_exporter: str = "triton_sam.export.filled:FilledExporter"
    """The class that exports from a template, as "package.module:NAME"; it is imported lazily."""
    mask_generator: str = ""
    """Name of the family whose official mask generator this family uses; empty if it has none."""
    pred_iou_thresh: float = 0.8
    """Default of the official mask generator for the minimum predicted IoU of a mask, 0..1."""

    @functools.cached_property
    def encoder(self) -> ModelSpec:
        """The model that turns images into embeddings."""
        return self.models[ENCODER]

    @functools.cached_property
    def decoder(self) -> ModelSpec:
        """The model that turns embeddings and prompts into masks."""
        return self.models[DECODER]

    @property
    def hub_files(self) -> HubFiles:
        """The family's files on the Hugging Face hub; raises ConfigurationError if it has none."""
        if self.hub is None:
            raise ConfigurationError(f"{self.name} has no files on the Hugging Face hub")
        return self.hub

    @property
    def every_model(self) -> Mapping[str, ModelSpec]:
        """The models of images, those that follow objects through a video, and those of concepts, by role."""
        return self.models_for(video=True, concepts=True)

    def models_for(self, *, video: bool, concepts: bool) -> Mapping[str, ModelSpec]:
        """Return the models of images, by role, and on request those for videos and those for concepts."""
        tracking = self.tracking.models if video and self.tracking else {}
        return {**self.models, **tracking, **(self.concepts if concepts else {})}

    def model_name(self, role: str, variant: str | None = None) -> str:
        """Return the name of a model in Triton.

        Args:
            role: the model's role, for example "encoder".
            variant: for example "sam2.1_large", which gives "sam2.1_large_encoder"; None for the family's name.
        """
        return model_name(variant or self.name, role)

    def at(self, side: int) -> Family:
        """Return this family for images of another size, to which the maps of all its models are scaled.

        The returned family is not registered: get_family() returns the one with the official size.

        Args:
            side: height and width of the encoder's image in pixels.

        Raises:
            ConfigurationError: a map of a model would have a fractional number of rows.
        """
        return self if side == self.image_size else _at(self, side)

    def find_size(self, name: str | None = None) -> ModelSize:
        """Return the size that has a name or an alias; for None, the size that random weights have by default.

        Raises:
            ConfigurationError: the family has no such size.
        """
        wanted = name or self.random_size
        for size in self.sizes:
            if wanted in (size.name, *size.aliases):
                return size
        known = ", ".join(size.name for size in self.sizes)
        raise ConfigurationError(f"{self.name} has no size {wanted!r}: choose one of {known}")

    def model_of_config(self, config: str) -> str:
        """Return the exporter's name (ModelSize.model) of the configuration that an exported file was made from.

        Args:
            config: the file's metadata ``triton_sam.config``; it is returned unchanged if no size has it.
        """
        return next((size.model for size in self.sizes if size.config == config), config)

    def resized(self, size: Size) -> Size:
        """Return the size (width, height) of an image in the model's frame: the whole square, or part of it.

        Without ``keep_aspect``, an image fills the square. With it, the longest side has the length of the square, and
        the other side is rounded half up, as in
        segment_anything.utils.transforms.ResizeLongestSide.get_preprocess_shape. Unlike there, a side is at least 1:
        the official predictor fails for 0.
        """
        if not self.keep_aspect:
            return self.image_size, self.image_size
        factor = self.image_size / max(size)
        width, height = (max(1, int(side * factor + 0.5)) for side in size)
        return width, height

    def scale(self, size: Size) -> tuple[float, float]:
        """Return the factors (x, y) from pixels of the original image, which has this size, to the model's frame."""
        (width, height), (new_width, new_height) = size, self.resized(size)
        return new_width / width, new_height / height

    def embeddings(self, outputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return the encoder's outputs that the decoder takes, under the names of the decoder's inputs."""
        return {name: outputs[name] for name in self.encoder.output_names}


@functools.cache
def _at(family: Family, side: int) -> Family:
    def scaled(models: Mapping[str, ModelSpec]) -> Mapping[str, ModelSpec]:
        return MappingProxyType({role: _scaled_model(spec, side, family.image_size) for role, spec in models.items()})

    return replace(
        family,
        image_size=side,
        mask_size=_scaled(family.mask_size, side, family.image_size),
        models=scaled(family.models),
        tracking=family.tracking and replace(family.tracking, models=scaled(family.tracking.models)),
    )


def _scaled_model(spec: ModelSpec, side: int, official: int) -> ModelSpec:
    inputs = tuple(_scaled_tensor(tensor, side, official) for tensor in spec.inputs)
    outputs = tuple(_scaled_tensor(tensor, side, official) for tensor in spec.outputs)
    further = tuple(_scaled_tensor(tensor, side, official) for tensor in spec.further_outputs)
    return replace(spec, inputs=inputs, outputs=outputs, further_outputs=further)


def _scaled_tensor(tensor: Tensor, side: int, official: int) -> Tensor:
    """Scale the last two dimensions of a map: a tensor of at least four dimensions that ends in a fixed square."""
    height = tensor.shape[-1]
    if len(tensor.shape) < 4 or not isinstance(height, int) or tensor.shape[-2] != height:
        return tensor
    length = _scaled(height, side, official)
    return replace(tensor, shape=(*tensor.shape[:-2], length, length))


def _scaled(length: int, side: int, official: int) -> int:
    """Return the side of a map for images of another size.

    Raises:
        ConfigurationError: it is not a positive whole number.
    """
    quotient, rest = divmod(length * side, official)
    if rest or quotient < 1:
        step = next(size for size in range(1, official + 1) if length * size % official == 0)
        raise ConfigurationError(f"image size {side}: it must be a positive multiple of {step}")
    return quotient
