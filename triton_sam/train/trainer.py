"""The training loop: stages of growing resolution, several rounds of prompts a step, averaged weights, safe resume.

A step is determined by the seed, its number and the scenes at hand. With stages counted in steps and a complete scene
cache, a resumed run therefore equals an uninterrupted one; stages counted in minutes depend on the machine.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from .._common.files import atomic_path
from ..errors import CheckpointError
from ..families.base import LABEL_NO_POINT
from . import network
from .dataset import Example
from .dense import Affinity
from .losses import offset_loss, prompt_loss
from .optimizer import Optimizer
from .prompts import CELL, Asked, ask, box_around, correct
from .stages import Stage, View

EMA_DECAY = 0.998
_LOGIT_LIMIT = 32.0  # SAM2ImagePredictor clamps the logits that it hands back as a mask input
_MASK_INPUT_SHARE = 0.7  # later rounds that get the previous logits; the others get the clicks alone
_MIN_DENSE_WEIGHT = 0.2  # of the helper task at the end; 1 at the start
_ROUNDS = np.array([0.6, 0.25, 0.15])  # share of steps with one, two and three rounds


@dataclass(frozen=True)
class Settings:
    """What a run is made of.

    Attributes:
        stages: what it goes through.
        seed: of weights, prompts and augmentation.
        optimizer: one of `OPTIMIZERS`.
        rate: peak learning rate.
        weight_decay: times the rate a step.
        warm_up: steps until the rate is at its peak.
        hold: share of the run after which the rate falls.
        clip: largest norm of the gradient.
        device: of torch.
        bf16: compute in bfloat16.
    """

    stages: tuple[Stage, ...]
    seed: int = 0
    optimizer: str = "adamw"
    rate: float = 7e-4
    weight_decay: float = 0.05
    warm_up: int = 200
    hold: float = 0.35
    clip: float = 1.0
    device: str = "cpu"
    bf16: bool = False


@dataclass
class Progress:
    """Where a run stands, and its curves."""

    step: int = 0
    stage: int = 0
    stage_steps: int = 0
    stage_seconds: float = 0.0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


DrawExample = Callable[[np.random.Generator, View], Example]
"""(source of randomness, view) -> an augmented example of the view's size."""


@dataclass(frozen=True)
class _Batch:
    """What a step looks at: uint8 images (B, S, S, 3), labels (B, S/4, S/4), and the regions asked for in each."""

    window: network.Window
    images: Tensor
    labels: np.ndarray[Any, np.dtype[np.uint8]]
    asked: list[Asked]


class Trainer:
    """Trains the image path of a SAM2Base."""

    def __init__(self, model: nn.Module, settings: Settings, draw: DrawExample) -> None:
        self.settings, self.draw = settings, draw
        self.model = model.to(settings.device).train()
        self.progress = Progress()
        self.affinity = Affinity().to(settings.device)
        named = list(network.trained_parameters(self.model))
        self._names = [name for name, _ in named]
        self._averaged = [parameter for _, parameter in named]
        named += list(self.affinity.named_parameters())
        self._parameters = [parameter for _, parameter in named]
        self._optimizer = Optimizer(settings.optimizer, named, settings.rate, settings.weight_decay)
        self._average = [parameter.detach().clone() for parameter in self._averaged]

    # The schedule

    def _share_done(self) -> float:
        """Share of the whole run that is behind, 0..1."""
        stages, now = self.settings.stages, self.progress
        total = sum(stage.length for stage in stages)
        behind = sum(stage.length for stage in stages[: now.stage])
        if now.stage < len(stages):
            current = stages[now.stage]
            behind += current.length * current.done(now.stage_steps, now.stage_seconds)
        return behind / max(total, 1e-9)

    def _rate(self) -> float:
        """Warm up, hold, then fall by half a cosine to 2 % of the peak."""
        warm = min(1.0, (self.progress.step + 1) / max(self.settings.warm_up, 1))
        fall = max(0.0, self._share_done() - self.settings.hold) / (1 - self.settings.hold)
        return self.settings.rate * warm * (0.02 + 0.98 * 0.5 * (1 + float(np.cos(np.pi * min(1.0, fall)))))

    # One step

    def _load(self, rng: np.random.Generator, view: View, absent: float) -> _Batch:
        """Draw the images of a step and what is asked for in each."""
        images: list[np.ndarray[Any, Any]] = []
        labels: list[np.ndarray[Any, Any]] = []
        asked: list[Asked] = []
        while len(images) < view.images:
            example = self.draw(rng, view)
            regions = ask(rng, example, view.prompts, absent, boxes=view.prompts // 2)
            if regions is not None:
                images.append(example.image)
                labels.append(example.labels[CELL // 2 :: CELL, CELL // 2 :: CELL])
                asked.append(regions)
        pixels = torch.from_numpy(np.stack(images)).to(self.settings.device)
        return _Batch(view.window(rng), pixels, np.stack(labels), asked)

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns the losses and the mean IoU of each kind of prompt."""
        rng = np.random.default_rng([self.settings.seed, self.progress.step])
        views = self.settings.stages[self.progress.stage].views
        batch = self._load(rng, views[int(rng.integers(len(views)))], 0.05)
        network.place(self.model, batch.window)
        kind = torch.bfloat16 if self.settings.bf16 else torch.float32
        with torch.autocast(self.settings.device.split(":")[0], kind, enabled=self.settings.bf16):
            features = network.encode(self.model, network.normalise(batch.images), batch.window)
            loss, measured = self._rounds(rng, features, batch)
        dense = self.affinity.loss(features.float(), batch.labels, rng)
        loss = loss + max(_MIN_DENSE_WEIGHT, 1 - self._share_done()) * dense
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        return {"loss": float(loss.detach()), "dense": float(dense.detach()), **measured}

    def _update(self) -> None:
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip)
        if bool(torch.isfinite(norm)):
            self._optimizer.step(self._rate())
        self.progress.step += 1
        decay = min(EMA_DECAY, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            torch._foreach_lerp_(self._average, [p.data for p in self._averaged], 1 - decay)

    def _rounds(
        self, rng: np.random.Generator, features: network.Features, batch: _Batch
    ) -> tuple[Tensor, dict[str, float]]:
        """Ask by click for some of the regions and by box for the others, then correct the answers."""
        count, boxes = len(batch.asked[0].regions), len(batch.asked[0].regions) // 2
        boxed = np.tile(np.arange(count) >= count - boxes, len(batch.asked))
        targets = np.concatenate([item.targets for item in batch.asked])
        points, labels = _first_prompts(rng, batch, boxed)
        own = features.repeat(count)
        device = own.embedding.device
        target = torch.from_numpy(targets).to(device)
        present = (target.flatten(1).amax(1) > 0).float()
        mask: Tensor | None = None
        losses: list[Tensor] = []
        measured: dict[str, float] = {}
        rounds = 1 + int(rng.choice(len(_ROUNDS), p=_ROUNDS))
        for number in range(rounds):
            where, kinds = (torch.from_numpy(a).to(device) for a in (points, labels))
            answer = network.decode(self.model, own, where, kinds, mask, batch.window)
            ambiguous = (kinds != LABEL_NO_POINT).sum(1) == 1
            loss, iou = prompt_loss(
                replace(answer, logits=answer.logits.float(), iou=answer.iou.float(), present=answer.present.float()),
                target, present, ambiguous,
            )  # fmt: skip
            losses.append(loss)
            _measure(measured, number, iou.cpu().numpy(), boxed, present.cpu().numpy() > 0)
            if number + 1 == rounds:
                break
            shown = self._shown(rng, answer, ambiguous)
            point, label = correct(rng, (shown > 0).cpu().numpy(), targets)
            points = np.concatenate([points, point[:, None]], 1)
            labels = np.concatenate([labels, label[:, None]], 1)
            mask = shown[:, None] if rng.random() < _MASK_INPUT_SHARE else None
        return torch.stack(losses).mean() + offset_loss(features.embedding), measured

    def _shown(self, rng: np.random.Generator, answer: network.Prediction, ambiguous: Tensor) -> Tensor:
        """Return the logits (P, h, w) that the user corrects: of the best-scored multimask or of the single mask."""
        with torch.no_grad():
            logits = answer.logits.detach().float()
            best = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            if rng.random() < 0.5:
                best = torch.where(ambiguous, 1 + answer.iou[:, 1:].argmax(1), best)
            return logits[torch.arange(len(logits), device=logits.device), best].clamp(-_LOGIT_LIMIT, _LOGIT_LIMIT)

    # The run

    def run(
        self,
        save: Callable[[Trainer], None] | None = None,
        every: float = 120.0,
        quiet: bool = False,
        before: Callable[[], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go through the stages that are left.

        Args:
            save: called every so many seconds, between steps, and at the end.
            every: these seconds.
            quiet: no progress bar.
            before: called before each step.
            stopped: asked between steps whether to end early.
        """
        saved = time.monotonic()
        bar = tqdm(
            total=100.0, unit="%", mininterval=20, disable=quiet, bar_format="{l_bar}{bar:20}| {elapsed} {postfix}"
        )
        recent: dict[str, float] = {}
        while self.progress.stage < len(self.settings.stages) and not stopped():
            if before is not None:
                before()
            start, stage = time.monotonic(), self.settings.stages[self.progress.stage]
            measured = self.step()
            for key, value in measured.items():
                if value == value:  # a NaN: no prompt of that kind with an object
                    recent[key] = 0.98 * recent.get(key, value) + 0.02 * value
            self._advance(stage, time.monotonic() - start)
            if self.progress.step % 20 == 0:
                self.progress.history.append(
                    {
                        "step": self.progress.step,
                        "size": stage.views[0].size,
                        "seconds": self.progress.seconds,
                        **recent,
                    }
                )
            text = " ".join(f"{key} {value:.3f}" for key, value in sorted(recent.items()))
            bar.set_postfix_str(f"stage {self.progress.stage + 1}, step {self.progress.step}: {text}", refresh=False)
            bar.update(100 * self._share_done() - bar.n)
            if save is not None and time.monotonic() - saved > every:
                save(self)
                saved = time.monotonic()
        bar.close()
        if save is not None:
            save(self)

    def _advance(self, stage: Stage, seconds: float) -> None:
        """Count a step that took so long, and move on to the next stage when this one is over."""
        now = self.progress
        now.stage_steps += 1
        now.stage_seconds += seconds
        now.seconds += seconds
        if stage.done(now.stage_steps, now.stage_seconds) >= 1.0:
            now.stage, now.stage_steps, now.stage_seconds = now.stage + 1, 0, 0.0

    # Checkpoints

    def averaged_state(self, kind: torch.dtype = torch.float16) -> dict[str, Tensor]:
        """Return the model's state dict with averaged weights, on the CPU, floating tensors as `kind`."""
        state = {name: value.detach() for name, value in self.model.state_dict().items()}
        state.update(zip(self._names, self._average, strict=True))
        return {n: (v.to(kind) if v.is_floating_point() else v).cpu().contiguous() for n, v in state.items()}

    def export(self, path: Path) -> None:
        """Write the averaged weights as FP16, in the layout of the official checkpoints."""
        _save({"model": self.averaged_state()}, path)

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs."""
        content = {
            "model": self.model.state_dict(),
            "affinity": self.affinity.state_dict(),
            "average": dict(zip(self._names, self._average, strict=True)),
            "optimizer": self._optimizer.state(),
            "progress": json.dumps(asdict(self.progress)),
        }
        _save(content, path)

    def load(self, path: Path) -> None:
        """Continue from a file of `save`. The stages may have changed since; their number and order tell the place.

        Raises:
            CheckpointError: the file is damaged, or of another model or optimizer.
        """
        try:
            content = torch.load(path, map_location=self.settings.device, weights_only=True)
            self.model.load_state_dict(content["model"])
            self.affinity.load_state_dict(content["affinity"])
            self._average = [content["average"][name].clone() for name in self._names]
            self._optimizer.load(content["optimizer"])
            self.progress = Progress(**json.loads(content["progress"]))
        except (
            pickle.UnpicklingError, EOFError, OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError,
        ) as error:  # fmt: skip
            raise CheckpointError(
                f"{path} is not a training state of this model and optimizer: {type(error).__name__}"
            ) from error


def _first_prompts(
    rng: np.random.Generator, batch: _Batch, boxed: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]]]:
    """Return points (P, 2, 2) and labels (P, 2): a box where `boxed`, otherwise a click and no second point."""
    regions = [region for item in batch.asked for region in item.regions]
    points = np.repeat(np.concatenate([item.clicks for item in batch.asked])[:, None], 2, axis=1)
    labels = np.tile(np.array([1, LABEL_NO_POINT], np.float32), (len(regions), 1))
    for index in np.flatnonzero(boxed):
        points[index], labels[index] = box_around(rng, regions[index], batch.window.frame), (2, 3)
    return points, labels


def _measure(
    measured: dict[str, float],
    number: int,
    iou: np.ndarray[Any, np.dtype[np.float32]],
    boxed: np.ndarray[Any, np.dtype[np.bool_]],
    there: np.ndarray[Any, np.dtype[np.bool_]],
) -> None:
    """Note the mean IoU of clicks and boxes of a round, (P, 4), over the prompts with an object."""
    for name, chosen in (("click", ~boxed & there), ("box", boxed & there)):
        if chosen.any():
            measured[f"{name}{number + 1}" if number else name] = float(iou[chosen, 0].mean())
            if number == 0:
                measured[f"{name}_best"] = float(iou[chosen, 1:].max(1).mean())


def _save(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial, partial.open("wb") as file:  # given a path, torch would write its name too
        torch.save(content, file)


__all__ = ["Progress", "Settings", "Trainer"]
