"""Decides whether and when to repeat a failed call, for all transports."""

from __future__ import annotations

import math

from .._common.backoff import spread
from ..errors import SamError, ServerUnreachableError

RETRY_PAUSE = 0.2
"""Seconds before the first repetition of a call. The pause doubles with each further repetition."""


class Attempts:
    """Counts the attempts of one call.

    A call is repeated only if the connection could not be made or broke. A server that refused a request would refuse
    it again, and after a timeout no time is left.

    Args:
        retries: maximum number of attempts after the first one.
    """

    def __init__(self, retries: int) -> None:
        self._left = retries
        self._pause = RETRY_PAUSE

    def pause_after(self, error: BaseException, meant: SamError | None, seconds_left: float = math.inf) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            error: the error that ended the last attempt.
            meant: the same error converted by map_error(); None if it cannot be converted, as for Ctrl-C.
            seconds_left: seconds until the deadline of the call.

        Raises:
            BaseException: no further attempt is allowed. The error is ``meant``, or ``error`` if ``meant`` is None.
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
