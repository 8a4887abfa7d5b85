"""The settings of an export, common to all families. This module does not need torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._common.text import valid_utf8
from ..errors import ConfigurationError
from ..everything.parameters import check_thresholds
from ..families import Family
from ..repository.config import check_name

PRECISIONS = ("fp32", "fp16", "int8")
CHECKPOINT_HASH = "triton_sam.checkpoint_sha256"
"""The metadata key of exported files with the SHA-256 of their checkpoint."""


@dataclass(frozen=True)
class Settings:
    """The settings of an export.

    Args:
        checkpoint: file or folder with the weights; None for random weights.
        model: the family exporter's name of the official model's configuration (see ModelSize.model). None: chosen by
            the file name of the checkpoint.
        name: name of the variant; the models are `<name>_encoder`, `<name>_decoder` and so on. None: the family's name.
        image_size: side of the encoder's square image in pixels. None: the official size, which clients send.
        random_seed: seed of random weights, which replace a checkpoint in tests; None with a checkpoint.
        trace: trace the official model with torch even if there is a template for it, see templates.py.
        precision: "fp32"; "fp16" for GPUs: weights and arithmetic are FP16, inputs and outputs FP32; or "int8" for
            CPUs: the encoder's matrix products are quantised dynamically, and the other models stay FP32.
        half_storage: store the weights as FP16, which halves the files, and compute in FP32. Only with "fp32".
        video: also export the models that track objects through a video, and write the video model, `<name>_video`.
        concepts: also export the models that find every instance of a concept, from words or example boxes.
        required_inputs: give optional inputs no defaults, so that every request must have them. For programs that run
            the files directly: ONNX Runtime in browsers and graph optimisers remove inputs with defaults. Clients of
            this project omit these inputs, so no session model is written.
        thresholds: thresholds for automatic masks with these weights (see triton_sam.everything.parameters); empty for
            the official ones.
        version: number of the version folder. None: 1, or 2 if version 1 is the demo model and this export has other
            weights.
    """

    output_dir: Path
    checkpoint: Path | None = None
    model: str | None = None
    name: str | None = None
    image_size: int | None = None
    random_seed: int | None = None
    trace: bool = False
    device: str = "cpu"
    precision: str = "fp32"
    half_storage: bool = False
    video: bool = False
    concepts: bool = False
    required_inputs: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)
    version: int | None = None
    progress: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The name of the variant; empty before complete()."""
        return self.name or ""

    @property
    def side(self) -> int:
        """The image size in pixels; 0 before complete()."""
        return self.image_size or 0

    def complete(self, family: Family) -> Settings:
        """Return the settings with the family's defaults filled in."""
        name = family.name if self.name is None else self.name
        side = family.image_size if self.image_size is None else self.image_size
        return replace(self, name=name, image_size=side)


def check_settings(settings: Settings, stride: int, options: tuple[str, ...] = ()) -> None:
    """Check settings before anything is built.

    Args:
        stride: the image size must be a multiple of this number of pixels.
    """
    check_name(settings.variant)
    if (shown := valid_utf8(str(settings.output_dir))) != str(settings.output_dir):
        raise ConfigurationError(
            f"ONNX cannot write to {shown}, whose name is not UTF-8 or not allowed in this locale: "
            "choose another folder, or set LC_ALL=C.UTF-8"
        )
    check_thresholds(settings.thresholds)
    if settings.side < stride or settings.side % stride:
        raise ConfigurationError(f"image size {settings.side}: it must be a positive multiple of {stride}")
    if settings.precision not in PRECISIONS:
        raise ConfigurationError(f"unknown precision {settings.precision!r}: choose one of {', '.join(PRECISIONS)}")
    if settings.half_storage and settings.precision != "fp32":
        raise ConfigurationError(
            "half storage works with precision fp32 only: the files of the other precisions are small already"
        )
    if settings.version is not None and settings.version < 1:
        raise ConfigurationError(f"version {settings.version}: Triton numbers versions from 1")
    if (settings.checkpoint is None) == (settings.random_seed is None):
        raise ConfigurationError("give either a checkpoint or the seed of random weights")
    if unknown := settings.options.keys() - set(options):
        raise ConfigurationError(f"the export has no option {min(unknown)!r}")
