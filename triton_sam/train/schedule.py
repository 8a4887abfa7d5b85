"""The parts that all training runs share: timed stages, the learning rate, averaged weights, and saved states."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .._common import strict_json
from .._common.files import atomic_path
from ..errors import CheckpointError, ConfigurationError


@dataclass(frozen=True, kw_only=True)
class TimedStage:
    """A part of a run.

    Args:
        steps: length in steps, or None.
        seconds: length in seconds spent in steps, or None. Either `steps` or `seconds` is given.
    """

    steps: int | None = None
    seconds: float | None = None

    def share_done(self, steps: int, seconds: float) -> float:
        """Return the share of the stage, 0..1, that is done after a number of steps and seconds."""
        if self.steps is not None:
            return min(1.0, steps / max(self.steps, 1))
        return min(1.0, seconds / max(self.seconds or 0.0, 1e-9))

    @property
    def length(self) -> float:
        """Length in steps or seconds, whichever is given."""
        return float(self.steps if self.steps is not None else self.seconds or 0.0)


AnyStage = TypeVar("AnyStage", bound=TimedStage)


def parse_length(text: str) -> dict[str, Any] | None:
    """Return the length of a stage, "25m" or "2000", as arguments of TimedStage; None if the text has another form."""
    found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)m", text)
    if found is None:
        return None
    return {"steps": int(found[1])} if found[1] else {"seconds": 60 * float(found[2])}


def alike(stages: Iterable[AnyStage]) -> tuple[AnyStage, ...]:
    """Return the stages.

    Raises:
        ConfigurationError: some have their length in steps, others in minutes.
    """
    checked = tuple(stages)
    if len({stage.steps is None for stage in checked}) > 1:
        raise ConfigurationError("give every stage in minutes or every stage in steps")
    return checked


class Rates(Protocol):
    """The settings of a run that its learning rate depends on."""

    @property
    def stages(self) -> Sequence[TimedStage]:
        """The stages of the run, in order."""

    @property
    def rate(self) -> float:
        """Peak learning rate."""

    @property
    def warm_up(self) -> int:
        """Number of steps until the learning rate reaches its peak."""

    @property
    def hold(self) -> float:
        """Share of the run, 0..1, after which the learning rate starts to fall."""


@dataclass
class Progress:
    """The progress of a run, which is saved and restored.

    Attributes:
        step: number of steps done.
        stage: index of the current stage.
        stage_steps: number of steps done in this stage.
        stage_seconds: seconds spent in these steps.
        seconds: seconds spent in all steps.
        history: smoothed losses and IoUs every 20 steps, with the step and the seconds.
    """

    step: int = 0
    stage: int = 0
    stage_steps: int = 0
    stage_seconds: float = 0.0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def share_done(self, stages: Sequence[TimedStage]) -> float:
        """Return the share of the whole run that is done, 0..1."""
        total = sum(stage.length for stage in stages)
        done = sum(stage.length for stage in stages[: self.stage])
        if self.stage < len(stages):
            current = stages[self.stage]
            done += current.length * current.share_done(self.stage_steps, self.stage_seconds)
        return done / max(total, 1e-9)

    def rate(self, settings: Rates) -> float:
        """Return the learning rate: a linear rise, a constant peak, then half a cosine down to 2 % of the peak."""
        warm = min(1.0, (self.step + 1) / max(settings.warm_up, 1))
        fall = max(0.0, self.share_done(settings.stages) - settings.hold) / (1 - settings.hold)
        return settings.rate * warm * (0.02 + 0.98 * 0.5 * (1 + float(np.cos(np.pi * min(1.0, fall)))))

    def count_step(self, stage: TimedStage, seconds: float) -> None:
        """Count the duration of a step, and go to the next stage if this one is finished."""
        self.stage_steps += 1
        self.stage_seconds += seconds
        self.seconds += seconds
        if stage.share_done(self.stage_steps, self.stage_seconds) >= 1.0:
            self.stage, self.stage_steps, self.stage_seconds = self.stage + 1, 0, 0.0

    def to_json(self) -> str:
        """Return the progress as text, for a saved state."""
        return strict_json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Return the progress of a saved state."""
        return cls(**json.loads(text))


class Averages:
    """The moving average of some weights, which a run exports.

    Args:
        named: names and parameters.
        decay: decay of the average for each step; it is smaller in the first steps.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        self._names, self._parameters = map(list, zip(*named, strict=True))
        self._decay = decay
        self.restart()

    def restart(self) -> None:
        """Begin with the weights as they are now."""
        self._means = [parameter.detach().clone() for parameter in self._parameters]

    def update(self, step: int) -> None:
        """Take in the weights after a number of steps."""
        decay = min(self._decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self._means, [parameter.data for parameter in self._parameters], 1 - decay)

    def state(self) -> dict[str, Tensor]:
        """Return the averaged weights by name."""
        return dict(zip(self._names, self._means, strict=True))

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what state() returned."""
        self._means = [state[name].clone() for name in self._names]


def save(content: dict[str, Any], path: Path) -> None:
    """Write a file of torch, completely or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(path) as partial,
        partial.open("wb") as file,
    ):  # given a path, torch would store its name in the file
        torch.save(content, file)


def cast(state: dict[str, Tensor], dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, on the CPU; floating-point tensors have type `dtype`."""
    return {n: (v.to(dtype) if v.is_floating_point() else v).cpu().contiguous() for n, v in state.items()}


@contextlib.contextmanager
def restoring(path: Path, kind: str) -> Iterator[None]:
    """Report the errors of reading a saved state.

    Args:
        path: the file.
        kind: the kind of state that it should be.

    Raises:
        CheckpointError: the file is damaged, or it belongs to another model.
    """
    try:
        yield
    except (
        pickle.UnpicklingError, EOFError, OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError,
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{path} is damaged, or not a training state of {kind}: remove it to start a new run"
        ) from error
