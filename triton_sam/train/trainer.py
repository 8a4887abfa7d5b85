"""The training loop: stages, steps with several rounds of prompts, averaged weights, and resuming.

A step depends only on the seed, its number and the available scenes. Therefore a resumed run equals an uninterrupted
one if the stages are counted in steps and the scene cache is complete. Stages in minutes depend on the machine's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..families.base import LABEL_NO_POINT
from . import network
from .dataset import Example
from .dense import Affinity
from .losses import offset_loss, prompt_loss
from .optimizer import Optimizer
from .prompts import CELL, ImagePrompts, correction_clicks, draw_prompts, shaken_box
from .schedule import Averages, Progress, cast, restoring, save
from .stages import Stage, View

EMA_DECAY = 0.998
"""Decay of the moving average of the weights, for each step."""
_LOGIT_LIMIT = 32.0  # SAM2ImagePredictor clamps the logits that it returns for use as a mask input
MASK_INPUT_SHARE = 0.7
"""Share of the later rounds that get the previous logits and not only clicks."""
_MIN_DENSE_WEIGHT = 0.2  # weight of the auxiliary task at the end of the run; it starts at 1
_ROUND_SHARES = np.array([0.6, 0.25, 0.15])  # shares of the steps with one, two and three rounds


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        stages: the stages of the run, in order.
        seed: seed of the initial weights, the prompts and the augmentation.
        optimizer: one of `OPTIMIZERS`.
        rate: peak learning rate.
        weight_decay: weight decay; each step multiplies it by the learning rate.
        warm_up: number of steps until the learning rate reaches its peak.
        hold: share of the run, 0..1, after which the learning rate starts to fall.
        clip: maximum norm of the gradient.
        device: torch device, for example "cpu" or "cuda:1".
        bf16: whether to compute in bfloat16.
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


DrawExample = Callable[[np.random.Generator, View], Example]
"""A function (source of randomness, view) that returns an augmented example of the view's size."""


@dataclass(frozen=True)
class Batch:
    """The input of a step.

    Attributes:
        window: the part of the frame that the images show.
        images: uint8 (B, S, S, 3), RGB.
        labels: uint8 (B, S/4, S/4), the number of the object at each cell, or 0 for the background.
        prompts: the prompts of each image.
    """

    window: network.Window
    images: Tensor
    labels: np.ndarray[Any, np.dtype[np.uint8]]
    prompts: list[ImagePrompts]


class Trainer:
    """Trains the image encoder and the mask decoder of a SAM2Base.

    Args:
        model: the SAM2Base, which is moved to the device and trained in place.
        settings: the settings of the run.
        draw: draws training examples.
    """

    def __init__(self, model: nn.Module, settings: Settings, draw: DrawExample) -> None:
        self.settings, self.draw = settings, draw
        self.model = model.to(settings.device).train()
        self.progress = Progress()
        self.affinity = Affinity().to(settings.device)
        named = list(network.trained_parameters(self.model))
        self._averages = Averages(named, EMA_DECAY)
        named += list(self.affinity.named_parameters())
        self._parameters = [parameter for _, parameter in named]
        self._optimizer = Optimizer(settings.optimizer, named, settings.rate, settings.weight_decay)

    # One step

    def _draw_batch(self, rng: np.random.Generator, view: View, absent_share: float) -> Batch:
        """Draw the images of a step and their prompts. Examples without a region that is large enough are skipped."""
        images: list[np.ndarray[Any, Any]] = []
        labels: list[np.ndarray[Any, Any]] = []
        prompts: list[ImagePrompts] = []
        while len(images) < view.images:
            example = self.draw(rng, view)
            share = absent_share if example.complete else 0.0
            drawn = draw_prompts(rng, example, view.prompts, share, boxes=view.prompts // 2)
            if drawn is not None:
                images.append(example.image)
                labels.append(example.labels[CELL // 2 :: CELL, CELL // 2 :: CELL])
                prompts.append(drawn)
        pixels = torch.from_numpy(np.stack(images)).to(self.settings.device)
        return Batch(view.window(rng), pixels, np.stack(labels), prompts)

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns "loss", "dense" (loss of the auxiliary task) and the IoUs, see _record_iou."""
        rng = np.random.default_rng([self.settings.seed, self.progress.step])
        batch = self._draw_batch(rng, self.draw_view(rng), 0.05)
        network.set_window(self.model, batch.window)
        with self.autocast():
            features = network.encode(self.model, network.normalise(batch.images), batch.window)
            loss, measured = self.run_rounds(rng, features, batch)
        dense = self.affinity.loss(features.float(), batch.labels, rng)
        loss = loss + max(_MIN_DENSE_WEIGHT, 1 - self.progress.share_done(self.settings.stages)) * dense
        self.learn(loss)
        return {"loss": float(loss.detach()), "dense": float(dense.detach()), **measured}

    def autocast(self) -> torch.autocast:
        """Return a context that computes in bfloat16 if the settings say so."""
        return torch.autocast(self.settings.device.split(":")[0], torch.bfloat16, enabled=self.settings.bf16)

    def draw_view(self, rng: np.random.Generator) -> View:
        """Draw one of the views of the current stage."""
        views = self.settings.stages[self.progress.stage].views
        return views[int(rng.integers(len(views)))]

    def learn(self, loss: Tensor) -> None:
        """Update the weights and their moving average.

        The gradient of the loss is added to that which the weights have. If it is not finite, the weights stay.
        """
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip)
        if bool(torch.isfinite(norm)):
            self._optimizer.step(self.progress.rate(self.settings))
        self._optimizer.zero_grad()
        self.progress.step += 1
        self._averages.update(self.progress.step)

    def run_rounds(
        self, rng: np.random.Generator, features: network.Features, batch: Batch
    ) -> tuple[Tensor, dict[str, float]]:
        """Prompt half of the regions by click and half by box, then correct the masks by clicks in further rounds.

        Returns the loss, a scalar, and the mean IoU of each kind of prompt.
        """
        count, boxes = len(batch.prompts[0].regions), len(batch.prompts[0].regions) // 2
        boxed = np.tile(np.arange(count) >= count - boxes, len(batch.prompts))
        targets = np.concatenate([item.targets for item in batch.prompts])
        points, labels = _first_prompts(rng, batch, boxed)
        repeated = features.repeat(count)
        device = repeated.embedding.device
        target = torch.from_numpy(targets).to(device)
        present = (target.flatten(1).amax(1) > 0).float()
        mask: Tensor | None = None
        losses: list[Tensor] = []
        measured: dict[str, float] = {}
        rounds = 1 + int(rng.choice(len(_ROUND_SHARES), p=_ROUND_SHARES))
        for number in range(rounds):
            point_tensor, label_tensor = (torch.from_numpy(a).to(device) for a in (points, labels))
            answer = network.decode(self.model, repeated, point_tensor, label_tensor, mask, batch.window)
            ambiguous = (label_tensor != LABEL_NO_POINT).sum(1) == 1
            loss, iou = prompt_loss(answer.float(), target, present, ambiguous)
            losses.append(loss)
            _record_iou(measured, number, iou.cpu().numpy(), boxed, present.cpu().numpy() > 0)
            if number + 1 == rounds:
                break
            logits = self.logits_to_correct(rng, answer, ambiguous)
            point, label = correction_clicks(rng, (logits > 0).cpu().numpy(), targets)
            points = np.concatenate([points, point[:, None]], 1)
            labels = np.concatenate([labels, label[:, None]], 1)
            mask = logits[:, None] if rng.random() < MASK_INPUT_SHARE else None
        return torch.stack(losses).mean() + offset_loss(features.embedding), measured

    def logits_to_correct(self, rng: np.random.Generator, answer: network.Prediction, ambiguous: Tensor) -> Tensor:
        """Return the logits (P, h, w) that the simulated user corrects."""
        with torch.no_grad():
            logits = answer.logits.detach().float()
            best = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            if rng.random() < 0.5:  # of a multimask prediction, a user corrects the mask with the highest score
                best = torch.where(ambiguous, 1 + answer.iou[:, 1:].argmax(1), best)
            return logits[torch.arange(len(logits), device=logits.device), best].clamp(-_LOGIT_LIMIT, _LOGIT_LIMIT)

    # The run

    def run(
        self,
        save: Callable[[Trainer], None] | None = None,
        save_seconds: float = 120.0,
        quiet: bool = False,
        before_step: Callable[[], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the remaining stages.

        Args:
            save: saves the run; it is called between steps and at the end.
            save_seconds: seconds between two calls of `save`.
            quiet: whether to hide the progress bar.
            before_step: called before each step.
            should_stop: asked before each step; True ends the run early.
        """
        last_save = time.monotonic()
        bar = tqdm(
            total=100.0, unit="%", mininterval=20, disable=quiet, bar_format="{l_bar}{bar:20}| {elapsed} {postfix}"
        )
        recent: dict[str, float] = {}
        while self.progress.stage < len(self.settings.stages) and not should_stop():
            if before_step is not None:
                before_step()
            start, stage = time.monotonic(), self.settings.stages[self.progress.stage]
            measured = self.step()
            for key, value in measured.items():
                if value == value:  # a NaN means that no prompt of this kind points at an object
                    recent[key] = 0.98 * recent.get(key, value) + 0.02 * value
            self.progress.count_step(stage, time.monotonic() - start)
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
            bar.update(100 * self.progress.share_done(self.settings.stages) - bar.n)
            if save is not None and time.monotonic() - last_save > save_seconds:
                save(self)
                last_save = time.monotonic()
        bar.close()
        if save is not None:
            save(self)

    # Checkpoints

    def averaged_state(self, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
        """Return the model's state dict with averaged weights, on the CPU; floating-point tensors have type `dtype`."""
        return cast({**self.model.state_dict(), **self._averages.state()}, dtype)

    def export(self, path: Path) -> None:
        """Write the averaged weights as FP16, in the layout of the official checkpoints.

        Raises:
            OSError: the file cannot be written.
        """
        save({"model": self.averaged_state()}, path)

    def save(self, path: Path) -> None:
        """Write the state that a resumed run needs.

        Raises:
            OSError: the file cannot be written.
        """
        content = {
            "model": self.model.state_dict(),
            "affinity": self.affinity.state_dict(),
            "average": self._averages.state(),
            "optimizer": self._optimizer.state(),
            "progress": self.progress.to_json(),
        }
        save(content, path)

    def load(self, path: Path) -> None:
        """Restore the state that `save` wrote. The settings may have changed, but the current stage keeps its index.

        Raises:
            CheckpointError: the file is damaged, or it belongs to another model or optimizer.
        """
        with restoring(path, "this model and optimizer"):
            content = torch.load(path, map_location=self.settings.device, weights_only=True)
            self.model.load_state_dict(content["model"])
            self.affinity.load_state_dict(content["affinity"])
            self._averages.load(content["average"])
            self._optimizer.load(content["optimizer"])
            self.progress = Progress.from_json(content["progress"])


def _first_prompts(
    rng: np.random.Generator, batch: Batch, boxed: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the points (P, 2, 2) and labels (P, 2) of the first round: a box if `boxed`, else a click and padding."""
    regions = [region for item in batch.prompts for region in item.regions]
    points = np.repeat(np.concatenate([item.clicks for item in batch.prompts])[:, None], 2, axis=1)
    labels = np.tile(np.array([1, LABEL_NO_POINT], np.float32), (len(regions), 1))
    for index in np.flatnonzero(boxed):
        points[index], labels[index] = shaken_box(rng, regions[index], batch.window.frame), (2, 3)
    return points, labels


def _record_iou(
    measured: dict[str, float],
    round_number: int,
    iou: np.ndarray[Any, np.dtype[np.float32]],
    boxed: np.ndarray[Any, np.dtype[np.bool_]],
    present: np.ndarray[Any, np.dtype[np.bool_]],
) -> None:
    """Add the mean IoU of a round to `measured`, separately for clicks and boxes, over the prompts with an object.

    The keys are "click" and "box" for the single mask of the first round, "click_best" and "box_best" for the best of
    its multimasks, and "click2", "box2", ... for the single mask of the later rounds.
    """
    for name, chosen in (("click", ~boxed & present), ("box", boxed & present)):
        if chosen.any():
            measured[f"{name}{round_number + 1}" if round_number else name] = float(iou[chosen, 0].mean())
            if round_number == 0:
                measured[f"{name}_best"] = float(iou[chosen, 1:].max(1).mean())


__all__ = ["Batch", "DrawExample", "Progress", "Settings", "Trainer"]
