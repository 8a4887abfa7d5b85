"""The base class of all families.

A family describes itself as a table: its models, tensors, image frame, sizes, checkpoints and command-line options. It
holds data and pure functions, and does no I/O. The names and shapes here are the wire contract: the exporters, the
model repository, the clients, the commands and the tests all read them from here. The exporter of a family needs torch,
so the table only names it, in the string ``exporter``, and nothing imports it before it is used.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError
from .names import model_name
from .scaling import scaled, scaled_model, scaled_tracking
from .tables import DECODER, ENCODER, Checkpoint, HubFiles, ModelSize, ModelSpec, Option, Tensor
from .tracking import Tracking

__all__ = [
    "LABEL_BACKGROUND",
    "LABEL_BOX_BOTTOM_RIGHT",
    "LABEL_BOX_TOP_LEFT",
    "LABEL_FOREGROUND",
    "LABEL_NO_POINT",
    "Family",
    "FloatArray",
    "ModelSpec",
    "Size",
    "Tensor",
]

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


class _ModelAttribute:
    """Descriptor for the model that has a given role. It works on a family's class and on its instances."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __get__(self, family: Family | None, kind: type[Family]) -> ModelSpec:
        return kind.models[self._role]


class Family(ABC):
    """Everything that differs between families.

    Each family has one stateless instance, which triton_sam.families.register() adds to the table of families.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """The family's name in tables that people read, for example "SAM2.1". If it is empty, they show the label."""
    models: ClassVar[Mapping[str, ModelSpec]]
    """The family's models by role. "encoder" and "decoder" are required; a family names any further roles itself."""
    encoder = _ModelAttribute(ENCODER)
    decoder = _ModelAttribute(DECODER)

    tracking: ClassVar[Tracking | None] = None
    """The models that follow objects through a video; None if the family has none."""

    concepts: ClassVar[Mapping[str, ModelSpec]] = MappingProxyType({})
    """The models that find every instance of a concept, by role; empty if the family has none."""

    image_size: ClassVar[int]
    """Side of the square image that the encoder takes, in pixels."""
    mask_size: ClassVar[int]
    """Side of the low-resolution mask logits, in pixels."""
    value_range: ClassVar[tuple[float, float]]
    """The values (black, white) in the encoder's input that stand for 0 and 255 of an 8-bit image."""
    keep_aspect: ClassVar[bool]
    """How an image becomes square. True: its longest side is scaled to ``image_size``, and the rest is padded. False:
    width and height are both scaled to ``image_size``, which changes the aspect ratio."""
    pad_color: ClassVar[tuple[float, float, float]] = (0.0, 0.0, 0.0)
    """RGB colour of the padding that ``keep_aspect`` adds, in ``value_range``."""
    pixel_mean: ClassVar[tuple[float, float, float]] = (0.485, 0.456, 0.406)
    """Mean of RGB values in 0..1 by which the official predictor normalises an image. The default is ImageNet's."""
    pixel_std: ClassVar[tuple[float, float, float]] = (0.229, 0.224, 0.225)
    """Standard deviation of RGB values in 0..1 by which the official predictor divides. The default is ImageNet's."""
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "float"
    """Arithmetic of the official predictor's resize, which is bilinear with antialiasing. "float" uses floating point,
    "pillow" rounds to bytes as Pillow does, and "fixed_point" rounds to bytes as torch does."""
    masks_out_padding: ClassVar[bool] = True
    """Whether every decoder of the family, including published ones, masks LABEL_NO_POINT out of its attention."""
    takes_mask: ClassVar[bool] = True
    """Whether the decoder accepts the mask logits of an earlier prediction as a prompt."""
    candidates: ClassVar[int] = 3
    """Number of masks that the decoder returns for each object with ``multimask_output``."""
    logit_limit: ClassVar[float | None] = None
    """The official predictor clamps the low-resolution logits that it returns to [-limit, limit]. None: it does not."""

    sizes: ClassVar[tuple[ModelSize, ...]] = ()
    """The sizes of the model; the official ones come in ascending order."""
    default_size: ClassVar[str] = ""
    """The size of checkpoint to download when the caller names none."""
    random_size: ClassVar[str] = ""
    """The size to build with random weights when the caller names none."""
    quick_size: ClassVar[str] = ""
    """The size that is fastest to export and to serve, for tests and measurements."""
    built_in: ClassVar[str] = ""
    """Name of the checkpoint whose export is part of this package, as version 1. Empty if the package has none."""
    checkpoints: ClassVar[tuple[Checkpoint, ...]] = ()
    """The official checkpoint files, in ascending order of size."""
    checkpoint_takes_size: ClassVar[bool] = True
    """Whether the caller may name the size of a checkpoint. False if the checkpoint determines its size itself."""
    hub: ClassVar[HubFiles | None] = None
    """The family's published ONNX models and gated checkpoint on the Hugging Face hub, if it has them."""

    options: ClassVar[tuple[Option, ...]] = ()
    """Command-line options that only this family has."""
    exporter: ClassVar[str] = ""
    """Where the family's triton_sam.export.exporter.Exporter is, as "package.module:NAME"; it is imported lazily."""
    filled_exporter: ClassVar[str] = "triton_sam.export.filled:FilledExporter"
    """Where the class is that exports from a template, as "package.module:NAME"; it is imported lazily."""
    mask_generator: ClassVar[str] = ""
    """Name of the family that first had this family's official mask generator; empty if the family has none."""
    pred_iou_thresh: ClassVar[float] = 0.8
    """Default of the official mask generator for the lowest predicted IoU of a mask, 0..1."""
    encode_speedup: ClassVar[float] = 1.7
    """Lowest acceptable speed of a served encode on a CPU, as a multiple of PyTorch's speed."""

    @property
    def label(self) -> str:
        """The family's name in messages, for example "SAM2"."""
        return self.name.upper()

    @property
    def every_model(self) -> Mapping[str, ModelSpec]:
        """The models of images, those that follow objects through a video, and those of concepts, by role."""
        return self.models_for(video=True, concepts=True)

    def models_for(self, *, video: bool, concepts: bool) -> Mapping[str, ModelSpec]:
        """Return the models of images, by role, with those for videos and those for concepts if they are wanted."""
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

        The family that it returns is not registered: get_family() has the official size.

        Args:
            side: height and width of the encoder's image in pixels.

        Raises:
            ConfigurationError: a map of a model would have no whole number of rows.
        """
        return self if side == self.image_size else _family_at(type(self), side)

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
        segment_anything.utils.transforms.ResizeLongestSide.get_preprocess_shape. Unlike there, no side is rounded to
        0, for which the official predictor fails.
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

    @abstractmethod
    def decoder_inputs(
        self,
        coords: FloatArray,
        labels: npt.NDArray[np.int64],
        boxes: FloatArray | None,
        mask: FloatArray | None,
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Turn checked prompts into the decoder's input tensors, except the embeddings.

        Args:
            coords: (P,N,2) points x, y in the model's frame, in pixels; N may be 0.
            labels: (P,N) the label of each point: one of the LABEL_* constants.
            boxes: (P,4) boxes x1, y1, x2, y2 in the model's frame, in pixels, or None.
            mask: (1 or P,1,mask_size,mask_size) logits of an earlier prediction, or None.

        Returns:
            The tensors by name, with the dtypes and shapes of the family's table.
        """

    @abstractmethod
    def requested_outputs(self, multimask_output: bool) -> Sequence[str]:
        """Return the names of the decoder's outputs that a prediction needs, in the order (masks, scores)."""

    def read_masks(self, outputs: Mapping[str, FloatArray], multimask_output: bool) -> tuple[FloatArray, FloatArray]:
        """Turn the decoder's outputs into masks and scores.

        Returns:
            (P,M,h,w) logits and (P,M) predicted IoUs. M is ``candidates`` with ``multimask_output``, and 1 without.
        """
        masks, scores = self.requested_outputs(multimask_output)
        return outputs[masks], outputs[scores]


@functools.cache
def _family_at(kind: type[Family], side: int) -> Family:
    """Return an instance of a family whose tables are scaled; see Family.at()."""
    official = kind.image_size
    models = {role: scaled_model(spec, side, official) for role, spec in kind.models.items()}
    tables = {
        "image_size": side,
        "mask_size": scaled(kind.mask_size, side, official),
        "models": MappingProxyType(models),
        "tracking": kind.tracking and scaled_tracking(kind.tracking, side, official),
    }
    derived: type[Family] = type(f"{kind.__name__}At{side}", (kind,), tables)
    return derived()
