"""What every SAM family has to say about itself: tensors, shapes, frames. Data and pure functions, no I/O.

The names and shapes here are the wire contract. The exporters, the model repository, the clients and the tests all
read them from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Size = tuple[int, int]
"""Width and height in pixels, in Pillow's order."""

LABEL_BACKGROUND = 0
LABEL_FOREGROUND = 1
LABEL_BOX_TOP_LEFT = 2
LABEL_BOX_BOTTOM_RIGHT = 3
LABEL_NO_POINT = -2
"""Fills up prompts of different length in one batch; exported decoders mask it out of every attention."""


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
    """One half of an encoder/decoder pair."""

    role: Literal["encoder", "decoder"]
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


class Family(ABC):
    """Everything that differs between SAM1, SAM2 and SAM3. One stateless instance a family."""

    name: ClassVar[str]
    image_size: ClassVar[int]
    """Side of the square that the encoder sees, pixels."""
    mask_size: ClassVar[int]
    """Side of the low-resolution logits, pixels."""
    value_range: ClassVar[tuple[float, float]]
    """What black and white of an 8-bit picture become in the encoder's input."""
    keep_aspect: ClassVar[bool]
    """True: the longest side is scaled and the rest padded. False: both sides are squashed to the square."""
    pad_color: ClassVar[tuple[float, float, float]] = (0.0, 0.0, 0.0)
    """RGB, in ``value_range``, of what lies outside the picture when ``keep_aspect`` leaves room."""
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "float"
    """Numbers in which the official predictor resizes, antialiased and bilinear: floating point; bytes as Pillow rounds
    them; bytes as torch rounds them."""
    masks_out_padding: ClassVar[bool] = True
    """Whether every decoder that is served for the family leaves LABEL_NO_POINT out of its attention."""
    takes_mask: ClassVar[bool] = True
    """Whether the decoder takes the logits of an earlier answer as a prompt."""
    logit_limit: ClassVar[float | None] = None
    """Bound of the low-resolution logits that the official predictor hands out."""
    encoder: ClassVar[ModelSpec]
    decoder: ClassVar[ModelSpec]

    def model_name(self, role: Literal["encoder", "decoder"], variant: str | None = None) -> str:
        """Triton model name, for example ``sam2_encoder`` or, for a variant, ``sam2.1_large_encoder``."""
        return f"{variant or self.name}_{role}"

    def resized(self, size: Size) -> Size:
        """Size that a picture has in the model's frame: the whole square, or, for ``keep_aspect``, a part of it.

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
