"""Fixtures of the session model's tests."""

import shutil

import pytest
from support.session_requests import IMAGE_BYTES
from support.session_server import IMAGES_IN_CACHE, serve

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url


@pytest.fixture(scope="module")
def session_server(tmp_path_factory):
    """A server whose session model keeps three images."""
    repository = tmp_path_factory.mktemp("session") / "models"
    shutil.copytree(bundled("model_repository"), repository, ignore=shutil.ignore_patterns("sam1*", "sam3*"))
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace("536870912", str(IMAGES_IN_CACHE * IMAGE_BYTES + 1)))
    with serve(repository) as running:
        yield running


@pytest.fixture
def client(session_server):
    with SAM2TritonClient(session_server.http_url) as client:
        yield client


@pytest.fixture
def transport(session_server):
    transport = Transport(parse_url(session_server.http_url))
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def picture(images):
    return (images / "shapes.jpg").read_bytes()
