"""Segments the objects that a person clicks in an image, in a thread that requests only the newest mouse position."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..client.sync import SamTritonClient
from ..errors import ConfigurationError, SamError
from ..inputs.images import ImageSource
from ..masks.segment import Segment

Point = tuple[float, float]


@dataclass(eq=False)
class ClickedObject:
    """One object.

    Args:
        points: x, y in pixels of the image, in the order of the clicks.
        labels: 1 for each point inside the object, 0 for each outside.
        segment: the mask for these points; None before the answer, and without points.
    """

    points: list[Point] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    segment: Segment | None = None
    waits: bool = False
    """Whether the points have changed since the last answer."""


@dataclass(frozen=True)
class View:
    """Everything to show after a change.

    Args:
        masks: the segment of each object; None for an object without an answer.
        points: points of the last object, which takes the next click.
        labels: their labels.
        preview: the mask that a click at the mouse position would give; None without a position.
        error: why the last request failed; empty if it succeeded.
    """

    masks: tuple[Segment | None, ...]
    points: tuple[Point, ...]
    labels: tuple[int, ...]
    preview: Segment | None
    error: str


class Clicking:
    """Segments the objects of one image as they are clicked. Any thread may call the methods, and none of them blocks.

    One thread sends requests, one at a time: clicks first, then the newest mouse position. So a click waits for at most
    one mask, and an idle mouse costs nothing.

    Args:
        client: a client of any family.
        image: the image in any form that the client accepts.
        tell: called with each new View, always in that thread.

    Raises:
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """

    def __init__(self, client: SamTritonClient, image: ImageSource, tell: Callable[[View], None]) -> None:
        self._client = client
        self._embeddings = client.encode(image)
        self._tell = tell
        self._changes = threading.Condition()
        self._objects = [ClickedObject()]
        self._mouse: Point | None = None
        self._mouse_waits = self._is_stale = self._runs = False
        self._preview: Segment | None = None
        self._error = ""

    @property
    def size(self) -> tuple[int, int]:
        return self._embeddings.image_size

    def click(self, x: float, y: float, label: int = 1) -> None:
        """Add a point to the last object.

        Args:
            x: column in pixels of the image. Points outside the image are moved to its border.
            y: row in pixels of the image.
            label: 1 inside the object, 0 outside.

        Raises:
            ConfigurationError: the label is neither 0 nor 1.
        """
        if label not in (0, 1):
            raise ConfigurationError(f"a label is 1 (inside the object) or 0 (outside), not {label!r}")
        with self._changes:
            last = self._objects[-1]
            last.points.append(self._within(x, y))
            last.labels.append(label)
            last.waits = True
            self._forget_mouse()
            self._start()

    def hover(self, x: float, y: float) -> None:
        """Show the mask that a click here would give; it replaces an earlier position."""
        with self._changes:
            self._mouse, self._mouse_waits = self._within(x, y), True
            self._start()

    def leave(self) -> None:
        """Hide the preview, because the mouse has left the image."""
        with self._changes:
            self._forget_mouse()
            self._start()

    def undo(self) -> None:
        """Remove the last point. If the last object has no points, return to the previous object."""
        with self._changes:
            last = self._objects[-1]
            if last.points:
                del last.points[-1], last.labels[-1]
                last.waits = bool(last.points)
                last.segment = last.segment if last.points else None
            elif len(self._objects) > 1:
                self._objects.pop()
            self._forget_mouse()
            self._start()

    def next_object(self) -> None:
        """Begin another object, unless the last one has no points yet."""
        with self._changes:
            if self._objects[-1].points:
                self._objects.append(ClickedObject())
            self._forget_mouse()
            self._start()

    def clear(self) -> None:
        with self._changes:
            self._objects = [ClickedObject()]
            self._error = ""
            self._forget_mouse()
            self._start()

    def segments(self) -> list[Segment]:
        """Wait for the answers to all clicks, and return the segment of each object that has one."""
        with self._changes:
            self._changes.wait_for(lambda: not self._runs)
            return [each.segment for each in self._objects if each.segment is not None]

    def _within(self, x: float, y: float) -> Point:
        width, height = self.size
        return min(max(float(x), 0.0), width - 1.0), min(max(float(y), 0.0), height - 1.0)

    def _forget_mouse(self) -> None:
        self._mouse, self._mouse_waits, self._preview = None, False, None

    def _start(self) -> None:
        """Wake the thread; the caller holds the lock."""
        self._is_stale = True
        if not self._runs:
            self._runs = True
            threading.Thread(target=self._work, name="triton-sam-clicks", daemon=True).start()

    def _work(self) -> None:
        try:
            while self._one_step():
                pass
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        with self._changes:
            self._runs = False
            self._changes.notify_all()

    def _one_step(self) -> bool:
        """Send one request, or show the newest state. Return False when there is nothing to do."""
        with self._changes:
            asked = next((each for each in self._objects if each.waits), None)
            mouse = self._mouse if asked is None and self._mouse_waits else None
            target = asked or self._objects[-1]
            points, labels = list(target.points), list(target.labels)
            last = self._objects[-1]
            masks = tuple(each.segment for each in self._objects)
            view = View(masks, tuple(last.points), tuple(last.labels), self._preview, self._error)
            is_stale, self._is_stale = self._is_stale, False
            if asked is not None:
                asked.waits = False
            elif mouse is not None:
                self._mouse_waits = False
                points, labels = [*points, mouse], [*labels, 1]
            elif not is_stale:
                self._runs = False
                self._changes.notify_all()
                return False
        if asked is None and mouse is None:
            self._tell(view)
            return True
        self._keep(asked, mouse, *self._ask(points, labels))
        return True

    def _ask(self, points: list[Point], labels: list[int]) -> tuple[Segment | None, str]:
        try:
            return self._client.segment(points, labels, image=self._embeddings)[0], ""
        except SamError as error:
            return None, str(error)

    def _keep(self, asked: ClickedObject | None, mouse: Point | None, segment: Segment | None, error: str) -> None:
        """Keep an answer, unless its click or mouse position is out of date."""
        with self._changes:
            self._error, self._is_stale = error, True
            if asked is not None:
                if segment is not None and asked.points:
                    asked.segment = segment
            elif mouse == self._mouse or self._mouse_waits:
                self._preview = segment
