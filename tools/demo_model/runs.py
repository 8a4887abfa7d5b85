"""A training run: timed stages, the learning rate, and averaged weights."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from triton_sam._common import strict_json
from triton_sam._common.files import atomic_path, atomic_write
from triton_sam.errors import ConfigurationError

CONFIG = "sam2.1_hiera_micro.yaml"
WEIGHTS = "sam2.1_hiera_micro.pt"

_EMBEDDINGS = re.compile(r"embed|_tokens?\.weight$")  # must not match the matrices of cross_attn_token_to_image
_MIN_MUON_SIDE = 32  # AdamW updates smaller matrices
_SLOW = 0.3  # learning rate of the slow parameters, relative to the others


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Args:
        steps: length in steps, or None.
        seconds: length in seconds spent in steps, or None. Either `steps` or `seconds` is given.
    """

    steps: int | None = None
    seconds: float | None = None
    frames: int = 1

    @classmethod
    def parse(cls, text: str, frames: int = 1) -> Stage:
        """Parse a length in minutes ("25m") or steps ("2000") as a stage."""
        found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)m", text)
        if found is None:
            raise ConfigurationError(f"cannot read the length {text!r}: write it like 5m or 600")
        return cls(steps=int(found[1]), frames=frames) if found[1] else cls(None, 60 * float(found[2]), frames)

    def share_done(self, steps: int, seconds: float) -> float:
        """Return the share of the stage, 0..1, that is done after a number of steps and seconds."""
        done = steps if self.steps is not None else seconds
        return min(1.0, done / max(self.length, 1e-9))

    @property
    def length(self) -> float:
        """Length in steps or seconds, whichever is given."""
        return float(self.steps if self.steps is not None else self.seconds or 0.0)


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Args:
        hold: share of the run, 0..1, after which the learning rate starts to fall.
    """

    stages: tuple[Stage, ...]
    rate: float
    warm_up: int = 60
    hold: float = 0.4
    weight_decay: float = 0.05
    ema: float = 0.998


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        step: number of steps done.
        stage: index of the current stage.
        stage_steps: number of steps done in this stage.
        stage_seconds: seconds spent in these steps.
        seconds: seconds spent in all steps.
    """

    step: int = 0
    stage: int = 0
    stage_steps: int = 0
    stage_seconds: float = 0.0
    seconds: float = 0.0

    def share_done(self, stages: tuple[Stage, ...]) -> float:
        """Return the share of the whole run that is done, 0..1."""
        total = sum(stage.length for stage in stages)
        done = sum(stage.length for stage in stages[: self.stage])
        if self.stage < len(stages):
            current = stages[self.stage]
            done += current.length * current.share_done(self.stage_steps, self.stage_seconds)
        return done / max(total, 1e-9)

    def rate(self, settings: Settings) -> float:
        """Return the learning rate: a linear rise, a constant peak, then half a cosine down to 2 % of the peak."""
        warm = min(1.0, (self.step + 1) / max(settings.warm_up, 1))
        fall = max(0.0, self.share_done(settings.stages) - settings.hold) / (1 - settings.hold)
        return settings.rate * warm * (0.02 + 0.98 * 0.5 * (1 + float(np.cos(np.pi * min(1.0, fall)))))

    def count_step(self, stage: Stage, seconds: float) -> None:
        """Add the duration of a step, and go to the next stage if this one is finished."""
        self.stage_steps += 1
        self.stage_seconds += seconds
        self.seconds += seconds
        if stage.share_done(self.stage_steps, self.stage_seconds) >= 1.0:
            self.stage, self.stage_steps, self.stage_seconds = self.stage + 1, 0, 0.0


class Run(ABC):
    """Trains some parameters of a model in place."""

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        trained: Iterable[tuple[str, nn.Parameter]],
        slow: Iterable[tuple[str, nn.Parameter]] = (),
    ) -> None:
        self.model, self.settings = model, settings
        self.progress = Progress()
        self.averaged = AveragedModel(model, multi_avg_fn=_mean(settings.ema))
        self.history: list[dict[str, float]] = []
        """Smoothed losses and IoUs every 20 steps, with the step and the seconds."""
        self._best: tuple[float, dict[str, Tensor]] | None = None
        trained, slow = list(trained), list(slow)
        self._parameters = [parameter for _, parameter in (*trained, *slow)]
        self._optimizers = _optimizers(trained, slow, settings)

    @abstractmethod
    def step(self) -> dict[str, float]:
        """Train on one batch, by learn(). Returns the loss and other values by name."""

    def random(self) -> np.random.Generator:
        """Return the random generator of this step, and seed torch's generator."""
        rng = np.random.default_rng([0, self.progress.step])
        torch.manual_seed(int(rng.integers(2**62)))
        return rng

    def learn(self, loss: Tensor) -> None:
        """Update the weights and their moving average.

        The gradient of the loss is added to the existing gradients. If it is not finite, the weights are unchanged.
        """
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.progress.rate(self.settings) * group["share"]
            if bool(torch.isfinite(norm)):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.averaged.update_parameters(self.model)

    def run(
        self,
        out: Path,
        measure: Callable[[nn.Module], float] | None = None,
        seconds: float = 45.0,
    ) -> None:
        """Run all stages, and write the weights and the curves to a folder.

        Args:
            measure: returns the quality of the averaged weights; the best ones are written. None: the last ones are.
            seconds: the time between two measurements.
        """
        last = time.monotonic()
        recent: dict[str, float] = {}
        while self.progress.stage < len(self.settings.stages):
            start, stage = time.monotonic(), self.settings.stages[self.progress.stage]
            for key, value in self.step().items():
                if value == value:  # a NaN means that no prompt of this kind points at an object
                    recent[key] = 0.97 * recent.get(key, value) + 0.03 * value
            self.progress.count_step(stage, time.monotonic() - start)
            if self.progress.step % 20 == 0:
                self._note({"seconds": self.progress.seconds, **recent})
            if time.monotonic() - last > seconds:
                self._measure(measure)
                last = time.monotonic()
        self._measure(measure)
        write({"model": half(self.weights())}, out / WEIGHTS)
        atomic_write(out / "curves.json", strict_json.dumps(self.history).encode())

    def _note(self, values: dict[str, float]) -> None:
        self.history.append({"step": self.progress.step, **values})
        print(" ".join(f"{key} {value:.4g}" for key, value in self.history[-1].items()), flush=True)

    def _measure(self, measure: Callable[[nn.Module], float] | None) -> None:
        """Measure the averaged weights, and keep them if they are the best so far."""
        if measure is None:
            return
        iou = measure(self.averaged.module)
        if self._best is None or iou >= self._best[0]:
            self._best = iou, {name: value.clone() for name, value in self.averaged.module.state_dict().items()}
        self._note({"held_out": iou, "best": self._best[0]})

    def weights(self) -> dict[str, Tensor]:
        """Return the averaged weights: the best on held-out examples, or the current ones without a measurement."""
        current: dict[str, Tensor] = self.averaged.module.state_dict()
        return current if self._best is None else self._best[1]


def _mean(ema: float) -> Callable[[Any, Any, Any], None]:
    @torch.no_grad()
    def update(averaged: Any, current: Any, steps: Any) -> None:
        decay = min(ema, (1 + int(steps)) / (10 + int(steps)))
        torch._foreach_lerp_(averaged, current, 1 - decay)

    return update


def _optimizers(
    trained: list[tuple[str, nn.Parameter]], slow: list[tuple[str, nn.Parameter]], settings: Settings
) -> list[torch.optim.Optimizer]:
    """Return Muon for weight matrices and AdamW for the other parameters.

    Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with the scale factor of
    Liu et al., "Muon is Scalable for LLM Training" (2025), section 2.2, which allows the learning rate of AdamW.
    """
    matrices = [item for item in trained if _is_matrix(*item)]
    others = [item for item in trained if not _is_matrix(*item)]
    groups = [*_groups(others, settings, 1.0), *_groups(slow, settings, _SLOW)]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.99), fused=True)]
    if matrices:
        muon: Any = torch.optim.Muon
        group = {"params": [parameter for _, parameter in matrices], "share": 1.0}
        decay, scale = settings.weight_decay, "match_rms_adamw"
        found.append(muon([group], lr=settings.rate, weight_decay=decay, adjust_lr_fn=scale))
    return found


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and min(parameter.shape) >= _MIN_MUON_SIDE and not _EMBEDDINGS.search(name)


def _groups(named: list[tuple[str, nn.Parameter]], settings: Settings, share: float) -> Iterator[dict[str, Any]]:
    """Yield groups of an optimizer. Vectors, embeddings and tokens get no weight decay."""
    for is_decayed in (True, False):
        chosen = [p for name, p in named if (p.ndim >= 2 and not _EMBEDDINGS.search(name)) == is_decayed]
        if chosen:
            yield {"params": chosen, "weight_decay": settings.weight_decay * is_decayed, "share": share}


def write(content: dict[str, Any], path: Path) -> None:
    """Write a torch file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # With a path, torch would store its name in the file.
    with atomic_path(path) as partial, partial.open("wb") as file:
        torch.save(content, file)


def half(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint in half precision, on the CPU."""
    return {n: (v.half() if v.is_floating_point() else v).cpu().contiguous() for n, v in state.items()}


def prepare_device(name: str) -> str:
    """Return the device of --device ("auto": the best one), and enable TF32 on GPUs."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    np.finfo(np.float64)  # now, because NumPy warns when it computes these limits without denormals
    torch.set_flush_denormal(True)  # sharp attention produces denormals, which are a hundred times slower
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"--device {name} cannot be used on this machine: {reason}") from error
    return name
