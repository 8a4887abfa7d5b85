"""The log on stderr: one line for each request, with the id that its response carries."""

from __future__ import annotations

import logging
import re
import sys
import time
import uuid
from contextvars import ContextVar
from typing import Any

from .._common import strict_json

LOGGER = logging.getLogger("triton_sam.service")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_PLAIN = re.compile(r"[!#-~]+", re.ASCII)
_SAFE_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def new_request_id(proposed: str | None) -> str:
    """Return the caller's proposed id if it is safe in a log, else a new one."""
    return proposed if proposed and _SAFE_ID.fullmatch(proposed) else uuid.uuid4().hex


def _time(record: logging.LogRecord) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{stamp}.{int(record.msecs):03d}Z"


def _members(record: logging.LogRecord) -> dict[str, Any]:
    """Return the request's id, and the members of ``extra={"fields": {...}}``."""
    members = {"request_id": request_id.get(), **getattr(record, "fields", {})}
    return {name: value for name, value in members.items() if value is not None}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_members(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return strict_json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as one readable line: time, level, message, and the members as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Values with spaces or line breaks are quoted, so that a caller cannot forge a line."""
        parts = [_time(record), record.levelname, " ".join(record.getMessage().split())]
        parts += [f"{name}={_quoted(value)}" for name, value in _members(record).items()]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


FORMATTERS: dict[str, type[logging.Formatter]] = {"json": JsonFormatter, "text": TextFormatter}


def set_up(form: str) -> None:
    """Write the service's log, and uvicorn's warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    for name, threshold in ((LOGGER.name, logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(threshold)
        logger.propagate = False


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else strict_json.dumps(text)
