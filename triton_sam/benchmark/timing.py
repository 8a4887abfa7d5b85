"""Measuring: contenders that take turns, and users that work at the same time."""

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
"""Seconds, half of them to all, before a user calls again who was told that the server is busy."""


def milliseconds(act: Act) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start)


def take_turns(
    acts: Mapping[str, Act],
    times: dict[str, list[float]],
    seconds: float,
    *,
    least: int,
    most: int = MAX_ROUNDS,
    warm_up: bool = True,
) -> None:
    """Measure contenders round by round, so that whatever else the machine does hits all of them alike.

    Args:
        acts: what to measure, by name.
        times: milliseconds by name; grows while this runs, so that an interruption leaves what was measured.
        seconds: after which no further round begins, for each contender; ``least`` rounds are run anyway.
        least: rounds to run.
        most: rounds to run at most.
        warm_up: run all once before, unmeasured.
    """
    if warm_up:
        for act in acts.values():
            act()
    end = time.perf_counter() + seconds * len(acts)
    for number in range(most):
        if number >= least and time.perf_counter() > end:
            break
        for name, act in acts.items():
            times.setdefault(name, []).append(milliseconds(act))


@dataclass
class Crowd:
    """What users did that worked at the same time.

    Args:
        ms: durations of each user's calls, milliseconds.
        seconds: from the start to the end of the last call.
        errors: texts of calls that failed.
        refused_ms: durations of calls that the server refused as busy, milliseconds; they are no errors.
    """

    ms: list[list[float]]
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)

    @property
    def all_ms(self) -> list[float]:
        """Durations of all users."""
        return [value for user in self.ms for value in user]

    @property
    def per_second(self) -> float:
        """Calls that succeeded, for each second."""
        return len(self.all_ms) / self.seconds if self.seconds > 0 else 0.0

    @property
    def least(self) -> int:
        """Calls of the user who got the fewest."""
        return min(len(user) for user in self.ms)


def crowd(
    users: int, act: Callable[[int, int], object], seconds: float, pause: Callable[[int], float] | None = None
) -> Crowd:
    """Let users call in threads for some seconds; a call under way is waited for.

    Args:
        users: how many.
        act: the call, given the number of the user and of the call.
        seconds: after which no further call begins; who thinks or was refused waits no longer than that.
        pause: seconds that a user thinks before a call; None: none do.

    Raises:
        SamError: not one call succeeded.
    """
    result = Crowd([[] for _ in range(users)])
    stop = threading.Event()
    failure: list[SamError] = []
    start = time.perf_counter()

    def may_go_on(after: float) -> bool:
        left = max(0.0, start + seconds - time.perf_counter())
        return not stop.wait(min(after, left)) and after < left

    def work(user: int) -> None:
        number, wait = 0, 0.0
        while may_go_on(wait + (pause(user) if pause is not None else 0.0)):
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
    finally:  # Ctrl-C
        stop.set()
    if failure and not result.all_ms:
        raise failure[0]
    return result
