"""The weights of an official model: loaded strictly from a checkpoint, or random from a seed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .._common.extras import missing
from .._common.text import first_line
from ..errors import CheckpointError

try:
    import torch
except ImportError as error:
    raise missing("exporting needs", "export", error) from error

from .checkpoint import OldFormatError, checkpoint_errors, open_checkpoint, state_dict
from .templates import misfit

Weights = Mapping[str, Any]
Built = TypeVar("Built")


def seeded(build: Callable[[], Built], seed: int | None) -> Built:
    """Build a model whose initial weights depend only on a seed; None counts as 0.

    Layers draw their initial weights from torch's global generator, whose state is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        return build()


def read_state_dict(path: Path, download_hint: str) -> Weights:
    """Read a state dict in one of the layouts of open_checkpoint(), or in PyTorch's format before 1.6.

    No code in the file is executed.
    """
    try:
        with open_checkpoint(path, download_hint) as tensors:
            return {name: torch.from_numpy(np.array(stored.read())) for name, stored in tensors.items()}
    except OldFormatError:
        with checkpoint_errors(path, download_hint):
            return state_dict(_load(path), path, torch.Tensor)


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch's unpickler raises any error for missing or wrong bytes
        is_wrapped = isinstance(error, pickle.UnpicklingError)  # with advice on how to execute the code in the file
        raise ValueError(first_line((is_wrapped and error.__context__) or error)) from error


def load_strictly(model: torch.nn.Module, state: Weights, path: Path, question: str) -> None:
    """Load weights that have exactly the model's names and shapes. FP16 weights are converted to FP32."""
    layout = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    absent, surplus, others = misfit(layout, state)
    if absent + surplus + others:
        raise CheckpointError(
            f"{path} does not fit the model: {len(absent)} tensors missing, {len(surplus)} too many, "
            f"{len(others)} with another shape (for example {(absent + surplus + others)[0]}); {question}"
        )
    model.load_state_dict(dict(state))


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Replace all parameters of a new model with random numbers from a seed, in place.

    Position embeddings, biases and layer scales of a new model are constant. With constants, a comparison would not
    detect that a graph omits them. All other parameters are also drawn again, so that only the seed determines the
    weights.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and parameter.std() > 0:
                parameter.copy_(noise * parameter.std())
            else:
                parameter.add_(noise * 0.02)
