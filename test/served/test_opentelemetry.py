"""A trace of OpenTelemetry goes from a program through the clients into Triton, and on to the models behind it."""

import base64
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from support.conditions import wait_until
from support.running_service import ServiceProgram

from triton_sam.local_server import LocalServer


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


PROGRAM = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client

collector, http, grpc, image, rounds = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector + "/v1/traces")))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("program")

async def speculate():
    async with SpeculativeSAM2Client(grpc, embeddings="server") as client:
        with tracer.start_as_current_span("async work"):
            await client.set_image_async(image)
            await client.segment_async([[200, 180]], [1])

for _ in range(int(rounds)):
    for url in (http, grpc):
        with SAM2TritonClient(url, embeddings="server") as client, tracer.start_as_current_span("work over " + url[:4]):
            client.set_image(image)
            client.predict([[200, 180]], [1])
    asyncio.run(speculate())
provider.shutdown()
"""
ROUNDS = 15
"""Triton 2.51 loses some of the spans that it exports, on a busy machine up to a third. So the program works several
times, and the tests look for complete traces."""


@pytest.fixture(scope="module")
def traced(toy_repository, images):
    """Run a server that sends its traces to a collector, and the program; yield the collector."""
    with collector() as running:
        export = [f"opentelemetry,url={running.url}/v1/traces", "opentelemetry,bsp_schedule_delay=200"]
        settings = ["mode=opentelemetry", *export, "rate=0", "level=TIMESTAMPS"]
        options = [f"--trace-config={setting}" for setting in settings]
        with LocalServer(toy_repository, models=["sam2"], decoder_in_session=False, extra_args=options) as server:
            arguments = [running.url, server.http_url, server.grpc_url, str(images / "shapes.jpg"), str(ROUNDS)]
            subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True, timeout=300)
            running.triton = server.grpc_url
            yield running


@pytest.mark.parametrize("work", ["work over http", "work over grpc", "async work"])
def test_a_trace_goes_through_client_and_triton(traced, work):
    """Triton's spans of the session model are below the client's inference, which is below the work of the program."""
    wait_until(lambda: _complete(traced.spans, work))
    assert {tuple(_names(traced, span)) for span in _complete(traced.spans, work)} == {
        ("InferRequest", "infer sam2", "triton_sam.encode", work),
        ("InferRequest", "infer sam2", "triton_sam.ask", work),
    }


@pytest.mark.parametrize("model", ["sam2_encoder", "sam2_decoder"])
def test_encoder_and_decoder_are_below_the_session_model(traced, model):
    def ways() -> list[list[str]]:
        return [_names(traced, span) for span in _inferences(traced.spans, model)]

    call = "triton_sam.encode" if model == "sam2_encoder" else "triton_sam.ask"
    expected = ["sam2", "InferRequest", "infer sam2", call]
    wait_until(lambda: any(way[:4] == expected for way in ways()))
    assert all("sam2" in way for way in ways() if len(way) > 1)


def test_the_service_continues_the_trace_of_its_caller(traced, tmp_path, images):
    """Its spans are below the caller's, the client's below those, and Triton's below the client's."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": traced.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    trace, caller = "11112222333344445555666677778888", "aaaabbbbccccdddd"
    with ServiceProgram(traced.triton, tmp_path, **variables) as service:
        content = (images / "shapes.jpg").read_bytes()
        headers = {"traceparent": f"00-{trace}-{caller}-01"}
        answer = httpx.post(f"{service.url}/v1/images", files={"image": content}, headers=headers, timeout=60)
        assert answer.status_code == 201, answer.text
        service.process.terminate()  # it exports its last spans
        service.process.wait(60)
    # The service exports its spans in batches, so a span may come before or after those below it.
    wait_until(
        lambda: (
            any(span.parent == caller for span in traced.spans)
            and ["triton_sam.encode"] in [_names(traced, span)[:1] for span in traced.spans if span.trace == trace]
        )
    )
    spans = list(traced.spans)
    (first,) = (span for span in spans if span.parent == caller)
    assert (first.service, first.trace) == ("triton-sam-service", trace)
    assert ["triton_sam.encode", first.name] in [_names(traced, span) for span in spans if span.trace == trace]
    assert f'"trace_id": "{trace}"' in service.log.read_text()


def test_a_program_without_opentelemetry_does_not_import_it():
    program = (
        "import sys, triton_sam; from triton_sam._common.tracing import span\n"
        "with span('m', is_request=True) as headers: assert headers == {}\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def _names(traced: Collector, span: Span) -> list[str]:
    return [ancestor.name for ancestor in traced.ancestors(span)]


def _inferences(spans: list[Span], model: str) -> list[Span]:
    """Return Triton's spans of whole requests to a model."""
    return [span for span in spans if span.attributes.get("triton.model_name") == model]


def _complete(spans: list[Span], work: str) -> list[Span]:
    """Return the spans of the session model in one trace that has the spans of the image and of the click."""
    for program in (span for span in spans if span.name == work):
        requests = {span.id for span in spans if span.name == "InferRequest" and span.trace == program.trace}
        served = [span for span in _inferences(spans, "sam2") if span.parent in requests]
        if len(served) == 2:
            return served
    return []
