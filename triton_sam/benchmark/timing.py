"""Measure durations of contenders that take turns, and of concurrent users, with a progress bar on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tqdm import tqdm

from .._common.backoff import spread
from ..errors import SamError, ServerBusyError
from .settings import MAX_ROUNDS


class Progress:
    """A context manager with the progress bar of one section, which shows the current step."""

    def __init__(self, section: str, steps: int, quiet: bool) -> None:
        self._bar = tqdm(total=steps, desc=f"{section:11}", unit="step", disable=quiet, leave=True)
        self._begun = False

    def step(self, name: str) -> None:
        """Mark the previous step as done and show the name of the next step."""
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_postfix_str(name)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._bar.update(self._bar.total - self._bar.n)
            self._bar.set_postfix_str("")
        self._bar.close()


Act = Callable[[], object]
Key = TypeVar("Key")

PAUSE_AFTER_ERROR = 0.1
PAUSE_AFTER_REFUSAL = 1.0
"""Maximum pause in seconds before a retry after a refusal by a busy server. Pauses are random, at least half of it."""


def milliseconds(act: Act) -> float:
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start)


def take_turns(
    acts: Mapping[Key, Act],
    times: dict[Key, list[float]],
    seconds: float,
    *,
    min_rounds: int,
    max_rounds: int = MAX_ROUNDS,
    warm_up: bool = True,
) -> None:
    """Measure contenders round by round, so that other load on the machine affects all of them equally.

    Args:
        times: receives the milliseconds by key during the run, so that they are kept after an interruption.
    """
    if warm_up:
        for act in acts.values():
            act()
    end = time.perf_counter() + seconds * len(acts)
    for number in range(max_rounds):
        if number >= min_rounds and time.perf_counter() > end:
            break
        for name, act in acts.items():
            took = milliseconds(act)  # an interrupted call leaves no empty list
            times.setdefault(name, []).append(took)


@dataclass
class Crowd:
    """The calls of concurrent users.

    Args:
        ms: for each user, the milliseconds of every successful call.
        seconds: seconds from the start to the end of the last call.
        refused_ms: milliseconds of the calls that a busy server refused; they do not count as errors.
    """

    ms: list[list[float]]
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)

    @property
    def all_ms(self) -> list[float]:
        """The milliseconds of all users' calls."""
        return [value for user in self.ms for value in user]

    @property
    def per_second(self) -> float:
        """The number of successful calls per second."""
        return len(self.all_ms) / self.seconds if self.seconds > 0 else 0.0


def crowd(
    users: int, act: Callable[[int, int], object], seconds: float, pause: Callable[[int], float] | None = None
) -> Crowd:
    """Simulate users who make calls in threads for some seconds, and wait for unfinished calls at the end.

    Args:
        act: the call. Its arguments are the number of the user and the number of the call.
        seconds: seconds after which no further call begins. Pauses end at this time.
        pause: returns the pause in seconds of a user before a call; None: no pauses.
    """
    result = Crowd([[] for _ in range(users)])
    stop = threading.Event()
    failure: list[SamError] = []
    start = time.perf_counter()

    def wait_for_next_call(after: float) -> bool:
        left = max(0.0, start + seconds - time.perf_counter())
        return not stop.wait(min(after, left)) and after < left

    def work(user: int) -> None:
        number, wait = 0, 0.0
        while wait_for_next_call(wait + (pause(user) if pause is not None else 0.0)):
            began, wait = time.perf_counter(), 0.0
            try:
                act(user, number)
                result.ms[user].append(1000 * (time.perf_counter() - began))
            except SamError as error:
                failure.append(error)
                if isinstance(error, ServerBusyError):
                    result.refused_ms.append(1000 * (time.perf_counter() - began))
                    wait = spread(PAUSE_AFTER_REFUSAL)
                else:
                    result.errors.append(str(error))
                    wait = PAUSE_AFTER_ERROR
            result.seconds = max(result.seconds, time.perf_counter() - start)
            number += 1

    threads = [threading.Thread(target=work, args=(user,), daemon=True) for user in range(users)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:  # also after Ctrl-C, so that the threads end
        stop.set()
    if failure and not result.all_ms:
        raise failure[0]
    return result
