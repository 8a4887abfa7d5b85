"""Build the official model of the `sam2` package, SAM2.1 or SAM2.0, and load its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ..._common.text import first_line
from ...errors import ConfigurationError
from ...families.sam2 import SAM2

try:
    import sam2
    import torch
    from hydra.errors import HydraException
    from hydra.utils import instantiate
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
except ImportError as error:
    raise missing("exporting and verifying SAM2 needs", "export", error) from error

from .. import weights
from ..weights import load_strictly, read_state_dict

__all__ = ["CONFIG_OF_SIZE", "build_model", "find_config", "guess_config", "load_checkpoint", "randomise"]

OWN_CONFIGS = Path(__file__).parent / "configs"
"""The folder of configurations that this project adds to those of the `sam2` package."""

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
"""The options that sam2.build_sam.build_sam2 sets by default (apply_postprocessing=True)."""


def guess_config(checkpoint: Path) -> str:
    """Return the configuration that belongs to the file name of a checkpoint.

    A name such as sam2_hiera_tiny.pt stands for SAM2.0, and one such as sam2.1_hiera_tiny.pt for SAM2.1.

    Raises:
        ConfigurationError: the name follows no known pattern.
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
            in OWN_CONFIGS. The suffix .yaml is optional. A path into a clone of Meta's repository that does not exist,
            such as sam2_repo/sam2/configs/sam2.1/sam2.1_hiera_b+.yaml, stands for the same file in the package.

    Raises:
        ConfigurationError: there is no such file.
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


def build_model(model_cfg: str | Path, image_size: int = 1024) -> torch.nn.Module:
    """Build a SAM2Base as `sam2.build_sam.build_sam2` does, with fresh weights, in eval mode on the CPU.

    This does not use Hydra's global state, so that any file path works as a configuration.

    Raises:
        ConfigurationError: the file is missing or does not describe a SAM2 model.
    """
    path = find_config(model_cfg)
    try:
        config: Any = OmegaConf.load(path)
        OmegaConf.update(config, "model.sam_mask_decoder_extra_args", POSTPROCESSING, force_add=True)
        OmegaConf.update(config, "model.image_size", image_size, force_add=True)
        OmegaConf.resolve(config)
        model: torch.nn.Module = instantiate(config.model, _recursive_=True)
    except (OmegaConfBaseException, HydraException, OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{path} is not a usable SAM2 model configuration: {first_line(error)}") from error
    except Exception as error:  # the errors of yaml and OmegaConf share no base class below Exception
        raise ConfigurationError(f"{path} is not a readable YAML file: {_place_of(error)}") from error
    return model.eval()


def _place_of(error: Exception) -> str:
    """Return the line and the fault that an error of yaml names."""
    mark = getattr(error, "problem_mark", None)
    return first_line(error) if mark is None else f"line {mark.line + 1}: {getattr(error, 'problem', None)}"


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Replace all parameters in place by random numbers with a seed; see weights.randomise().

    Objects are visible: random object scores lie around 0, and a mask that the model takes for absent has no pixel to
    compare.
    """
    weights.randomise(model, seed)
    head = getattr(model.sam_mask_decoder, "pred_obj_score_head", None)
    if head is not None:
        *_, last = (module for module in head.modules() if isinstance(module, torch.nn.Linear))
        with torch.no_grad():
            last.bias.add_(1)


def load_checkpoint(model: torch.nn.Module, checkpoint: str | Path) -> None:
    """Load a SAM2.1 or SAM2.0 state dict strictly, in place; see read_state_dict() and load_strictly().

    Raises:
        CheckpointError: the file is missing, damaged, or belongs to another configuration.
    """
    path = Path(checkpoint)
    state = read_state_dict(path, "triton-sam download sam2 base_plus")
    load_strictly(model, state, path, "do --size or --model-cfg belong to this checkpoint?")
