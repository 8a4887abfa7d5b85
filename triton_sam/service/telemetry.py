"""Traces of OpenTelemetry from the service, when the environment names a collector."""

from __future__ import annotations

import importlib.util
import os

from starlette.types import ASGIApp

from .._common.extras import install
from ..errors import MissingDependencyError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = "/health,/metrics,/v1/health"
"""Paths that programs ask every few seconds; a comma separates them."""


def with_traces(app: ASGIApp) -> ASGIApp:
    """Return the application with one span for each request, if the environment names a collector.

    The variables are those of OpenTelemetry: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`
    and others. A request with the header `traceparent` continues the trace of its caller, and the client of the service
    passes the trace on to Triton.

    Raises:
        MissingDependencyError: the environment names a collector, and OpenTelemetry is not installed.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return app
    if importlib.util.find_spec("opentelemetry") is None:
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
    # Without these names, each message of a request would have a span of its own.
    return OpenTelemetryMiddleware(app, excluded_urls=_UNTRACED, exclude_spans=["receive", "send"])
