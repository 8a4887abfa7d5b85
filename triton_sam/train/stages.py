"""What a run goes through: stages, each of one or several views of the frame."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigurationError
from .network import Window

PROMPTS = 6
"""Prompts a picture. Few, since a step on a CPU is mostly decoding, and another picture teaches more."""

_IMAGES = ((128, 8), (256, 6), (512, 2), (1 << 30, 1))  # (largest side, pictures a step)
_VIEW = re.compile(r"(\d+)(?:/(\d+))?")
_LARGEST_TILE = 256  # pixels: one attention window of the trunk's last stage


@dataclass(frozen=True)
class View:
    """Windows of side `size` in a frame of side `frame`, `images` a step with `prompts` each."""

    size: int
    frame: int
    images: int = 4
    prompts: int = 8

    def window(self, rng: np.random.Generator) -> Window:
        """Draw a place in the frame, on the grid of the trunk's largest tiles."""
        step = min(self.size, _LARGEST_TILE)
        left, top = (int(n) * step for n in rng.integers(0, (self.frame - self.size) // step + 1, 2))
        return Window(self.size, self.frame, left, top)


@dataclass(frozen=True)
class Stage:
    """A stretch of training, as long as `steps` or `seconds` (spent in steps). Each step draws one of the views."""

    views: tuple[View, ...]
    steps: int | None = None
    seconds: float | None = None

    def done(self, steps: int, seconds: float) -> float:
        """Return the share of the stage that is behind, 0..1."""
        if self.steps is not None:
            return min(1.0, steps / max(self.steps, 1))
        return min(1.0, seconds / max(self.seconds or 0.0, 1e-9))

    @property
    def length(self) -> float:
        """Steps or seconds: what the share of a stage in the schedule is computed from."""
        return float(self.steps if self.steps is not None else self.seconds or 0.0)


def parse_stages(text: str, prompts: int = PROMPTS) -> tuple[Stage, ...]:
    """Read stages, separated by commas: "128:25m,256/1024+1024:30m", or steps in place of minutes, "128:2000".

    A stage is one view or several with "+" between them (one named twice is drawn twice as often); a view is a side, or
    the sides of a window and of its frame. Every picture gets `prompts` prompts.

    Raises:
        ConfigurationError: anything else.
    """
    stages = []
    for item in text.split(","):
        views, _, amount = item.strip().partition(":")
        found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)m", amount)
        if found is None:
            raise ConfigurationError(f"cannot read the stage {item!r}: write 256:30m, 256:2000 or 256/1024+1024:30m")
        steps, seconds = (int(found[1]), None) if found[1] else (None, 60 * float(found[2]))
        stages.append(Stage(tuple(_view(view, prompts) for view in views.split("+")), steps, seconds))
    if len({stage.steps is None for stage in stages}) > 1:
        raise ConfigurationError("give every stage in minutes or every stage in steps")
    return tuple(stages)


def _view(text: str, prompts: int) -> View:
    found = _VIEW.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"cannot read the view {text!r}: write 256, or 256/1024 for a window of a frame")
    size, frame = int(found[1]), int(found[2] or found[1])
    Window(size, frame)  # raises where it does not fit
    images = next(count for most, count in _IMAGES if size <= most)
    return View(size, frame, images, prompts)
