"""One JSON line a request on stderr, with an id that the answer carries too."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from contextvars import ContextVar

LOGGER = logging.getLogger("triton_sam.service")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_SAFE_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def new_request_id(proposed: str | None) -> str:
    """Return the caller's own id when it is one that is safe in a log, else a new one."""
    return proposed if proposed and _SAFE_ID.fullmatch(proposed) else uuid.uuid4().hex


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; what was passed as ``extra={"fields": {...}}`` becomes members."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "request_id": request_id.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps({key: value for key, value in entry.items() if value is not None}, default=str)


def set_up(level: int = logging.INFO) -> None:
    """Write the service's log, and uvicorn's complaints, as JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, threshold in ((LOGGER.name, level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(threshold)
        logger.propagate = False
