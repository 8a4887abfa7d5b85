"""A network and a server that misbehave: one clear error each, in time, and the same client goes on afterwards."""

import asyncio
import os
import signal
import time

import numpy as np
import pytest

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import ServerError, ServerTimeoutError, ServerUnreachableError

from .faulty_proxy import MODES, FaultyProxy

POINT = [[200, 180]]
TIMEOUT = 2.0
LATE = 3.0
"""Seconds that a busy machine may take on top. What was measured on a quiet one is in docs/reliability.md."""
FAULTS = [mode for mode in MODES if mode != "pass"]


@pytest.fixture
def proxy(url):
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    with FaultyProxy((host, int(port))) as proxy:
        proxy.url = f"{scheme}://127.0.0.1:{proxy.port}"
        yield proxy


def failing(call):
    """Return the error of a call and the seconds it took."""
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        call()
    return caught.value, time.monotonic() - began


@pytest.mark.parametrize("mode", FAULTS)
def test_no_call_outlives_its_timeout_and_the_next_one_works(proxy, images, mode):
    with SAM2TritonClient(proxy.url, timeout=60, embeddings="client") as client:
        client.set_image(images / "shapes.jpg")
        expected, _ = client.predict(POINT)
        held = client.image_embeddings
    proxy.mode = mode
    with SAM2TritonClient(proxy.url, timeout=TIMEOUT, retries=0, embeddings="client") as client:
        client.image_embeddings = held
        error, seconds = failing(lambda: client.predict(POINT))
        print(f"\n{mode}: {type(error).__name__} after {seconds:.2f} s: {error}")
        assert isinstance(error, (ServerTimeoutError, ServerUnreachableError))
        assert seconds < TIMEOUT + LATE
        proxy.mode = "pass"
        proxy.drop()
        deadline = time.monotonic() + 60
        while True:  # what hung in the proxy may cost one more call
            try:
                masks, _ = client.predict(POINT)
                break
            except ServerError:
                assert time.monotonic() < deadline
        np.testing.assert_array_equal(masks, expected)


@pytest.mark.parametrize("mode", FAULTS)
def test_the_async_client_does_the_same(proxy, images, mode):
    with SpeculativeSAM2Client(proxy.url, timeout=60, embeddings="client") as client:
        client.set_image(images / "shapes.jpg")
        expected, _ = client.predict_sync(POINT)
        held = client.image_embeddings
    proxy.mode = mode

    async def scenario():
        async with SpeculativeSAM2Client(proxy.url, timeout=TIMEOUT, retries=0, embeddings="client") as client:
            client.image_embeddings = held
            began = time.monotonic()
            with pytest.raises((ServerTimeoutError, ServerUnreachableError)) as caught:
                await (await client.predict_async(POINT))[1]
            seconds = time.monotonic() - began
            print(f"\n{mode}: {type(caught.value).__name__} after {seconds:.2f} s: {caught.value}")
            assert seconds < TIMEOUT + LATE
            proxy.mode = "pass"
            proxy.drop()
            deadline = time.monotonic() + 60
            while True:
                try:
                    return (await (await client.predict_async(POINT))[1])[0]
                except ServerError:
                    assert time.monotonic() < deadline

    np.testing.assert_array_equal(asyncio.run(scenario()), expected)


def test_a_stopped_server_costs_the_timeout_and_goes_on_when_it_is_continued(server, url, images):
    with SAM2TritonClient(url, timeout=60) as patient:
        patient.set_image(images / "shapes.jpg")
        expected, _ = patient.predict(POINT)
        held = patient.image_embeddings
        with SAM2TritonClient(url, timeout=TIMEOUT, retries=0) as client:
            client.image_embeddings = held
            client.predict(POINT)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                error, seconds = failing(lambda: client.predict(POINT))
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert isinstance(error, ServerTimeoutError)
            assert seconds < TIMEOUT + LATE
        np.testing.assert_array_equal(patient.predict(POINT)[0], expected)
