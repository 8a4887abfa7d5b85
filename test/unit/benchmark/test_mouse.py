"""What `triton-sam speculative` counts by itself, without a server."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from triton_sam.benchmark import mouse as stress

RESULT = (np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1), np.float32))


class Client:
    """Says how many of its requests are on the wire."""

    requests_sent = 0
    running = 0

    def get_session_status(self, session):
        return {"running": self.running}


@pytest.fixture
def run(monkeypatch):
    """Queue a path at once at a client that has ``most`` requests on the wire meanwhile."""
    monkeypatch.setattr(stress, "SECONDS_TO_CALM", 0.0)

    def one_session(most):
        client = Client()
        bench = SimpleNamespace(computed=lambda: client.requests_sent, sync=SimpleNamespace(predict=lambda *_: RESULT))

        def act_at_once(client, path, queued):
            async def act():
                client.requests_sent += 1
                queued.append(("id", asyncio.create_task(asyncio.sleep(0))))
                for client.running in (1, most, 0):
                    await asyncio.sleep(5 * stress.SAMPLE_SECONDS)
                return [(0.0, RESULT)]

            return act

        monkeypatch.setattr(stress, "_act_at_once", act_at_once)
        return asyncio.run(stress._one_session(bench, client, [(1, 1)], 0.0))

    return one_session


@pytest.mark.parametrize(("most", "missed"), [(0, []), (2, []), (3, ["more than 2 in flight"])])
def test_what_is_on_the_wire_is_sampled_and_judged(run, most, missed):
    found = run(most)
    assert found.in_flight == max(1, most)
    assert stress._judged(stress._row("http", "queued at once", [found], 1.0), [found]).missed == missed


def test_what_came_and_went_between_two_samples_was_on_the_wire(run, monkeypatch):
    monkeypatch.setattr(Client, "get_session_status", lambda *_: {"running": 0})
    assert run(2).in_flight == 1
