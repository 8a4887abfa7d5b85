"""A family is a table of itself: models, tensors, frames, sizes, checkpoints, options. Data and pure functions, no I/O.

The names and shapes here are the wire contract. The exporters, the model repository, the clients, the commands and the
tests all read them from here. The heavy half of a family, which needs torch, is named by a string: ``exporter``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError
from .names import model_name
from .tables import DECODER, ENCODER, Checkpoint, HubFiles, ModelSize, ModelSpec, Option, Tensor

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
"""Fills up prompts of different length in one batch; exported decoders mask it out of every attention."""


class _ModelOf:
    """Makes a model of a family's table an attribute of the family, of the class as well as of an instance."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __get__(self, family: Family | None, kind: type[Family]) -> ModelSpec:
        return kind.models[self._role]


class Family(ABC):
    """Everything that differs between families. One stateless instance a family, see triton_sam.families.register()."""

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """The family's name in tables for people, for example "SAM2.1"; empty: the label."""
    models: ClassVar[Mapping[str, ModelSpec]]
    """The family's models by role: "encoder" and "decoder", and further roles, which a family names as it likes."""
    encoder = _ModelOf(ENCODER)
    decoder = _ModelOf(DECODER)

    image_size: ClassVar[int]
    """Side of the square that the encoder sees, pixels."""
    mask_size: ClassVar[int]
    """Side of the low-resolution logits, pixels."""
    value_range: ClassVar[tuple[float, float]]
    """Values in the encoder's input that stand for black and white of an 8-bit image."""
    keep_aspect: ClassVar[bool]
    """True: the longest side is scaled and the rest padded. False: both sides are squashed to the square."""
    pad_color: ClassVar[tuple[float, float, float]] = (0.0, 0.0, 0.0)
    """RGB, in ``value_range``, of the room outside the image when ``keep_aspect`` leaves some."""
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "float"
    """Numbers in which the official predictor resizes, antialiased and bilinear: floating point; bytes as Pillow rounds
    them; bytes as torch rounds them."""
    masks_out_padding: ClassVar[bool] = True
    """Whether every decoder that is served for the family leaves LABEL_NO_POINT out of its attention."""
    takes_mask: ClassVar[bool] = True
    """Whether the decoder takes the logits of an earlier answer as a prompt."""
    logit_limit: ClassVar[float | None] = None
    """Bound of the low-resolution logits that the official predictor hands out."""

    sizes: ClassVar[tuple[ModelSize, ...]] = ()
    """Sizes of the model, smallest official one first."""
    default_size: ClassVar[str] = ""
    """Size of the official checkpoint that a download fetches when none is named."""
    random_size: ClassVar[str] = ""
    """Size of random weights when none is named."""
    quick_size: ClassVar[str] = ""
    """The size that is exported and served fastest, for tests and measurements."""
    built_in: ClassVar[str] = ""
    """Name of the checkpoint whose export this package brings along as version 1; empty: there is none."""
    checkpoints: ClassVar[tuple[Checkpoint, ...]] = ()
    """Official checkpoint files, smallest first."""
    checkpoint_takes_size: ClassVar[bool] = True
    """Whether the caller may name the size of a checkpoint. False: the checkpoint itself says it."""
    hub: ClassVar[HubFiles | None] = None
    """Published models and a gated checkpoint on the Hugging Face hub."""

    options: ClassVar[tuple[Option, ...]] = ()
    """Options of the command line that this family alone has."""
    exporter: ClassVar[str] = ""
    """The triton_sam.export.exporter.Exporter as "package.module:NAME", imported when it is asked for."""
    export_script: ClassVar[str] = ""
    """A script of this project that does the same as `triton-sam export`, for messages."""
    encode_speedup: ClassVar[float] = 1.7
    """How many times as fast as PyTorch a served encode must at least be on a processor."""

    @property
    def label(self) -> str:
        """The family's name in sentences for people, for example "SAM2"."""
        return self.name.upper()

    def model_name(self, role: str, variant: str | None = None) -> str:
        """Triton model name, for example ``sam2_encoder`` or, for a variant, ``sam2.1_large_encoder``."""
        return model_name(variant or self.name, role)

    def find_size(self, name: str | None = None) -> ModelSize:
        """Return a size by its name or an alias; None: the size of random weights.

        Raises:
            ConfigurationError: the family has no such size.
        """
        wanted = name or self.random_size
        for size in self.sizes:
            if wanted in (size.name, *size.aliases):
                return size
        known = ", ".join(size.name for size in self.sizes)
        raise ConfigurationError(f"{self.name} has no size {wanted!r}: one of {known}")

    def model_of_config(self, config: str) -> str:
        """Return the exporter's name of the model that files with this ``triton_sam.config`` were made from."""
        return next((size.model for size in self.sizes if size.config == config), config)

    def resized(self, size: Size) -> Size:
        """Size that an image has in the model's frame: the whole square, or, for ``keep_aspect``, a part of it.

        Sides are rounded half up, as segment_anything.utils.transforms.ResizeLongestSide.get_preprocess_shape does, but
        never to 0, where the official predictor fails.
        """
        if not self.keep_aspect:
            return self.image_size, self.image_size
        factor = self.image_size / max(size)
        width, height = (max(1, int(side * factor + 0.5)) for side in size)
        return width, height

    def scale(self, size: Size) -> tuple[float, float]:
        """Factors from pixels of the original image to the model's frame, for x and y."""
        (width, height), (new_width, new_height) = size, self.resized(size)
        return new_width / width, new_height / height

    def embeddings(self, outputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Pick from the encoder's outputs what the decoder takes, under the decoder's names."""
        return {name: outputs[name] for name in self.encoder.output_names}

    @abstractmethod
    def decoder_inputs(
        self,
        coords: FloatArray,
        labels: npt.NDArray[np.int64],
        boxes: FloatArray | None,
        mask: FloatArray | None,
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Turn checked prompts into the decoder's input tensors, embeddings aside.

        Args:
            coords: (P,N,2) points in the model's frame, N may be 0.
            labels: (P,N) label of each point.
            boxes: (P,4) boxes x1,y1,x2,y2 in the model's frame, or None.
            mask: (1 or P,1,mask_size,mask_size) logits of an earlier answer, or None.
        """

    @abstractmethod
    def requested_outputs(self, multimask_output: bool) -> Sequence[str]:
        """Decoder outputs that a prediction needs: (masks, scores) in this order."""

    def read_masks(self, outputs: Mapping[str, FloatArray], multimask_output: bool) -> tuple[FloatArray, FloatArray]:
        """Turn the decoder's answer into ((P,M,h,w) logits, (P,M) scores); M is 1, or 3 for multimask_output."""
        masks, scores = self.requested_outputs(multimask_output)
        return outputs[masks], outputs[scores]
