"""Progress bars on standard error, and an estimate of the time that a search for all objects takes."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..annotate.folder import ImageRecord
from ..annotate.sources import ImageItem
from ..client.server_models import FIXED_IMAGE
from ..errors import SamError
from ..everything.parameters import Parameters

if TYPE_CHECKING:
    from ..client.sync import SamTritonClient

FRACTIONS = "{l_bar}{bar}| {n:.2f}/{total_fmt} {unit}s [{elapsed}<{remaining}{postfix}]"
"""The format of a bar whose steps are parts of an image."""
TRIAL_SIDE = 3
"""Points along each side in the small search that measures a server."""
LONG = 60.0
"""Seconds from which a search is long enough for a hint how to shorten it."""
_SECONDS_IN_LOGS = 5.0


@contextlib.contextmanager
def bar(args: argparse.Namespace, *, in_logs: bool = True, **options: Any) -> Iterator[Any]:
    """Yield a tqdm bar, unless --quiet is given. On a terminal, its clock is updated every second."""
    is_terminal = sys.stderr.isatty()
    rate = {} if is_terminal else {"mininterval": _SECONDS_IN_LOGS}
    with tqdm(disable=args.quiet or not (is_terminal or in_logs), **rate, **options) as shown:
        if not is_terminal or shown.disable:
            yield shown
            return
        ended = threading.Event()
        clock = threading.Thread(target=_tick, args=(shown, ended), name="triton-sam-clock", daemon=True)
        clock.start()
        try:
            yield shown
        finally:
            ended.set()
            clock.join()


def _tick(shown: Any, ended: threading.Event) -> None:
    while not ended.wait(1.0):
        shown.refresh()


class RunProgress:
    """The progress bar of a run of many images. Its methods are thread-safe."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._shares: dict[int, float] = {}
        self._errors = 0
        self._lock = threading.Lock()

    def tell(self, item: ImageItem, share: float) -> None:
        """Report how much of an image is done, 0..1. A restart of an image does not move the bar back."""
        with self._lock:
            before = self._shares.get(item.id, 0.0)
            if share > before:
                self._shares[item.id] = share
                self._shown.update(share - before)

    def done(self, record: ImageRecord) -> None:
        """Report that an image is done and stored."""
        with self._lock:
            self._errors += bool(record.error)
            self._shown.set_postfix(errors=self._errors, refresh=False)
            self._shown.update(1.0 - self._shares.pop(record.id, 0.0))
            self._shown.n = round(self._shown.n, 6)  # the shares add up to almost one


def estimate(client: SamTritonClient, parameters: Parameters, images: int, servers: int) -> str | None:
    """Return the minimum time that a search of many images takes, from a small search; None if the server is busy."""
    began = time.monotonic()
    try:
        client.everything(FIXED_IMAGE, points_per_side=TRIAL_SIDE)
    except SamError:
        return None  # the run reports the error
    each = (time.monotonic() - began) / TRIAL_SIDE**2
    points = sum(4**layer * len(parameters.grid(layer)) for layer in range(parameters.crop_n_layers + 1))
    seconds = images * points * each / servers
    work = f"{images} image{'s' * (images > 1)} with {points} points each"
    text = f"{work}: at least {duration(seconds)}, at {1000 * each:.0f} ms a point"
    return f"{text}.{hint(parameters) if seconds > LONG else ''}"


def hint(parameters: Parameters) -> str:
    """Return how to shorten a search, as the end of a message; "" if its grid is coarse."""
    side = parameters.points_per_side or 0
    return f" --points-per-side {side // 2} takes a quarter of the time" if side >= 16 else ""


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
