"""The training run of the memory half on drawn clips."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sam2.modeling.sam2_utils import LayerNorm2d
from torch import Tensor, nn

from ..errors import ConfigurationError
from . import clips
from .losses import mask_iou
from .memory import Tracker, freeze_images, memory_parameters, object_head, track_loss
from .optimizer import Optimizer
from .schedule import Averages, Progress, TimedStage, alike, cast, parse_length, restoring, save

TRACKS = 4
"""Default number of objects in a step."""

_FIRST_CLIPS, _TRACKS_FOR_CLIP = 16, 24  # the run starts with few clips, and each 24 tracks add one
_PROMPTS, _PROMPT_SHARES = ("box", "click"), (0.7, 0.3)
_MASK_SHARE = 0.3  # share of the objects that start from their true mask
_OBJECT_HEAD_RATE = 0.3  # learning rate of the object score's head, as a share of the others'
_EMA_DECAY = 0.99


class Clips(Protocol):
    """A source of training clips."""

    def clip(self, number: int) -> clips.MappedClip:
        """Return clip 0, 1, 2, ..."""


@dataclass(frozen=True, kw_only=True)
class ClipStage(TimedStage):
    """A part of the training.

    Args:
        frames: number of frames of each track, 2..10.
    """

    frames: int


def parse_clip_stages(text: str) -> tuple[ClipStage, ...]:
    """Parse the stages of a run, for example "2:5m,4:15m": tracks of 2 frames for 5 minutes, then of 4 for 15.

    Raises:
        ConfigurationError: the text has another form, or a number of frames is out of range.
    """
    stages = []
    for item in text.split(","):
        frames, _, amount = item.strip().partition(":")
        length = parse_length(amount)
        if length is None or not frames.isdecimal() or not 2 <= int(frames) <= clips.CLIP_FRAMES:
            raise ConfigurationError(
                f"cannot read the stage {item!r}: write it like 4:15m or 4:600, with 2 to {clips.CLIP_FRAMES} frames"
            )
        stages.append(ClipStage(frames=int(frames), **length))
    return alike(stages)


@dataclass(frozen=True)
class MemorySettings:
    """The settings of a run.

    Args:
        stages: the stages of the run.
        seed: seed of the prompts and of the choice of clips.
        rate: peak learning rate.
        clips: largest number of clips.
        tracks: number of objects in a step.
        warm_up: steps in which the learning rate rises.
        hold: share of the run after which the learning rate falls.
        weight_decay: weight decay of matrices.
        clip: largest norm of the gradient.
    """

    stages: tuple[ClipStage, ...]
    seed: int = 0
    rate: float = 1e-3
    clips: int = 300
    tracks: int = TRACKS
    warm_up: int = 20
    hold: float = 0.5
    weight_decay: float = 0.01
    clip: float = 1.0


@dataclass(frozen=True)
class Best:
    """The best weights of a run so far.

    Args:
        iou: their mean IoU on held-out clips, 0..1.
        step: the step after which they were measured.
        state: averaged weights of the memory half, by name.
    """

    iou: float
    step: int
    state: dict[str, Tensor]


class MemoryTrainer:
    """Trains the memory half of a SAM2Base in place.

    Args:
        model: the SAM2Base of the clips' side, in eval mode, after prepare_memory().
        settings: the settings of the run.
        source: the training clips.
    """

    def __init__(self, model: nn.Module, settings: MemorySettings, source: Clips) -> None:
        self.model, self.settings, self._source = model.eval(), settings, source
        self.progress = Progress()
        self.best: Best | None = None
        freeze_images(model)
        speed_up_norms(model)
        memory, head = list(memory_parameters(model)), list(object_head(model))
        self._averages = Averages(memory + head, _EMA_DECAY)
        self._parameters = [parameter for _, parameter in memory + head]
        self._optimizer = Optimizer("muon", memory, settings.rate, settings.weight_decay)
        self._head_optimizer = Optimizer("adamw", head, settings.rate, settings.weight_decay)

    def restart(self, state: dict[str, Tensor]) -> None:
        """Take the weights of the memory half, and of it alone, from a state dict."""
        with torch.no_grad():
            for name, parameter in memory_parameters(self.model):
                parameter.copy_(state[name])
        self._averages.restart()

    def _draw_tracks(self, rng: np.random.Generator, frames: int) -> list[clips.Track]:
        known = min(self.settings.clips, _FIRST_CLIPS + self.progress.step * self.settings.tracks // _TRACKS_FOR_CLIP)
        tracks: list[clips.Track] = []
        while len(tracks) < self.settings.tracks:
            track = clips.draw_track(rng, self._source.clip(int(rng.integers(known))), frames)
            if track is not None:
                tracks.append(track)
        return tracks

    def step(self) -> dict[str, float]:
        """Train on one batch. Returns "loss", "iou" (of the following frames) and "iou_last" (of the last frame)."""
        rng = np.random.default_rng([self.settings.seed, self.progress.step])
        frames = self.settings.stages[self.progress.stage].frames
        tracks = self._draw_tracks(rng, frames)
        prompt = clips.first_prompt(rng, tracks, str(rng.choice(_PROMPTS, p=_PROMPT_SHARES)))
        loss, iou = track_loss(
            self.model,
            [clips.frame_maps(tracks, number) for number in range(frames)],
            prompt,
            clips.targets(tracks, frames),
            clips.first_masks(tracks),
            torch.from_numpy(rng.random(len(tracks)) < _MASK_SHARE).to(prompt.points.device),
            easy=float(rng.random()) < 1 - self.progress.share_done(self.settings.stages),
        )
        self._optimizer.zero_grad()
        self._head_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        return {"loss": float(loss.detach()), "iou": float(iou.mean()), "iou_last": float(iou[-1].mean())}

    def _update(self) -> None:
        """Update the weights, unless the gradient is not finite, and the moving average of the weights."""
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip)
        if bool(torch.isfinite(norm)):
            rate = self.progress.rate(self.settings)
            self._optimizer.step(rate)
            self._head_optimizer.step(_OBJECT_HEAD_RATE * rate)
        self.progress.step += 1
        self._averages.update(self.progress.step)

    def run(
        self,
        save: Callable[[MemoryTrainer], None],
        save_seconds: float = 120.0,
        should_stop: Callable[[], bool] = lambda: False,
        report: Callable[[str], None] = lambda _line: None,
        measure: Callable[[], float] | None = None,
        measure_seconds: float = 240.0,
    ) -> None:
        """Run the remaining stages.

        Args:
            save: saves the run; it is called between steps and at the end.
            save_seconds: seconds between two calls of `save`.
            should_stop: asked before each step; True ends the run early.
            report: receives a line of figures after each 20 steps.
            measure: returns the mean IoU of the model on held-out clips; the run keeps the best averaged weights.
            measure_seconds: seconds between two calls of `measure`, which is also called at the end.
        """
        last_save = last_measure = time.monotonic()
        recent: dict[str, float] = {}
        while self.progress.stage < len(self.settings.stages) and not should_stop():
            start = time.monotonic()
            stage = self.settings.stages[self.progress.stage]
            for key, value in self.step().items():
                recent[key] = 0.95 * recent.get(key, value) + 0.05 * value
            self.progress.count_step(stage, time.monotonic() - start)
            if self.progress.step % 20 == 0:
                now = {"step": self.progress.step, "frames": stage.frames, "seconds": self.progress.seconds, **recent}
                self.progress.history.append(now)
                report(" ".join(f"{key} {value:.4g}" for key, value in now.items()))
            if measure is not None and time.monotonic() - last_measure > measure_seconds:
                report(self._keep_best(measure))
                last_measure = time.monotonic()
            if time.monotonic() - last_save > save_seconds:
                save(self)
                last_save = time.monotonic()
        if measure is not None and not should_stop():
            report(self._keep_best(measure))
        save(self)

    def _keep_best(self, measure: Callable[[], float]) -> str:
        """Measure the averaged weights, and keep them if no earlier ones were better. Returns a line of figures."""
        with self._averaged():
            iou = measure()
        if self.best is None or iou >= self.best.iou:
            state = {name: value.clone() for name, value in self._averages.state().items()}
            self.best = Best(iou, self.progress.step, state)
        self.progress.history.append({"step": self.progress.step, "held_out": iou})
        return f"step {self.progress.step} held_out {iou:.4g} best {self.best.iou:.4g} of step {self.best.step}"

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Give the model the averaged weights inside the block."""
        trained = {name: self.model.get_parameter(name) for name in self._averages.state()}
        kept = {name: parameter.detach().clone() for name, parameter in trained.items()}
        try:
            _copy(self._averages.state(), trained)
            yield
        finally:
            _copy(kept, trained)

    def averaged_state(self) -> dict[str, Tensor]:
        """Return the model's state dict with averaged weights of the memory half, in single precision."""
        state = {**self.model.state_dict(), **self._averages.state()}
        return {name: value.detach().clone() for name, value in state.items()}

    def export(self, path: Path) -> None:
        """Write the best weights as FP16, in the layout of the official checkpoints.

        If no held-out clip was measured, these are the averaged weights of now.

        Raises:
            OSError: the file cannot be written.
        """
        state = self.averaged_state()
        save({"model": cast(state if self.best is None else {**state, **self.best.state})}, path)

    def save(self, path: Path) -> None:
        """Write the state that a resumed run needs.

        Raises:
            OSError: the file cannot be written.
        """
        content = {
            "model": self.model.state_dict(),
            "average": self._averages.state(),
            "optimizers": [self._optimizer.state(), self._head_optimizer.state()],
            "progress": self.progress.to_json(),
            "best": None if self.best is None else vars(self.best),
        }
        save(content, path)

    def load(self, path: Path) -> None:
        """Restore the state that `save` wrote.

        Raises:
            CheckpointError: the file is damaged, or it belongs to another model.
        """
        with restoring(path, "the memory half"):
            content = torch.load(path, map_location=self._parameters[0].device, weights_only=True)
            self.model.load_state_dict(content["model"])
            self._averages.load(content["average"])
            self._optimizer.load(content["optimizers"][0])
            self._head_optimizer.load(content["optimizers"][1])
            self.progress = Progress.from_json(content["progress"])
            self.best = None if content.get("best") is None else Best(**content["best"])


def _copy(source: dict[str, Tensor], target: dict[str, nn.Parameter]) -> None:
    with torch.no_grad():
        for name, parameter in target.items():
            parameter.copy_(source[name])


def speed_up_norms(model: nn.Module) -> None:
    """Let torch's own layer_norm compute the LayerNorm2d modules, which takes a fraction of the time."""

    def forward(module: Any) -> Callable[[Tensor], Tensor]:
        def normed(x: Tensor) -> Tensor:
            last = F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), module.weight, module.bias, module.eps)
            return last.permute(0, 3, 1, 2)

        return normed

    for module in model.modules():
        if isinstance(module, LayerNorm2d):
            module.forward = forward(module)


def track_iou(model: nn.Module, clip: clips.MappedClip, seed: int = 0) -> Tensor:
    """Track all objects of a clip's first frame from their boxes, without gradients.

    Returns:
        The IoU of the chosen masks of the following frames, (T - 1, B), at a quarter of the side; 1 where an object is
        hidden and its mask is empty.
    """
    frames = len(clip.labels)
    tracks = [clips.Track(clip, int(number), 0) for number in np.unique(clip.labels[0]) if number != 0]
    wanted = clips.targets(tracks, frames)
    prompt = clips.first_prompt(np.random.default_rng(seed), tracks, "box")
    measured = []
    with torch.no_grad():
        tracker = Tracker(model)
        tracker.start(clips.frame_maps(tracks, 0), prompt, None, None)
        for number in range(1, frames):
            answer = tracker.step(number, clips.frame_maps(tracks, number))
            measured.append(mask_iou(answer.shown() - 0.5, wanted[number]))
    return torch.stack(measured)
