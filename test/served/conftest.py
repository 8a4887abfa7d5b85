"""Fixtures of the tests of the session model and of the speculative client."""

import gc
import shutil

import pytest
from support.conditions import settled
from support.session_requests import IMAGE_BYTES
from support.session_server import IMAGES_IN_CACHE, serve
from support.shared_servers import shared

from triton_sam import SAM2TritonClient
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url


@pytest.fixture(scope="session")
def session_server(request, toy_repository, tmp_path_factory):
    """A server with the toy pair, whose session model keeps three images."""
    repository = shutil.copytree(toy_repository, tmp_path_factory.mktemp("session") / "models")
    config = repository / "sam2" / "config.pbtxt"
    config.write_text(config.read_text().replace("536870912", str(IMAGES_IN_CACHE * IMAGE_BYTES + 1)))
    yield from shared(request, serve(repository))


@pytest.fixture(scope="session")
def video_server(request, video_models):
    """A local Triton with these models."""
    local_server = pytest.importorskip("triton_sam.local_server")
    yield from shared(request, local_server.LocalServer(video_models.repository))


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
def content(images):
    return (images / "shapes.jpg").read_bytes()


@pytest.fixture(scope="module")
def sync(url, images):
    with SAM2TritonClient(url) as client:
        client.set_image(images / "shapes.jpg")
        yield client


@pytest.fixture(scope="module")
def computed(server, images):
    """Reads the server's own counter of decodes, without those that the reading takes."""
    transport, own = Transport(parse_url(server.http_url)), 0
    with SAM2TritonClient(server.http_url) as client:
        client.set_image(images / "shapes.jpg")

        def read():
            nonlocal own
            client.predict([[200, 180]])  # Triton decodes one after the other, so earlier decodes have ended now
            own += 1
            return settled(lambda: int(transport.statistics("sam2_decoder")["inference_count"])) - own

        yield read
    transport.close()


@pytest.fixture
def no_loose_ends(caplog):
    """Fail on what asyncio logs about tasks, futures and connections that were left alone."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record.getMessage() for record in records if record.name in ("asyncio", "concurrent.futures")] == []
