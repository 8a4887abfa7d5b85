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

from ..errors import CheckpointError, ConfigurationError
from . import network
from .dataset import Example
from .losses import mask_iou, offset_loss, prompt_loss
from .prompts import Asked, ask, box_around, correct

EMA_DECAY = 0.995
_LOGIT_LIMIT = 32.0  # SAM2ImagePredictor clamps the logits that it hands back as a mask input
_MASK_INPUT_SHARE = 0.6  # later rounds that get the previous logits; the others get the clicks alone
_ROUNDS = np.array([0.7, 0.2, 0.1])  # share of steps with one, two and three rounds


@dataclass(frozen=True)
class Stage:
    """A stretch of training at one resolution, as long as `steps` or `seconds` (of wall time spent in steps)."""

    size: int
    steps: int | None = None
    seconds: float | None = None
    images: int = 4
    prompts: int = 8

    def done(self, steps: int, seconds: float) -> float:
        """Return the share of the stage that is behind, 0..1."""
        if self.steps is not None:
            return min(1.0, steps / max(self.steps, 1))
        return min(1.0, seconds / max(self.seconds or 0.0, 1e-9))

    @property
    def length(self) -> float:
        """Steps or seconds: what the share of a stage in the schedule is computed from."""
        return float(self.steps if self.steps is not None else self.seconds or 0.0)


_IMAGES_AND_PROMPTS = ((128, 6, 8), (256, 4, 6), (512, 2, 8), (1 << 30, 1, 8))


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Read "128:25m,256:30m" or "128:2000,256:1000": side in pixels, then minutes or steps (all of one kind).

    Raises:
        ConfigurationError: anything else.
    """
    stages = []
    for item in text.split(","):
        try:
            side, amount = item.strip().split(":")
            size, minutes = int(side), amount.endswith("m")
            length = float(amount[:-1]) * 60 if minutes else int(amount)
        except ValueError as error:
            raise ConfigurationError(f"cannot read the stage {item!r}: write 256:30m or 256:2000") from error
        images, prompts = next((i, p) for most, i, p in _IMAGES_AND_PROMPTS if size <= most)
        steps, seconds = (None, float(length)) if minutes else (int(length), None)
        stages.append(Stage(size, steps, seconds, images, prompts))
    if len({stage.steps is None for stage in stages}) > 1:
        raise ConfigurationError("give every stage in minutes or every stage in steps")
    return tuple(stages)


@dataclass(frozen=True)
class Settings:
    """What a run is made of. `rate` is the peak learning rate."""

    stages: tuple[Stage, ...]
    seed: int = 0
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


DrawExample = Callable[[np.random.Generator, int], Example]
"""(source of randomness, side) -> an augmented example of that side."""


class Trainer:
    """Trains the image path of a SAM2Base."""

    def __init__(self, model: nn.Module, settings: Settings, draw: DrawExample) -> None:
        self.settings, self.draw = settings, draw
        self.model = model.to(settings.device).train()
        self.progress = Progress()
        named = list(network.trained_parameters(self.model))
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        decayed = [p for n, p in named if p.ndim >= 2 and "embed" not in n and "token" not in n]
        kept = {id(p) for p in decayed}
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": [p for p in self._parameters if id(p) not in kept], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.99), fused=True)
        self._average = [parameter.detach().clone() for parameter in self._parameters]

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

    def _load(self, rng: np.random.Generator, stage: Stage, count: int, absent: float) -> tuple[Tensor, list[Asked]]:
        """Draw the images of a step and what is asked for in each: `count` regions."""
        images: list[np.ndarray[Any, Any]] = []
        asked: list[Asked] = []
        while len(images) < stage.images:
            example = self.draw(rng, stage.size)
            regions = ask(rng, example, count, absent)
            if regions is not None:
                images.append(example.image)
                asked.append(regions)
        return torch.from_numpy(np.stack(images)).to(self.settings.device), asked

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns the loss and the mean IoU of each kind of prompt."""
        stage = self.settings.stages[self.progress.stage]
        rng = np.random.default_rng([self.settings.seed, self.progress.step])
        network.set_resolution(self.model, stage.size)
        images, asked = self._load(rng, stage, stage.prompts, 0.05)
        kind = torch.bfloat16 if self.settings.bf16 else torch.float32
        with torch.autocast(self.settings.device.split(":")[0], kind, enabled=self.settings.bf16):
            features = network.encode(self.model, network.normalise(images))
            loss, measured = self._rounds(rng, features, asked)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        return {"loss": float(loss.detach()), **measured}

    def _update(self) -> None:
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        if bool(torch.isfinite(norm)):
            self._optimizer.step()
        self.progress.step += 1
        decay = min(EMA_DECAY, (1 + self.progress.step) / (10 + self.progress.step))
        with torch.no_grad():
            torch._foreach_lerp_(self._average, [p.data for p in self._parameters], 1 - decay)

    def _rounds(
        self, rng: np.random.Generator, features: network.Features, asked: list[Asked]
    ) -> tuple[Tensor, dict[str, float]]:
        """Ask by click for one half of the prompts and by box for the other, then correct the answers."""
        owner = np.repeat(np.arange(len(asked)), [len(item.regions) for item in asked])
        regions = np.concatenate([item.regions for item in asked])
        targets = np.concatenate([item.targets for item in asked])
        clicks = np.concatenate([item.clicks for item in asked])
        boxed = (rng.random(len(owner)) < 0.5) & regions.any((1, 2))
        boxed[0] = False
        rounds = 1 + int(rng.choice(len(_ROUNDS), p=_ROUNDS))
        losses: list[Tensor] = []
        measured: dict[str, float] = {}
        for name, chosen in (("click", np.flatnonzero(~boxed)), ("box", np.flatnonzero(boxed))):
            if len(chosen) == 0:
                continue
            if name == "click":
                points, labels = clicks[chosen, None], np.ones((len(chosen), 1), np.float32)
            else:
                points = np.stack([box_around(rng, regions[i]) for i in chosen])
                labels = np.tile(np.array([2, 3], np.float32), (len(chosen), 1))
            own = features.of(torch.from_numpy(owner[chosen]).to(features.embedding.device))
            loss, ious = self._converse(rng, own, targets[chosen], points, labels, rounds)
            losses.append(loss * len(chosen) / len(owner))
            measured.update({f"{name}{i + 1}" if i else name: iou for i, iou in enumerate(ious["single"])})
            measured[f"{name}_best"] = ious["best"][0]
        return torch.stack(losses).sum() + offset_loss(features.embedding), measured

    def _converse(
        self,
        rng: np.random.Generator,
        features: network.Features,
        targets: np.ndarray[Any, np.dtype[np.float32]],
        points: np.ndarray[Any, Any],
        labels: np.ndarray[Any, Any],
        rounds: int,
    ) -> tuple[Tensor, dict[str, list[float]]]:
        """Prompt, look at the answer, click where it is wrong, and prompt again. Returns the mean loss and IoUs."""
        device = features.embedding.device
        target = torch.from_numpy(targets).to(device)
        present = (target.flatten(1).amax(1) > 0).float()
        mask: Tensor | None = None
        losses: list[Tensor] = []
        ious: dict[str, list[float]] = {"single": [], "best": []}
        for number in range(rounds):
            where, kinds = (torch.from_numpy(a.astype(np.float32)).to(device) for a in (points, labels))
            answer = network.decode(self.model, features, where, kinds, mask)
            ambiguous = labels.shape[1] == 1
            loss, iou = prompt_loss(
                replace(answer, logits=answer.logits.float(), iou=answer.iou.float(), present=answer.present.float()),
                target, present, ambiguous,
            )  # fmt: skip
            losses.append(loss)
            there = present > 0
            ious["single"].append(float(iou[there, 0].mean()))
            ious["best"].append(float(iou[there, 1:].amax(1).mean()))
            if number + 1 == rounds:
                break
            shown = self._shown(rng, answer, ambiguous)
            point, label = correct(rng, (shown > 0).cpu().numpy(), targets)
            points = np.concatenate([points, point[:, None]], 1)
            labels = np.concatenate([labels, label[:, None]], 1)
            mask = shown[:, None] if rng.random() < _MASK_INPUT_SHARE else None
        return torch.stack(losses).mean(), ious

    def _shown(self, rng: np.random.Generator, answer: network.Prediction, ambiguous: bool) -> Tensor:
        """Return the logits (P, h, w) that the user corrects: of the best-scored multimask or of the single mask."""
        with torch.no_grad():
            logits = answer.logits.detach().float()
            best = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
            if ambiguous and rng.random() < 0.5:
                best = 1 + answer.iou[:, 1:].argmax(1)
            return logits[torch.arange(len(logits), device=logits.device), best].clamp(-_LOGIT_LIMIT, _LOGIT_LIMIT)

    # The run

    def run(
        self,
        save: Callable[[Trainer], None] | None = None,
        every: float = 120.0,
        quiet: bool = False,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Go through the stages that are left; call `save` every so many seconds and at the end, `before` each step."""
        saved = time.monotonic()
        bar = tqdm(
            total=100.0, unit="%", mininterval=20, disable=quiet, bar_format="{l_bar}{bar:20}| {elapsed} {postfix}"
        )
        recent: dict[str, float] = {}
        while self.progress.stage < len(self.settings.stages):
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
                    {"step": self.progress.step, "size": stage.size, "seconds": self.progress.seconds, **recent}
                )
            text = " ".join(f"{key} {value:.3f}" for key, value in sorted(recent.items()))
            bar.set_postfix_str(f"{stage.size} px, step {self.progress.step}: {text}", refresh=False)
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
        _save_atomically({"model": self.averaged_state()}, path)

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs."""
        content = {
            "model": self.model.state_dict(),
            "average": dict(zip(self._names, self._average, strict=True)),
            "optimizer": self._optimizer.state_dict(),
            "progress": json.dumps(asdict(self.progress)),
        }
        _save_atomically(content, path)

    def load(self, path: Path) -> None:
        """Continue from a file of `save`. The stages may have changed since; their number and order tell the place.

        Raises:
            CheckpointError: the file is damaged or of another model.
        """
        try:
            content = torch.load(path, map_location=self.settings.device, weights_only=True)
            self.model.load_state_dict(content["model"])
            self._average = [content["average"][name].clone() for name in self._names]
            self._optimizer.load_state_dict(content["optimizer"])
            self.progress = Progress(**json.loads(content["progress"]))
        except (pickle.UnpicklingError, EOFError, OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path} is not a training state of this model: {type(error).__name__}") from error


def _save_atomically(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    torch.save(content, partial)
    partial.replace(path)


__all__ = ["Progress", "Settings", "Stage", "Trainer", "mask_iou", "parse_stages"]
