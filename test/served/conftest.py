"""Fixtures of the tests of session models and of the speculative client, over the shared server with the toy pair."""

import gc
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
from support.pb_utils import TritonError, TritonModelException
from support.session_requests import decodes
from support.two_workers import shared

from triton_sam import SAM2TritonClient
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url


@pytest.fixture(scope="session")
def video_server(request, video_models):
    """A local Triton with the models for videos of the micro size, for masks of moving objects."""
    from triton_sam.local_server import LocalServer

    yield from shared(request, LocalServer(video_models.repository))


@pytest.fixture
def http_client(server):
    with SAM2TritonClient(server.http_url) as http_client:
        yield http_client


@pytest.fixture
def transport(server):
    transport = Transport(parse_url(server.http_url))
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def content(images):
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture(scope="module")
def sync(url, images):
    """A client that has the embeddings of the demo image: its clicks, and those of its embeddings, call the decoder."""
    with SAM2TritonClient(url, embeddings="client") as client:
        client.set_image(images / "shapes.jpg")
        yield client


@pytest.fixture(scope="module")
def computed(server, images):
    """Reads the server's own counter of decodes, without those that the reading takes."""
    transport = Transport(parse_url(server.http_url))
    with SAM2TritonClient(server.http_url, embeddings="client") as client:
        client.set_image(images / "shapes.jpg")
        yield decodes(client, transport)
    transport.close()


@pytest.fixture
def backend(monkeypatch):
    """Return the module of the onnxruntime backend, with a stand-in for the module that exists inside Triton alone."""
    from triton_sam.local_server import installation

    fake = ModuleType("triton_python_backend_utils")
    fake.InferenceResponse = lambda output_tensors, error=None: SimpleNamespace(error=error)
    fake.TritonError, fake.TritonModelException = TritonError, TritonModelException
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    spec = importlib.util.spec_from_file_location("backend", installation.OWN_BACKENDS / "onnxruntime" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_loose_ends(caplog):
    """Fail on what asyncio logs about tasks, futures and connections that were left alone."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record.getMessage() for record in records if record.name in ("asyncio", "concurrent.futures")] == []
