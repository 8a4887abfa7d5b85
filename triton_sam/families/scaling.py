"""Tables of a family for images of another size: the same model, with larger or smaller maps."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ..errors import ConfigurationError
from .tables import ModelSpec, Tensor
from .tracking import Tracking


def scaled_model(spec: ModelSpec, side: int, official: int) -> ModelSpec:
    """Return a model for images of another size.

    Args:
        spec: the model for the official size.
        side: the other size of images: height and width in pixels.
        official: the official size.

    Raises:
        ConfigurationError: a map would have no whole number of rows.
    """
    inputs, outputs = (
        tuple(_scaled_tensor(tensor, side, official) for tensor in tensors) for tensors in (spec.inputs, spec.outputs)
    )
    return replace(spec, inputs=inputs, outputs=outputs)


def scaled_tracking(tracking: Tracking, side: int, official: int) -> Tracking:
    """Return the table of a tracker for images of another size; see scaled_model()."""
    models = {role: scaled_model(spec, side, official) for role, spec in tracking.models.items()}
    return replace(tracking, models=MappingProxyType(models))


def scaled(length: int, side: int, official: int) -> int:
    """Return the side of a map for images of another size.

    Raises:
        ConfigurationError: it is not a positive whole number.
    """
    quotient, rest = divmod(length * side, official)
    if rest or quotient < 1:
        raise ConfigurationError(f"image size {side}: it must be a positive multiple of {_step(length, official)}")
    return quotient


def _step(length: int, official: int) -> int:
    """Return the smallest image size for which a map with the official ``length`` has a whole number of rows."""
    return next(size for size in range(1, official + 1) if length * size % official == 0)


def _scaled_tensor(tensor: Tensor, side: int, official: int) -> Tensor:
    """Scale the last two dimensions of a map: a tensor of at least four dimensions that ends in a fixed square."""
    height = tensor.shape[-1]
    if len(tensor.shape) < 4 or not isinstance(height, int) or tensor.shape[-2] != height:
        return tensor
    length = scaled(height, side, official)
    return replace(tensor, shape=(*tensor.shape[:-2], length, length))
