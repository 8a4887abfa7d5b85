"""Spans of OpenTelemetry, for programs that use it.

The program sets up OpenTelemetry's SDK, which determines where traces are sent. For a program that never imports
OpenTelemetry, this module costs nothing, because it does not import it either.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from .._version import __version__

_API = "opentelemetry.trace"


def current_trace() -> str | None:
    """Return the id of the current trace, 32 hexadecimal digits; None outside of a trace."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


_NO_SPAN: contextlib.AbstractContextManager[Mapping[str, str]] = contextlib.nullcontext(MappingProxyType({}))


def span(
    name: str, attributes: Mapping[str, str] | None = None, *, is_request: bool = False
) -> contextlib.AbstractContextManager[Mapping[str, str]]:
    """Open a span around the block, below the current span. An exception of the block is recorded and raised.

    Returns:
        A context manager with the headers that continue the trace on the server (`traceparent` and others, by W3C
        Trace Context). They are empty if the program does not use OpenTelemetry, or is not recording a trace.
    """
    return _span(name, attributes, is_request) if _API in sys.modules else _NO_SPAN


@contextlib.contextmanager
def _span(name: str, attributes: Mapping[str, str] | None, is_request: bool) -> Iterator[Mapping[str, str]]:
    from opentelemetry import propagate, trace

    kind = trace.SpanKind.CLIENT if is_request else trace.SpanKind.INTERNAL
    tracer = trace.get_tracer("triton_sam", __version__)
    with tracer.start_as_current_span(name, kind=kind, attributes=dict(attributes or {})):
        headers: dict[str, str] = {}
        if is_request:
            propagate.inject(headers)
        yield headers
