"""Measure durations: of contenders that take turns, and of users who work at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .._common.backoff import spread
from ..errors import SamError, ServerBusyError
from .settings import MAX_ROUNDS

Act = Callable[[], object]

PAUSE_AFTER_ERROR = 0.1
PAUSE_AFTER_REFUSAL = 1.0
"""Seconds before a user calls again after a refusal by a busy server. The pause is random, from half of this to all."""


def milliseconds(act: Act) -> float:
    """Return the duration of a call in milliseconds."""
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start)


def take_turns(
    acts: Mapping[str, Act],
    times: dict[str, list[float]],
    seconds: float,
    *,
    min_rounds: int,
    max_rounds: int = MAX_ROUNDS,
    warm_up: bool = True,
) -> None:
    """Measure contenders round by round, so that other work on the machine slows all of them alike.

    Args:
        times: takes the milliseconds by name. It grows during the run, so that an interruption keeps its contents.
    """
    if warm_up:
        for act in acts.values():
            act()
    end = time.perf_counter() + seconds * len(acts)
    for number in range(max_rounds):
        if number >= min_rounds and time.perf_counter() > end:
            break
        for name, act in acts.items():
            times.setdefault(name, []).append(milliseconds(act))


@dataclass
class Crowd:
    """The calls of users who worked at the same time.

    Args:
        ms: for each user, the milliseconds of every call that succeeded.
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
        """The number of calls per second that succeeded."""
        return len(self.all_ms) / self.seconds if self.seconds > 0 else 0.0

    @property
    def min_calls(self) -> int:
        """The number of calls of the user with the fewest calls."""
        return min(len(user) for user in self.ms)


def crowd(
    users: int, act: Callable[[int, int], object], seconds: float, pause: Callable[[int], float] | None = None
) -> Crowd:
    """Let users make calls in threads for some seconds, and wait for the calls that are under way at the end.

    Args:
        act: the call; its arguments are the number of the user and the number of the call.
        seconds: seconds after which no further call begins. A pause ends at this time.
        pause: returns the seconds that a user pauses before a call; None means no pauses.
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
