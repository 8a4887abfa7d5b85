"""The exporter of SAM2.1 and SAM2.0, with the model and the official predictors of the `sam2` package."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..._common.extras import missing
from ..._common.progress import quiet
from ..._common.text import first_line
from ...errors import ConfigurationError
from ...families import get_family
from ...families.sam2 import SAM2
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..reference import Answer, Frames, GenerateMasks, Prompt, VideoReference, official_records
from ..settings import Settings

try:
    import onnx
    import sam2
    import torch
    from hydra.errors import HydraException
    from hydra.utils import instantiate
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from .. import tracing
    from ..point_graphs import trace_decoder
    from . import graphs
    from .graphs import Sam2Decoder, Sam2Encoder
    from .video_graphs import check_video_model, trace_video
except ImportError as error:
    raise missing("exporting and verifying SAM2 needs", "export", error, "export,local") from error


class Sam2Reference:
    """Reference that runs sam2.sam2_image_predictor.SAM2ImagePredictor."""

    def __init__(self, model: Any) -> None:
        from sam2.sam2_image_predictor import SAM2ImagePredictor

        self.family = get_family("sam2")
        with quiet():
            self._predictor = SAM2ImagePredictor(model)
        _set_feature_sizes(self._predictor, model)

    def set_image(self, image: Image.Image) -> None:
        with quiet():
            self._predictor.set_image(image)

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        arrays = {name: np.asarray(value) for name, value in prompt.items()}
        masks, scores, logits = self._predictor.predict(**arrays, multimask_output=multimask)
        logits = logits.reshape(-1, *logits.shape[-2:])
        return Answer(logits, scores.reshape(-1), masks.reshape(-1, *masks.shape[-2:]).astype(bool))


def mask_generator(model: Any, **parameters: Any) -> Any:
    """Return a sam2.automatic_mask_generator.SAM2AutomaticMaskGenerator."""
    from sam2.automatic_mask_generator import SAM2AutomaticMaskGenerator

    generator = SAM2AutomaticMaskGenerator(model, **parameters)
    _set_feature_sizes(generator.predictor, model)
    return generator


def _set_feature_sizes(predictor: Any, model: Any) -> None:
    """Set the sizes of the feature maps; by default, they are those of an image size of 1024 pixels."""
    predictor._bb_feat_sizes = [(model.image_size // stride,) * 2 for stride in (4, 8, 16)]  # noqa: SLF001


OWN_CONFIGS = Path(__file__).parent / "configs"
"""The folder of this project's configurations, in addition to those of the `sam2` package."""

_LETTERS = {"tiny": "t", "small": "s", "base_plus": "b+", "large": "l"}
_FOLDERS = ("configs/sam2.1", "configs/sam2")

CONFIG_OF_SIZE = {size.name: size.model for size in SAM2.sizes}
"""The configuration file of each size of SAM2.1, relative to the `sam2` package or to OWN_CONFIGS."""

_CONFIG_OF_SAM20_SIZE = {size: f"configs/sam2/sam2_hiera_{letter}.yaml" for size, letter in _LETTERS.items()}

POSTPROCESSING = {
    "dynamic_multimask_via_stability": True,
    "dynamic_multimask_stability_delta": 0.05,
    "dynamic_multimask_stability_thresh": 0.98,
}
"""The default options of sam2.build_sam.build_sam2 (apply_postprocessing=True)."""


class Sam2Exporter(Exporter):
    """Exports SAM2.1 from a state dict.

    find_config() defines the names of the model's configurations. By default, the encoder uses ONNX Runtime's own
    attention operator, because it is faster. The option ``standard_operators`` replaces it with operators of the ONNX
    standard, for TensorRT and other runtimes.
    """

    name = "sam2"
    stride = 32  # of the coarsest feature map

    def choose(self, checkpoint: str | Path | None, model: str | None) -> str:
        if model is not None:
            return model
        if checkpoint is None:
            raise ConfigurationError("random weights need --size or --model-cfg")
        return guess_config(Path(checkpoint))

    def config(self, settings: Settings) -> str:
        return find_config(self.choose(settings.checkpoint, settings.model)).stem

    def build(self, model: str, image_size: int) -> torch.nn.Module:
        """Build a SAM2Base as `sam2.build_sam.build_sam2` does.

        It does not use Hydra's global state, so any file path works as a configuration.
        """
        path = find_config(model)
        try:
            config: Any = OmegaConf.load(path)
            OmegaConf.update(config, "model.sam_mask_decoder_extra_args", POSTPROCESSING, force_add=True)
            OmegaConf.update(config, "model.image_size", image_size, force_add=True)
            OmegaConf.resolve(config)
            built: torch.nn.Module = instantiate(config.model, _recursive_=True)
        except (OmegaConfBaseException, HydraException, OSError, ValueError, AttributeError, TypeError) as error:
            raise ConfigurationError(f"{path} is not a usable SAM2 model configuration: {first_line(error)}") from error
        except Exception as error:  # the errors of yaml and OmegaConf share no base class below Exception
            raise ConfigurationError(f"{path} is not a readable YAML file: {_place_of(error)}") from error
        if not getattr(built, "use_high_res_features_in_sam", False):
            raise ConfigurationError(
                f"{model} describes a SAM2 model without high-resolution features, which is not supported"
            )
        return built.eval()

    def randomise(self, model: Any, seed: int) -> None:
        """Randomise, but keep objects visible: random scores are around 0, and masks of absent objects are empty."""
        super().randomise(model, seed)
        head = getattr(model.sam_mask_decoder, "pred_obj_score_head", None)
        if head is not None:
            *_, last = (module for module in head.modules() if isinstance(module, torch.nn.Linear))
            with torch.no_grad():
                last.bias.add_(1)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:
        standard_operators = bool(options.get("standard_operators"))
        if spec.role not in SAM2.models:
            return trace_video(model, spec, standard_operators)
        return _trace_encoder(model, standard_operators) if spec.role == ENCODER else _trace_decoder(model)

    def check(self, model: Any, settings: Settings) -> None:
        if settings.video:
            check_video_model(model)

    def reference(self, model: Any) -> Sam2Reference:
        return Sam2Reference(model)

    def video_reference(self, model: Any, frames: Frames) -> VideoReference:
        from .video_reference import Sam2VideoReference

        return Sam2VideoReference(model, frames)

    def everything_reference(self, model: Any) -> GenerateMasks:
        return partial(official_records, mask_generator, model)


def guess_config(checkpoint: Path) -> str:
    """Return the configuration for the file name of a checkpoint.

    For example, sam2_hiera_tiny.pt is SAM2.0, and sam2.1_hiera_tiny.pt is SAM2.1.
    """
    match = re.search(r"(sam2_)?hiera_(tiny|small|base_plus|large|micro)", checkpoint.name)
    known = _CONFIG_OF_SAM20_SIZE if match and match[1] else CONFIG_OF_SIZE
    if match is None or match[2] not in known:
        raise ConfigurationError(
            f"the file name {checkpoint.name!r} does not contain a SAM2 size: give --size, or give --model-cfg with "
            f"a file path or one of {', '.join(CONFIG_OF_SIZE.values())}"
        )
    return known[match[2]]


def find_config(model_cfg: str | Path) -> Path:
    """Return the path of a configuration file.

    Args:
        model_cfg: path of a file, or the name of a configuration in the `sam2` package (with or without its folder) or
            in OWN_CONFIGS. The suffix .yaml is optional. A missing path into a clone of Meta's repository, for example
            sam2_repo/sam2/configs/sam2.1/sam2.1_hiera_b+.yaml, means the same file in the package.
    """
    package = Path(sam2.__path__[0])
    folders = (Path(), package, OWN_CONFIGS, *(package / folder for folder in _FOLDERS))
    candidates = [folder / model_cfg for folder in folders]
    before, clone, name = Path(model_cfg).as_posix().rpartition("/sam2/configs/")
    if clone and before:
        candidates.append(package / "configs" / name)
    for candidate in candidates:
        named = candidate if candidate.suffix == ".yaml" else candidate.with_name(candidate.name + ".yaml")
        if named.is_file():
            return named
    raise ConfigurationError(
        f"no model configuration {str(model_cfg)!r}: it is neither a file nor a name inside the sam2 package "
        f"(known: {', '.join(CONFIG_OF_SIZE.values())})"
    )


def _place_of(error: Exception) -> str:
    """Return the line and the problem from a yaml error."""
    mark = getattr(error, "problem_mark", None)
    return first_line(error) if mark is None else f"line {mark.line + 1}: {getattr(error, 'problem', None)}"


def _trace_encoder(model: Any, standard_operators: bool) -> onnx.ModelProto:
    images = torch.export.Dim("images", min=1)
    example = torch.rand(2, 3, model.image_size, model.image_size, device=model.device)
    with contextlib.nullcontext() if standard_operators else graphs.fused_attention(model):
        return tracing.trace(Sam2Encoder(model), SAM2.encoder, [example], {"image": {0: images}})


def _trace_decoder(model: Any) -> onnx.ModelProto:
    side = model.image_size
    embeddings = [
        torch.rand(1, tensor.shape[1], side // stride, side // stride, device=model.device)  # type: ignore[arg-type]
        for tensor, stride in zip(SAM2.encoder.outputs, (16, 4, 8), strict=True)
    ]
    return trace_decoder(Sam2Decoder(model), SAM2.decoder, embeddings, side)


EXPORTER = Sam2Exporter()
