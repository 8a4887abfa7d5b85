"""Features that a server lacks: a client does without them, logs it once, and asks again after a while."""

from __future__ import annotations

import logging
import math
import time

logger = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 30.0
"""A server that starts again, or is updated, may have a feature later."""


class Notice:
    """A warning that is logged once, however often it applies."""

    def __init__(self) -> None:
        self._is_logged = False

    def log(self, text: str) -> None:
        """Log a warning, unless one was logged before."""
        if not self._is_logged:
            self._is_logged = True
            logger.warning(text)


class Lack:
    """A feature that a server may lack."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._notice = Notice()

    @property
    def is_known(self) -> bool:
        """Whether the server lacked the feature when it was last asked, which was not long ago."""
        return time.monotonic() < self._until

    def note(self, text: str) -> None:
        """Note that the server lacks the feature; the text says what that costs and how to avoid it."""
        self._until = time.monotonic() + ASK_AGAIN_SECONDS
        self._notice.log(text)
