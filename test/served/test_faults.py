"""Faults of the network and of the server: each gives one clear error in time, and the client works again afterwards.

Every fault is tested over HTTP and gRPC. The sync and the async client, and both places of embeddings, take turns.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from typing import NamedTuple

import numpy as np
import pytest
from support.conditions import eventually
from support.faulty_proxy import FAULTS, FaultyProxy

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import ServerError, ServerTimeoutError, ServerUnreachableError

POINT = [[200, 180]]
TIMEOUT = 0.6
LIMIT = 15.0
"""Seconds. A call that misses its timeout takes longer than this, or never ends."""
PATIENCE = 120.0


class Sync:
    """The synchronous client."""

    def __init__(self, url, **options):
        self.client = SAM2TritonClient(url, **options)

    def encode(self, content):
        return self.client.encode(content)

    def click(self, image):
        return self.client.predict(POINT, image=image)[0]


class Async:
    """The asynchronous client, on an event loop of its own for each call."""

    def __init__(self, url, **options):
        self.client = SpeculativeSAM2Client(url, **options)

    def encode(self, content):
        return asyncio.run(self.client.encode_async(content))

    def click(self, image):
        async def ask():
            _, task = await self.client.predict_async(POINT, image=image)
            return (await task)[0]

        return asyncio.run(ask())


class Way(NamedTuple):
    """How a call reaches the server."""

    protocol: str
    client: type[Sync] | type[Async]
    place: str

    def __str__(self):
        return f"{self.protocol}-{self.client.__name__}-{self.place}"


WAYS = [
    Way("http", Sync, "server"),
    Way("grpc", Async, "client"),
    Way("http", Async, "client"),
    Way("grpc", Sync, "server"),
    Way("http", Async, "server"),
    Way("grpc", Sync, "client"),
]
"""Both protocols take turns, and so do the clients and the places of embeddings."""


def in_turns(modes):
    """Parametrise a test by each fault over both protocols. Client and place differ from fault to fault."""
    both = [mode for mode in modes for _ in ("http", "grpc")]
    rows = list(zip(both, itertools.cycle(WAYS), strict=False))
    return pytest.mark.parametrize(("mode", "way"), rows, ids=str)


@pytest.fixture
def make(way):
    """Yield a function that makes a client. All its clients are closed afterwards."""
    with contextlib.ExitStack() as stack:

        def build(url, **options):
            made = way.client(url, **{"embeddings": way.place, **options})
            stack.callback(made.client.close)
            return made

        yield build


@pytest.fixture
def address(way, server):
    return server.http_url if way.protocol == "http" else server.grpc_url


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


def fails_in_time(call, words):
    """Check that a call fails at its timeout or earlier, and return the error."""
    began = time.monotonic()
    with pytest.raises((ServerTimeoutError, ServerUnreachableError)) as caught:
        call()
    seconds = time.monotonic() - began
    print(f"\n{words}: {caught.typename} after {seconds:.2f} s: {caught.value}")
    assert seconds < LIMIT
    return caught.value


def soon(call):
    """Repeat a call until it works, and return its result. A connection that hung in the proxy may break another."""
    return eventually(call, PATIENCE, ServerError)


@in_turns(FAULTS)
def test_no_call_outlives_its_timeout_and_the_next_one_works(make, proxy, known, way, mode):
    image, expected = known[way.place]
    proxy.mode = mode
    client = make(proxy.url, timeout=TIMEOUT, retries=0)
    fails_in_time(lambda: client.click(image), mode)
    proxy.mode = "pass"
    proxy.drop()
    np.testing.assert_array_equal(soon(lambda: client.click(image)), expected)


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
def test_a_stopped_server_costs_the_timeout_and_goes_on_when_it_is_continued(server, address, make, known, way):
    image, expected = known[way.place]
    client = make(address, timeout=TIMEOUT, retries=5)
    soon(lambda: client.click(image))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        error = fails_in_time(lambda: client.click(image), "SIGSTOP")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert isinstance(error, ServerTimeoutError)
    np.testing.assert_array_equal(soon(lambda: client.click(image)), expected)
