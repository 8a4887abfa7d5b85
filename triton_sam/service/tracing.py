"""The trace that a request belongs to: W3C Trace Context, https://www.w3.org/TR/trace-context/.

The service reads the header ``traceparent``, writes the id of the trace into its log, and sends the header back, also
without OpenTelemetry. telemetry.py adds the spans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


@dataclass(frozen=True)
class Trace:
    """The context of a caller's trace.

    Args:
        trace_id: 32 hexadecimal digits, the same for all parts of the trace.
        parent_id: 16 hexadecimal digits: the caller's span.
        flags: 2 hexadecimal digits; 01: the caller records the trace.
    """

    trace_id: str
    parent_id: str
    flags: str

    @property
    def header(self) -> str:
        """The value of the header ``traceparent``."""
        return f"00-{self.trace_id}-{self.parent_id}-{self.flags}"


def read_trace(header: str | None) -> Trace | None:
    """Return the trace that a header ``traceparent`` names; None if it names none, or breaks the standard."""
    match = _FORM.fullmatch(header.strip()) if header and len(header) < 512 else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    return Trace(trace_id, parent_id, flags)
