"""The events that requests send from their thread, and long jobs: tiles of large images, objects in a stack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import PromptError
from ...tiles import LargeObject
from ...tiles.pyramid import Window
from .layers import Patch, patch_of
from .sources import Frames, Key, Plane, Prompt


@dataclass(frozen=True, eq=False)
class Preview:
    """The mask that a click at the mouse position would give; None without one."""

    plane: Plane
    patch: Patch | None


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of objects in a plane, by number; None for an empty mask."""

    plane: Plane
    patches: dict[int, Patch | None]


@dataclass(frozen=True, eq=False)
class NewObjects:
    """New objects of a plane, without numbers yet."""

    plane: Plane
    patches: list[Patch]


@dataclass(frozen=True)
class Progress:
    done: int
    total: int


@dataclass(frozen=True)
class Ended:
    """The end of a job, or of a click that failed."""

    text: str
    is_job: bool = True


Event = Preview | Masks | NewObjects | Progress | Ended
Tell = Callable[[Event], None]


class Stopped(Exception):  # noqa: N818 - not an error: the user has cancelled
    """The user has cancelled the job."""


def progress_of(tell: Tell, stop: threading.Event) -> Callable[[int, int], None]:
    """Return a function of done and total that reports the progress, and raises Stopped after a cancellation."""

    def told(done: int, total: int) -> None:
        if stop.is_set():
            raise Stopped
        tell(Progress(done, total))

    return told


def large_patch(found: LargeObject) -> Patch | None:
    """Return an object of a large image in pixels of its largest level; None if the mask is empty."""
    if found.box is None:
        return None
    x1, y1 = (int(np.floor(value)) for value in found.box[:2])
    x2, y2 = (int(np.ceil(value)) for value in found.box[2:])
    blank = np.broadcast_to(np.uint8(0), (y2 - y1, x2 - x1, 3))
    return Patch(found.within(Window(blank, (x1, y1, x2, y2))), y1, x1)


def follow(
    connect: Callable[[], AbstractContextManager[Any]],
    frames: Frames,
    prompts: Mapping[Key, Prompt],
    tell: Tell,
    stop: threading.Event,
) -> int:
    """Follow objects through the planes of a stack, and send their masks as events.

    Args:
        prompts: the prompts of each object. Prompts of planes outside the frames are ignored.

    Returns:
        The number of planes that were done.
    """
    shown = {(plane[frames.axis], number): prompt for (plane, number), prompt in prompts.items() if frames.shows(plane)}
    placed = [(frame, number, shown[frame, number]) for frame, number in sorted(shown)]
    if not placed:
        raise PromptError("set a point or a box in one of the planes first")
    told = progress_of(tell, stop)
    done, first = 0, placed[0][0]
    total = len(frames) + (1 if first else 0)
    with connect() as client, client.open(frames) as video:
        for frame, number, prompt in placed:
            inside = prompt.within(frames.size)
            video.add(frame, number, list(inside.points) or None, list(inside.labels) or None, inside.box)
        for reverse in (False, True) if first else (False,):
            for frame, segments in video.propagate(start=first, reverse=reverse, logits=False):
                patches = {number: patch_of(segment.mask) for number, segment in segments.items()}
                tell(Masks(frames.plane(frame), patches))
                done += 1
                told(done, total)
    return len(frames)
