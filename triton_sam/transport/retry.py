"""Decides whether and when to repeat a failed call, for all transports."""

from __future__ import annotations

import math
import time

from .._common.backoff import spread
from ..errors import SamError, ServerBusyError, ServerUnreachableError
from .failures import cannot_have_run, process_is_gone

RETRY_PAUSE = 0.2
"""Seconds before the first repetition of a call. The pause doubles with each further repetition."""
MAX_PAUSE = 1.0
"""Seconds that a pause lasts at most."""
PAUSE_FOR_DEAD_PROCESS = 3.0
"""Seconds before the first repetition after the process of a model is gone; the next one waits four times as long.

Its supervisor needs one to two seconds to notice it, and more on a busy machine."""
RESTART_SECONDS = 30.0
"""Seconds for which a call waits for a server that starts again. The timeout of the call may be shorter."""


class Attempts:
    """Counts the attempts of one call.

    A call is repeated only if the connection could not be made or broke, or if the process of the model is gone. A
    server that refused a request would refuse it again, and after a timeout no time is left.

    A server that has answered before may be starting again: its supervisor does this when a model dies. So calls that
    find nobody there are repeated for `RESTART_SECONDS`, however often that is. A call that may have run is repeated
    `retries` times at most: it may be the reason why the model died, and would kill it again and again.

    A busy server refuses calls at once. They are repeated until their deadline if the caller wants to wait for it.

    Args:
        retries: maximum number of attempts after the first one; 0: never repeat.
        has_answered: whether the server has answered before, for this model.
        waits_if_busy: whether to wait for a busy server.
    """

    def __init__(self, retries: int, *, has_answered: bool = False, waits_if_busy: bool = False) -> None:
        self._left = retries
        self._pause = RETRY_PAUSE
        self._pause_for_dead_process = PAUSE_FOR_DEAD_PROCESS
        self._may_wait = has_answered and retries > 0
        self._patient_until: float | None = None
        self._waits_if_busy = waits_if_busy

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
        if self._patient_until is None:
            self._patient_until = time.monotonic() + (RESTART_SECONDS if self._may_wait else 0.0)
        is_patient = self._may_wait and time.monotonic() < self._patient_until and cannot_have_run(error, meant)
        is_patient = is_patient or (self._waits_if_busy and isinstance(meant, ServerBusyError))
        may_repeat = isinstance(meant, ServerUnreachableError) and self._left > 0
        pause = spread(self._pause) if is_patient or may_repeat else math.inf
        if may_repeat and self._may_wait and process_is_gone(error):
            pause = max(pause, spread(self._pause_for_dead_process))
            self._pause_for_dead_process *= 4
        if pause >= seconds_left:
            raise meant from (None if meant is error else error)
        self._left -= not is_patient
        self._pause = min(2 * self._pause, MAX_PAUSE)
        return pause
