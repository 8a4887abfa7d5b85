"""When a call is tried again: one rule for all transports."""

from __future__ import annotations

import math

from .._common.backoff import spread
from ..errors import SamError, ServerUnreachableError

RETRY_PAUSE = 0.2
"""Seconds before the first repetition of a call; doubled for each further one."""


class Attempts:
    """Counts the attempts of one call.

    Only a connection that could not be made or broke is worth another attempt: a server that refused would refuse
    again, and a timeout has used up the time of the call.

    Args:
        retries: how many attempts may follow the first one.
    """

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._pause = RETRY_PAUSE

    def pause_after(self, error: BaseException, meant: SamError | None, seconds_left: float = math.inf) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            error: what ended the last attempt.
            meant: the same as an error of this package; None: it is none, for example Ctrl-C.
            seconds_left: until the call must have ended.

        Raises:
            BaseException: there is no further attempt: ``meant``, or ``error`` where that is None.
        """
        if meant is None:
            raise error
        may_help = isinstance(meant, ServerUnreachableError) and self._left > 0
        pause = spread(self._pause) if may_help else math.inf
        if pause >= seconds_left:
            raise meant from (None if meant is error else error)
        self._left -= 1
        self._pause *= 2
        return pause
