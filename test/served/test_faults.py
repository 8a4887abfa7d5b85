"""Faults of the network and of the server: each gives one clear error in time, and the client works again afterwards.

Every fault is tested over HTTP and gRPC. The sync and the async client, and both places of embeddings, take turns.
"""

import asyncio
import itertools
import time

import numpy as np
import pytest
from support.conditions import PATIENCE, eventually
from support.faulty_proxy import FAULTS, FaultyProxy
from support.processes import stopped

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import ServerError, ServerTimeoutError, ServerUnreachableError

POINT = [[200, 180]]
TIMEOUT = 0.6
LIMIT = 60.0
"""Seconds. A call that misses its timeout takes longer than this, or never ends."""
WAYS = [
    ("http", SAM2TritonClient, "server"),
    ("grpc", SpeculativeSAM2Client, "client"),
    ("http", SpeculativeSAM2Client, "client"),
    ("grpc", SAM2TritonClient, "server"),
    ("http", SpeculativeSAM2Client, "server"),
    ("grpc", SAM2TritonClient, "client"),
]
"""Protocol, client and place of the embeddings."""
BOTH = [mode for mode in FAULTS for _ in ("http", "grpc")]
ROWS = [(mode, *way) for mode, way in zip(BOTH, itertools.cycle(WAYS), strict=False)]


@pytest.fixture
def address(protocol, server):
    return server.http_url if protocol == "http" else server.grpc_url


@pytest.fixture
def proxy(address):
    scheme, _, target = address.partition("://")
    host, _, port = target.rpartition(":")
    with FaultyProxy((host, int(port))) as proxy:
        proxy.url = f"{scheme}://127.0.0.1:{proxy.port}"
        yield proxy


@pytest.fixture(scope="module")
def known(server, content):
    """Return the image's embeddings and the correct logits, by place."""
    found = {}
    for place in ("server", "client"):
        with SAM2TritonClient(server.grpc_url, timeout=PATIENCE, embeddings=place) as client:
            image = client.encode(content)
            found[place] = image, client.predict(POINT, image=image)[0]
    return found


def click(client, image):
    """Return the logits of a click; the async client has an event loop for it."""
    if isinstance(client, SAM2TritonClient):
        return client.predict(POINT, image=image)[0]

    async def ask():
        _, task = await client.predict_async(POINT, image=image)
        return (await task)[0]

    return asyncio.run(ask())


def fails_in_time(client, image):
    """Check that a click fails at its timeout or earlier, and return the error."""
    began = time.monotonic()
    with pytest.raises((ServerTimeoutError, ServerUnreachableError)) as caught:
        click(client, image)
    seconds = time.monotonic() - began
    print(f"\n{caught.typename} after {seconds:.2f} s: {caught.value}")
    assert seconds < LIMIT
    return caught.value


def works_soon(client, image, expected):
    """Repeat a click until it works. A connection that hung in the proxy may break another."""
    np.testing.assert_array_equal(eventually(lambda: click(client, image), PATIENCE, ServerError), expected)


@pytest.mark.parametrize(("mode", "protocol", "kind", "place"), ROWS)
def test_no_call_outlives_its_timeout_and_the_next_one_works(proxy, known, kind, place, mode):
    proxy.mode = mode
    with kind(proxy.url, embeddings=place, timeout=TIMEOUT, retries=0) as client:
        fails_in_time(client, known[place][0])
        proxy.mode = "pass"
        proxy.drop()
        works_soon(client, *known[place])


@pytest.mark.parametrize(("protocol", "kind", "place"), WAYS[:2])
def test_a_stopped_server_costs_the_timeout_and_goes_on_when_it_is_continued(server, address, known, kind, place):
    with kind(address, embeddings=place, timeout=TIMEOUT, retries=5) as client:
        works_soon(client, *known[place])
        with stopped(server.pid):
            error = fails_in_time(client, known[place][0])
        assert isinstance(error, ServerTimeoutError)
        works_soon(client, *known[place])
