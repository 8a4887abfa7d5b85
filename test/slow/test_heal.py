"""A killed model process: the server starts again, and no client notices more than a pause."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.conditions import wait_until
from support.exposition import Scrape
from support.processes import kill_model

from triton_sam import SAM2TritonClient
from triton_sam._common.bundle import bundled
from triton_sam.local_server import LocalServer

CLIENTS = 16
SECONDS_TO_HEAL = 10.0
"""Limit from the kill until every model is ready. On a machine so busy that the first start of the same server takes
more than a third of it, the limit is three times that start."""
PATIENCE = 60.0
POINTS = [[[200, 180]], [[120, 90]], [[260, 60]], [[300, 200]]]
KILLED, KILLED_AT_NIGHT = ("sam2_decoder", "sam2"), ("sam2_encoder", "sam2_preprocess")


@pytest.fixture
def server():
    """A server whose clicks need the process of the decoder, too."""
    began, models = time.monotonic(), ["sam2", "sam2_preprocess"]
    with LocalServer(bundled("model_repository"), models=models, decoder_in_session=False) as running:
        running.seconds_to_start = time.monotonic() - began
        yield running


@pytest.mark.alone  # it measures the time until the models are ready again
@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [*KILLED, *(pytest.param(name, marks=pytest.mark.nightly) for name in KILLED_AT_NIGHT)]
)
def test_clicks_go_on_after_a_model_was_killed(server, images, model):
    content = (images / "shapes.jpg").read_bytes()
    with SAM2TritonClient(server.grpc_url, timeout=PATIENCE) as client:
        client.set_image(content)
        right = [client.predict(points, [1])[0] for points in POINTS]
    answers = [0] * CLIENTS
    stop = False

    def click(number: int) -> None:
        """Most clients keep their images on the server. Embeddings in requests are 17 MB each."""
        url = server.grpc_url if number % 2 else server.http_url
        place = "client" if number == 0 else "server"
        with SAM2TritonClient(url, timeout=PATIENCE, embeddings=place) as client:
            client.set_image(content)
            while not stop:
                which = (number + answers[number]) % len(POINTS)
                np.testing.assert_array_equal(client.predict(POINTS[which], [1])[0], right[which])
                answers[number] += 1

    def all_have_answered_twice() -> bool:
        assert not any(job.done() for job in jobs), [job.exception() for job in jobs if job.done()]
        return all(now > before + 1 for now, before in zip(answers, seen, strict=True))

    with ThreadPoolExecutor(CLIENTS) as pool:
        jobs = [pool.submit(click, number) for number in range(CLIENTS)]
        try:
            seen = [0] * CLIENTS
            wait_until(all_have_answered_twice)
            pid, names = server.pid, {served.name for served in server.served_models()}
            kill_model(pid, model)
            began = time.monotonic()
            wait_until(lambda: server.pid != pid)
            wait_until(lambda: {served.name for served in server.served_models()} == names)
            healed = time.monotonic() - began
            seen = list(answers)
            wait_until(all_have_answered_twice)
        finally:
            stop = True
        for job in jobs:
            job.result(PATIENCE)
    print(f"\n{model}: ready after {healed:.1f} s; the first start took {server.seconds_to_start:.1f} s")
    assert healed <= max(SECONDS_TO_HEAL, 3 * server.seconds_to_start)
    assert server.restarts == 1
    assert Scrape(server.metrics_url).total("triton_sam_restarts_total", model="sam2") == 1
