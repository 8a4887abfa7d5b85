"""Traces of OpenTelemetry from the service, when the environment names a collector."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from .._common.extras import install
from ..errors import MissingDependencyError

if TYPE_CHECKING:
    from fastapi import FastAPI

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = "/health,/metrics"
"""Paths that programs ask every few seconds; a comma separates them."""


def add_traces(app: FastAPI) -> None:
    """Let the application open a span for each request, if the environment names a collector.

    The variables are those of OpenTelemetry: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`
    and others. A request with the header `traceparent` continues the trace of its caller, and the client of the service
    passes the trace on to Triton.

    Raises:
        MissingDependencyError: the environment names a collector, and OpenTelemetry is not installed.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return
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
    # A middleware of the application: newer versions of FastAPI open no spans of their own beside it. Without the two
    # names, each message of a request would have a span.
    app.add_middleware(OpenTelemetryMiddleware, excluded_urls=_UNTRACED, exclude_spans=["receive", "send"])
