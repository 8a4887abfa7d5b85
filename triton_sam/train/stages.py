"""The stages of a training run, each with one or several views of the frame."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigurationError
from .network import Window
from .schedule import TimedStage, alike, parse_length

PROMPTS = 6
"""Default number of prompts for each image. It is small because a step on a CPU mostly decodes prompts, and one more
image teaches more than one more prompt."""

_IMAGES = ((128, 8), (256, 6), (512, 2), (1 << 30, 1))  # (largest side in pixels, images in a step)
_VIEW = re.compile(r"(\d+)(?:/(\d+))?")
_MAX_TILE = 256  # pixels that an attention window of the trunk's last stage covers, along one axis


@dataclass(frozen=True)
class View:
    """The kind of input of a training step.

    Args:
        size: side of the windows in pixels.
        frame: side of the frame in pixels.
        images: number of images in a step.
        prompts: number of prompts for each image.
    """

    size: int
    frame: int
    images: int = 4
    prompts: int = 8

    def window(self, rng: np.random.Generator) -> Window:
        """Draw a window at a random place in the frame, on the grid of the trunk's largest attention windows."""
        step = min(self.size, _MAX_TILE)
        left, top = (int(n) * step for n in rng.integers(0, (self.frame - self.size) // step + 1, 2))
        return Window(self.size, self.frame, left, top)


@dataclass(frozen=True, kw_only=True)
class Stage(TimedStage):
    """A part of the training, whose steps draw one of the views at random.

    Args:
        views: the views; one that is named twice is drawn twice as often.
    """

    views: tuple[View, ...]


def parse_stages(text: str, prompts: int = PROMPTS) -> tuple[Stage, ...]:
    """Parse the stages of a run, for example "128:25m,256/1024+1024:30m".

    Args:
        text: stages separated by commas. A stage is VIEWS:LENGTH, where the length is in minutes ("25m") or steps
            ("2000"), and views are separated by "+". A view is the side of an image in pixels, or SIDE/FRAME for
            windows of a frame.
        prompts: number of prompts for each image.

    Raises:
        ConfigurationError: the text has another form, or a view does not fit its frame.
    """
    stages = []
    for item in text.split(","):
        views, _, amount = item.strip().partition(":")
        length = parse_length(amount)
        if length is None:
            raise ConfigurationError(
                f"cannot read the stage {item!r}: write it like 256:30m, 256:2000 or 256/1024+1024:30m"
            )
        stages.append(Stage(views=tuple(_view(view, prompts) for view in views.split("+")), **length))
    return alike(stages)


def _view(text: str, prompts: int) -> View:
    found = _VIEW.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"cannot read the view {text!r}: write it like 256, or like 256/1024 for windows of a frame"
        )
    size, frame = int(found[1]), int(found[2] or found[1])
    Window(size, frame)  # raises ConfigurationError if the window does not fit
    images = next(count for largest, count in _IMAGES if size <= largest)
    return View(size, frame, images, prompts)
