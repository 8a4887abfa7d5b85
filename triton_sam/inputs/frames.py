"""Turn video frames and mask prompts into tensors, as SAM2VideoPredictor does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..families.base import FloatArray


def frame_input(frame: Image.Image, side: int, value_range: tuple[float, float] = (0.0, 1.0)) -> FloatArray:
    """Turn a frame into the input of an encoder that squashes its images.

    Unlike single images, frames are resized with Pillow's default, a bicubic filter on bytes: see
    sam2.utils.misc._load_img_as_tensor.

    Returns:
        float32 (1,3,side,side) in the value range.
    """
    resized = frame.resize((side, side), Image.Resampling.BICUBIC)
    values = np.empty((1, 3, side, side), np.float32)
    # The predictor divides in float64, then rounds. For byte values, float32 gives the same result.
    for channel, plane in enumerate(resized.split()):
        np.divide(np.asarray(plane), np.float32(255), out=values[0, channel])
    low, high = value_range
    if (low, high) != (0, 1):
        values *= np.float32(high - low)
        values += np.float32(low)
    return values


def mask_prompt(mask: npt.NDArray[np.bool_], side: int) -> FloatArray:
    """Turn a mask prompt into the input of the mask_prompt model.

    The mask is resized bilinearly with antialiasing and thresholded at 0.5, as in SAM2VideoPredictor.add_new_mask.

    Returns:
        float32 (1,1,side,side): 1 inside the object, 0 outside.
    """
    if mask.shape == (side, side):
        return mask.astype(np.float32)[None, None]
    values = Image.fromarray(mask.astype(np.float32))
    resized = np.asarray(values.resize((side, side), Image.Resampling.BILINEAR))
    return (resized >= 0.5).astype(np.float32)[None, None]
