"""The base class of all exporters.

An exporter is the part of a family that needs torch: it builds the official model, traces its graphs, and provides the
official predictor as a reference.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError
from ..families import Family, get_family
from ..families.tables import ModelSpec
from .settings import Settings, check_settings

if TYPE_CHECKING:
    import onnx
    import torch

    from .onnx_tools import Later
    from .reference import ConceptReference, Frames, GenerateMasks, Reference, VideoReference, VideoWordsReference


class Exporter(ABC):
    """Exports one family. Each exporter has one stateless instance, see Family.exporter."""

    name: ClassVar[str]
    stride: ClassVar[int] = 1
    """Settings.image_size must be a multiple of this number of pixels."""
    is_proved: ClassVar[bool] = False
    """Whether the graphs come from tested templates, so that FP32 files need no test run."""

    @property
    def family(self) -> Family:
        return get_family(self.name)

    def prepare(self, settings: Settings) -> Settings:
        """Check the settings before anything is built.

        Returns:
            The settings with the family's changes.
        """
        if settings.video and self.family.tracking is None:
            raise ConfigurationError(f"{self.name} has no models for videos: leave --video out")
        if settings.concepts and not self.family.concepts:
            raise ConfigurationError(f"{self.name} has no models for concepts: leave --concepts out")
        own = tuple(option.destination for option in self.family.options if not option.replaces_size)
        check_settings(settings, self.stride, own)
        return settings

    def load(
        self,
        checkpoint: str | Path | None,
        model: str | None = None,
        *,
        image_size: int | None = None,
        random_seed: int | None = None,
    ) -> torch.nn.Module:
        """Build the official model with a checkpoint or seeded random weights, on the CPU, ready for inference."""
        from .weights import seeded

        if (checkpoint is None) == (random_seed is None):
            raise ConfigurationError("give either a checkpoint or the seed of random weights")
        chosen = self.choose(checkpoint, model)
        built = seeded(lambda: self.build(chosen, image_size or self.family.image_size), random_seed)
        if checkpoint is not None:
            self.restore(built, checkpoint, chosen)
        else:
            self.randomise(built, random_seed or 0)
        # TinyViT copies its attention biases when it enters eval mode, and uses the copy.
        return built.eval().requires_grad_(False)

    def choose(self, checkpoint: str | Path | None, model: str | None) -> str:
        """Return the exporter's name of the configuration: the given one, the only official one, or a file's.

        The name of an official file contains the size, for example vit_b in sam_vit_b_01ec64.pth.
        """
        official = {size.name: size.model for size in self.family.sizes if size.official}
        if model is not None or len(official) == 1:
            return model or next(iter(official.values()))
        *names, last = official
        question = f"--size {', '.join(names)} or {last}"
        if checkpoint is None:
            raise ConfigurationError(f"random weights need {question}")
        name = Path(checkpoint).name
        match = re.search("|".join(official), name)
        if match is None:
            raise ConfigurationError(
                f"the file name {name!r} does not contain a {self.family.label} size: give {question}"
            )
        return official[match[0]]

    def build(self, model: str, image_size: int) -> torch.nn.Module:  # noqa: ARG002
        """Build the official model of a configuration with initial weights, in eval mode."""
        raise ConfigurationError(f"{self.name} has no official model: {model!r} cannot be built")

    def restore(self, model: Any, checkpoint: str | Path, chosen: str) -> None:
        """Load the weights of a checkpoint strictly, in place."""
        from .weights import load_strictly, read_state_dict

        sizes = self.family.sizes
        size = next((size.name for size in sizes if size.official and size.model == chosen), self.family.default_size)
        state = dict(read_state_dict(Path(checkpoint), f"triton-sam download {self.name} {size}".rstrip()))
        self.adapt(state, model)
        own = [each.flag for each in self.family.options if each.names_model and "export" in each.commands]
        question = f"is {chosen} its size? Otherwise give another {' or '.join(['--size', *own])}"
        load_strictly(model, state, Path(checkpoint), question)

    def adapt(self, state: dict[str, Any], model: Any) -> None:  # noqa: B027 - most checkpoints fit
        """Change a checkpoint's weights in place to fit a model from build()."""

    def randomise(self, model: Any, seed: int) -> None:
        """Give a model from build() random weights with which a comparison detects omissions in a graph, in place."""
        from .weights import randomise

        randomise(model, seed)

    @abstractmethod
    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:
        """Trace one model of the family. The graph's inputs and outputs have the names of the spec."""

    def later(self, model: Any, spec: ModelSpec) -> Later:  # noqa: ARG002
        """Return the weights that trace() left without content, which are computed while a file is written."""
        return {}

    def add_video(self, model: Any, settings: Settings) -> None:  # noqa: B027 - most official models have it
        """Load the official model for videos and attach it to a model from load(), before its graphs are traced."""

    def state(self, model: Any) -> Mapping[str, Any]:
        """Return the tensors of a model from load() and add_video() by their official names."""
        found: Mapping[str, Any] = model.state_dict()
        return found

    def add_concepts(self, model: Any, settings: Settings) -> None:  # noqa: B027 - most families have none
        """Load the official detector of concepts and attach it to a model from load(), before its graphs are traced."""

    def concept_reference(self, model: Any, settings: Settings) -> ConceptReference:  # noqa: ARG002
        """Return the official detector of concepts."""
        raise ConfigurationError(f"{self.name} has no official detector of concepts to compare with")

    def companions(self, role: str, settings: Settings) -> Mapping[str, str]:  # noqa: ARG002 - most models have none
        """Return the texts of additional files beside a model, by file name."""
        return {}

    def check(self, model: Any, settings: Settings) -> None:  # noqa: B027 - most families have nothing to check
        """Check that all requested models can be traced, before tracing the first one."""

    def config(self, settings: Settings) -> str:
        """Return the name of the model's configuration, for the metadata of the exported files."""
        return f"{self.name}_{self.choose(settings.checkpoint, settings.model)}"

    def metadata(self, settings: Settings) -> Mapping[str, str]:  # noqa: ARG002
        """Return additional `triton_sam.*` keys for the metadata of the exported files."""
        return {}

    def reference(self, model: Any) -> Reference:  # noqa: ARG002
        """Return the official predictor around a model from load()."""
        raise ConfigurationError(f"{self.name} has no official predictor to compare with")

    def video_reference(self, model: Any, frames: Sequence[npt.NDArray[np.uint8]]) -> VideoReference:  # noqa: ARG002
        """Return the official video predictor around a model from load(), with a video."""
        raise ConfigurationError(f"{self.name} has no official video predictor to compare with")

    def video_words_reference(self, model: Any, frames: Frames, settings: Settings) -> VideoWordsReference:  # noqa: ARG002
        """Return the official model of words in videos around a model from load(), with a video.

        It needs the parts from add_video() and add_concepts().
        """
        raise ConfigurationError(f"{self.name} has no official model of words in videos to compare with")

    def everything_reference(self, model: Any) -> GenerateMasks:  # noqa: ARG002
        """Return the official mask generator around a model from load()."""
        raise ConfigurationError(f"{self.name} has no official mask generator to compare with")
