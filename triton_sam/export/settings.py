"""The choices that an export leaves to its caller, whatever the family. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..families import Family
from ..repository.names import check_name

PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Settings:
    """The choices of an export.

    Args:
        output_dir: the model repository.
        checkpoint: file or folder with the weights; None for random ones.
        model: configuration of the official model as the family's exporter names it, see ModelSize.model; None: by the
            checkpoint's file name.
        name: variant; the models are `<name>_encoder`, `<name>_decoder` and so on. None: the family's name.
        image_size: side of the square that the encoder sees, pixels; None: the official one, which clients send.
        random_seed: seed of random weights in place of a checkpoint, for tests.
        device: torch device that traces the graphs.
        precision: "fp32"; "fp16": FP16 weights and arithmetic for GPUs, FP32 inputs and outputs; "int8": dynamic
            quantisation of the encoder's matrix products, for CPUs, the other models stay FP32.
        half_storage: weights rounded to FP16 in the file, arithmetic in FP32: half the size. Only with "fp32".
        version: version folder; None: 1, or 2 where version 1 is the built-in micro model and this is another one.
        progress: report each step on stderr.
        options: choices that the family alone has, by name, see Family.options.
    """

    output_dir: Path
    checkpoint: Path | None = None
    model: str | None = None
    name: str | None = None
    image_size: int | None = None
    random_seed: int | None = None
    device: str = "cpu"
    precision: str = "fp32"
    half_storage: bool = False
    version: int | None = None
    progress: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """``name`` of complete() settings."""
        return self.name or ""

    @property
    def side(self) -> int:
        """``image_size`` of complete() settings."""
        return self.image_size or 0

    def complete(self, family: Family) -> Settings:
        """Fill in what follows from the family."""
        name = family.name if self.name is None else self.name
        side = family.image_size if self.image_size is None else self.image_size
        return replace(self, name=name, image_size=side)


def check_settings(settings: Settings, stride: int, options: tuple[str, ...] = ()) -> None:
    """Refuse settings that cannot work, before anything is built.

    Args:
        settings: complete ones.
        stride: the image side must be a multiple of it.
        options: names of the family's own options.

    Raises:
        ConfigurationError: an option that cannot work.
    """
    check_name(settings.variant)
    if settings.side < stride or settings.side % stride:
        raise ConfigurationError(f"image size {settings.side}: it must be a positive multiple of {stride}")
    if settings.precision not in PRECISIONS:
        raise ConfigurationError(f"precision {settings.precision!r}: one of {', '.join(PRECISIONS)}")
    if settings.half_storage and settings.precision != "fp32":
        raise ConfigurationError("half storage is for precision fp32: the others store small weights anyway")
    if settings.version is not None and settings.version < 1:
        raise ConfigurationError(f"version {settings.version}: Triton counts versions from 1")
    if (settings.checkpoint is None) == (settings.random_seed is None):
        raise ConfigurationError("give a checkpoint, or ask for random weights")
    if unknown := settings.options.keys() - set(options):
        raise ConfigurationError(f"no such option of the export: {min(unknown)}")
