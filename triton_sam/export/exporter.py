"""The heavy half of a family: builds the official model, traces its graphs, and answers as its reference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError
from ..families import Family, get_family
from ..families.tables import ModelSpec
from .settings import Settings, check_settings

if TYPE_CHECKING:
    import onnx
    import torch

    from .reference import Reference


class Exporter(ABC):
    """Exports one family. Stateless; the family's table names the one instance, see Family.exporter."""

    name: ClassVar[str]
    """The family's name."""
    stride: ClassVar[int] = 1
    """An image side must be a multiple of it."""
    counting_device: ClassVar[str] = "meta"
    """The torch device that build() runs on when only parameters are counted."""

    @property
    def family(self) -> Family:
        """The family's table."""
        return get_family(self.name)

    def prepare(self, settings: Settings) -> Settings:
        """Check complete settings before anything is built; return them, changed where the family has to.

        Raises:
            ConfigurationError: an option that cannot work.
            CheckpointError: there is no such checkpoint.
        """
        own = tuple(option.destination for option in self.family.options if not option.replaces_size)
        check_settings(settings, self.stride, own)
        return settings

    @abstractmethod
    def load(
        self, checkpoint: Path | None, model: str | None, *, image_size: int, random_seed: int | None
    ) -> torch.nn.Module:
        """Build the official model with a checkpoint or with seeded random weights, on the CPU, ready for inference.

        Raises:
            ConfigurationError: neither or both of checkpoint and random_seed, or no usable configuration.
            CheckpointError: a checkpoint that is missing, damaged or of another model.
        """

    @abstractmethod
    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:
        """Trace one model of the family; names of inputs and outputs are those of the spec.

        Args:
            model: from load().
            spec: the model of the family's table.
            options: Settings.options.

        Raises:
            ExportError: torch cannot export it.
        """

    def config(self, settings: Settings) -> str:
        """Return the name of the model's configuration, for the files' metadata.

        Raises:
            ConfigurationError: it cannot be told.
        """
        return settings.model or self.name

    def metadata(self, settings: Settings) -> Mapping[str, str]:  # noqa: ARG002
        """Return further `triton_sam.*` keys for the files' metadata."""
        return {}

    def build(self, model: str) -> torch.nn.Module:
        """Build the official model of a configuration with fresh weights, so that its parameters can be counted.

        Raises:
            ConfigurationError: the family has no official model, or no such configuration.
        """
        raise ConfigurationError(f"{self.name} has no official model to build {model!r} of")

    def reference(self, model: Any) -> Reference:  # noqa: ARG002
        """Return the official predictor around a model from load().

        Raises:
            ConfigurationError: the family has none.
        """
        raise ConfigurationError(f"{self.name} has no official predictor to compare with")
