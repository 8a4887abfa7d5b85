"""The trace of a request: W3C Trace Context, https://www.w3.org/TR/trace-context/.

The service reads the header ``traceparent``, logs the trace id, and returns the header. If the environment configures
a collector, the service also opens OpenTelemetry spans.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._common.extras import find_package, install
from ..errors import MissingDependencyError

if TYPE_CHECKING:
    from fastapi import FastAPI

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = "/health,/metrics"
"""Comma-separated paths that programs poll every few seconds."""


def read_trace(header: str | None) -> str | None:
    """Return a valid ``traceparent`` header in the form of version 00; None if it is missing or invalid."""
    match = _FORM.fullmatch(header.strip()) if header and len(header) < 512 else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    return f"00-{trace_id}-{parent_id}-{flags}"


def add_traces(app: FastAPI) -> Callable[[], object]:
    """Open a span for each request if the environment configures a collector.

    The variables are OpenTelemetry's: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and
    others. A request with the header `traceparent` continues its caller's trace, and the service's client passes the
    trace on to Triton.

    Returns:
        A function that sends the pending spans and blocks until the collector has them. Call it at the end: uvicorn
        ends the process by the signal that it received, without calling Python's exit handlers.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return lambda: None
    if find_package("opentelemetry.sdk.trace") is None:
        raise MissingDependencyError(f"traces need OpenTelemetry, because {_ENDPOINTS[0]} is set: {install('tracing')}")
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "triton-sam-service")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    # A middleware of the application, because newer versions of FastAPI open no spans of their own beside it. Without
    # the two names, each message of a request would have a span.
    app.add_middleware(OpenTelemetryMiddleware, excluded_urls=_UNTRACED, exclude_spans=["receive", "send"])
    return provider.force_flush
