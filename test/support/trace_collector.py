"""A collector of traces, which receives OpenTelemetry's protocol (OTLP over HTTP) and stores the spans."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Span:
    """One received span. Ids are hexadecimal, and ``parent`` is empty for the first span of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str]


class Collector:
    """Stores the received spans.

    Args:
        port: the local port on which it listens.

    Attributes:
        triton: the URL of a Triton that sends its spans here.
    """

    triton = ""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[Span] = []

    def add(self, content: bytes, kind: str) -> None:
        """Store the spans of one request. Triton sends JSON, OpenTelemetry's SDK sends protocol buffers."""
        for resource in _resource_spans(content, kind):
            service = _texts(resource["resource"].get("attributes", [])).get("service.name", "")
            self.spans += [
                Span(
                    service,
                    span["name"],
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    _texts(span.get("attributes", [])),
                )
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
            ]

    def wait_for(self, condition: Callable[[list[Span]], bool], seconds: float = 30.0) -> list[Span]:
        """Return the spans once they meet a condition."""
        deadline = time.monotonic() + seconds
        while not condition(self.spans):
            assert time.monotonic() < deadline, [(span.service, span.name) for span in self.spans]
            time.sleep(0.05)
        return list(self.spans)

    def ancestors(self, span: Span) -> list[Span]:
        """Return the received ancestors of a span, starting with its parent."""
        by_id = {other.id: other for other in self.spans}
        found = []
        while (parent := by_id.get(span.parent)) is not None:
            found.append(parent)
            span = parent
        return found


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            running.add(content, self.headers["Content-Type"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 64
        daemon_threads = True
        block_on_close = False  # exporters keep their connections open

    with Server(("127.0.0.1", 0), Handler) as server:
        running = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()


def _resource_spans(content: bytes, kind: str) -> list[dict[str, Any]]:
    """Return the spans of a request in JSON's form, with hexadecimal ids."""
    if "json" in kind:
        spans: list[dict[str, Any]] = json.loads(content)["resourceSpans"]
        return spans
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = json_format.MessageToDict(ExportTraceServiceRequest.FromString(content))["resourceSpans"]
    for span in (span for resource in spans for scope in resource["scopeSpans"] for span in scope["spans"]):
        for name in ("traceId", "spanId", "parentSpanId"):  # protobuf's JSON uses base64
            span[name] = base64.b64decode(span.get(name, "")).hex()
    return spans


def _texts(attributes: list[dict[str, Any]]) -> dict[str, str]:
    return {pair["key"]: str(next(iter(pair["value"].values()), "")) for pair in attributes}
