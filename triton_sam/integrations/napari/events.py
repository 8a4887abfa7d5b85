"""Events that the plugin's requests send from their own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .board import Patch
from .sources import Plane


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
