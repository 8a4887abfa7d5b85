"""The speculative client gives every place on the wire back, wherever a request dies."""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from concurrent.futures import CancelledError

import numpy as np

from triton_sam import SpeculativeSAM2Client
from triton_sam.errors import InferenceError, ServerTimeoutError, ServerUnreachableError
from triton_sam.transport.threads import pause

REQUESTS = 10_000
"""At least."""
LANES = 12
POINT = [[3, 4]]


ANSWER = {
    "image_id": np.array([b"id"], np.object_),
    "image_size": np.array([64, 48]),
    "masks": np.zeros((1, 1, 256, 256), np.float32),
    "iou_predictions": np.zeros((1, 1), np.float32),
}
OUTCOMES = {
    "answer": ANSWER,
    "refusal": InferenceError("sam2 failed: BAD_PROMPT: x"),
    "lost image": InferenceError("sam2 failed: UNKNOWN_IMAGE_ID: x"),
    "failure": InferenceError("out of memory"),
    "no server": ServerUnreachableError("gone"),
    "late": ServerTimeoutError("late"),
    "a bug": ZeroDivisionError("a bug of the transport"),
    "broken answer": {"masks": np.zeros((1, 1), np.float32)},
    "never": None,
}


class DyingTransport:
    """Answers, refuses, fails, breaks the contract, or waits, each at random; once it is healthy, it only waits."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.outcomes = Counter()
        self.healthy = False
        self.cancelled = 0

    def has_seen_all(self):
        """Return whether each outcome has occurred often. A busy machine sends fewer of the requests."""
        return min(20, self.cancelled, *(self.outcomes[name] for name in OUTCOMES)) == 20

    def one_call(self):
        return contextlib.nullcontext()

    def infer(self, model, inputs, outputs):
        if "point_coords" not in inputs:
            return ANSWER
        with self._lock:
            name = "never" if self.healthy else self._random.choice(list(OUTCOMES))
            self.outcomes[name] += 1
        outcome = OUTCOMES[name]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            return outcome
        try:
            pause(600)
        except CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError("nobody cancelled the request")

    def close(self):
        """Nothing is open."""


async def disturb(client, rng, tasks):
    """Cancel something in one of the ways that callers have, or let the loop run, or do nothing."""
    request_id, task = rng.choice(tasks[-20:])
    lane = str(rng.randrange(LANES))
    ways = [
        task.cancel,
        lambda: client.cancel_request(request_id),
        lambda: client.cancel_session_requests(lane, keep_latest=rng.random() < 0.5),
        lambda: client.cleanup_session(lane),
        lambda: None,
    ]
    rng.choice(ways)()
    if rng.random() < 0.3:
        await asyncio.sleep(0)


async def occupy(client, count):
    """Ask for predictions that get no answer; return how many of them run, and how many wait."""
    tasks = [await client.predict_async(POINT, [1], f"last {number}") for number in range(count)]
    await asyncio.to_thread(client._dispatcher.start)
    states = [client.get_session_status(f"last {number}") for number in range(count)]
    for _, task in tasks:
        task.cancel()
    await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
    return sum(each["running"] for each in states), sum(each["pending"] for each in states)


def test_no_place_on_the_wire_is_lost():
    transport, rng = DyingTransport(1), random.Random(2)

    async def story():
        async with SpeculativeSAM2Client(transport=transport, max_in_flight_total=8) as client:
            await client.set_image_async(np.zeros((48, 64, 3), np.uint8))
            tasks = []
            while len(tasks) < REQUESTS or not transport.has_seen_all():
                lane = rng.choice([None, *map(str, range(LANES))])
                tasks.append(await client.predict_async(POINT, [1], lane))
                await disturb(client, rng, tasks)
                if len(tasks) % 50 == 0:  # requests that are never answered would soon take all places
                    for _, task in [each for each in tasks if not each[1].done()][:1]:
                        task.cancel()
            for request_id, _ in tasks:
                client.cancel_request(request_id)
            await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
            states = [client.get_session_status(str(lane)) for lane in range(LANES)]
            assert sum(each["pending"] + each["running"] for each in states) == 0
            transport.healthy = True
            assert await occupy(client, 9) == (8, 1)

    asyncio.run(asyncio.wait_for(story(), 600))
