"""The counts and limits of `triton-sam speculative`, without a server."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from triton_sam.benchmark import mouse

RESULT = (np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1), np.float32))


class Client:
    """A client that reports a made-up number of requests on the wire."""

    requests_sent = 0
    running = 0

    def get_session_status(self, session):
        return {"running": self.running}


@pytest.fixture
def run(monkeypatch):
    """Return a function that queues a path at once, while the client has up to ``most`` requests on the wire."""
    monkeypatch.setattr(mouse, "SETTLE_SECONDS", 0.0)

    def one_lane(most):
        client = Client()
        bench = SimpleNamespace(computed=lambda: client.requests_sent, sync=SimpleNamespace(predict=lambda *_: RESULT))

        def queue_at_once(client, path, queued):
            async def act():
                client.requests_sent += 1
                queued.append(("id", asyncio.create_task(asyncio.sleep(0))))
                for client.running in (1, most, 0):
                    await asyncio.sleep(5 * mouse.SAMPLE_SECONDS)
                return [(0.0, RESULT)]

            return act

        monkeypatch.setattr(mouse, "_queue_at_once", queue_at_once)
        return asyncio.run(mouse._run_one_lane(bench, client, [(1, 1)], 0.0))

    return one_lane


@pytest.mark.parametrize(("most", "missed"), [(0, []), (2, []), (3, ["more than 2 in flight"])])
def test_requests_on_the_wire_are_sampled_and_limited(run, most, missed):
    found = run(most)
    assert found.in_flight == max(1, most)
    assert mouse._check_limits(mouse._row("http", "queued at once", [found], 1.0), [found]).missed == missed


def test_a_request_that_comes_and_goes_between_two_samples_counts_as_on_the_wire(run, monkeypatch):
    monkeypatch.setattr(Client, "get_session_status", lambda *_: {"running": 0})
    assert run(2).in_flight == 1
