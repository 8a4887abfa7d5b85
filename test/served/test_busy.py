"""More threads on one client than a server accepts requests."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.errors import ServerBusyError, ServerTimeoutError

THREADS = 60


@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.slow), "grpc"])
def test_sixty_threads_all_get_their_mask_if_the_client_waits(service_triton, images, protocol):
    url = service_triton.http_url if protocol == "http" else service_triton.grpc_url
    with SAM2TritonClient(url, busy="wait") as client, ThreadPoolExecutor(THREADS) as pool:
        client.set_image(images / "shapes.jpg")
        expected = client.segment([[200, 180]])[0].mask
        clicks = [pool.submit(client.segment, [[200, 180]]) for _ in range(THREADS)]
        for click in clicks:
            np.testing.assert_array_equal(click.result()[0].mask, expected)


@pytest.mark.slow
def test_a_server_that_stays_busy_is_an_error_at_the_timeout(service_triton, images):
    """Sixty threads keep the server busy until a client that waits for a fraction of a second gives up."""
    stop = threading.Event()

    def keep_clicking(crowd, image):
        while not stop.is_set():
            crowd.predict([[200, 180]], image=image)

    with (
        SAM2TritonClient(service_triton.grpc_url, busy="wait") as crowd,
        SAM2TritonClient(service_triton.grpc_url, busy="wait", timeout=0.3) as client,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        image = crowd.set_image(images / "shapes.jpg")
        clicks = [pool.submit(keep_clicking, crowd, image) for _ in range(THREADS)]
        is_refused = False
        try:
            while not is_refused:
                assert not any(click.done() for click in clicks)
                try:
                    client.predict([[200, 180]], image=image)
                except ServerBusyError:
                    is_refused = True
                except ServerTimeoutError:  # it was taken, and waited in the queue
                    continue
        finally:
            stop.set()
        for click in clicks:
            click.result()


@pytest.mark.slow
def test_the_speculative_client_waits_too(service_triton, images):
    async def main():
        async with SpeculativeSAM2Client(
            service_triton.grpc_url, busy="wait", max_in_flight_total=THREADS, max_in_flight=1
        ) as client:
            await client.set_image_async(images / "shapes.jpg")
            tasks = [
                (await client.predict_async([[200, 180]], session_id=f"user {number}"))[1] for number in range(THREADS)
            ]
            return await asyncio.gather(*tasks)

    answers = asyncio.run(main())
    assert len(answers) == THREADS
    assert all(np.array_equal(masks, answers[0][0]) for masks, _ in answers)
