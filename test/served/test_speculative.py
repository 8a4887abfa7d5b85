"""The speculative client against a real Triton: the newest wins, the rest is not computed.

The dispatcher knows no protocol. So the tests in which a transport cancels run over both, and the others over one.

Counts are strict. Times are not looked at: `triton-sam speculative` measures those.
"""

import asyncio
import concurrent.futures
import os
import re
import signal
import urllib.request

import numpy as np
import pytest
from support.conditions import wait_until
from support.speculation import LABELS, PATH, POINT, all_ended, assert_same, over_grpc, over_http, speculate, until

from triton_sam import (
    ConfigurationError,
    InputError,
    SpeculativeSAM2Client,
    queue_multiple_requests,
    wait_for_latest_result,
)
from triton_sam.benchmark.mouse import mouse_path

pytestmark = pytest.mark.usefixtures("no_loose_ends")


@pytest.fixture(scope="module")
def image_path(images):
    return images / "shapes.jpg"


@over_http
def test_documented_use(server, image_path, sync):
    async def main():
        client = SpeculativeSAM2Client(server.http_url.removeprefix("http://"))
        client.set_image(image_path)  # the sync call inside of a loop, as documented
        session_id = "user_session_1"
        tasks = await queue_multiple_requests(client, PATH, LABELS, session_id)
        client.cancel_session_requests(session_id)
        result = await wait_for_latest_result(tasks, client, session_id)
        await all_ended(tasks)
        assert [task.cancelled() for _, task in tasks] == [True] * 49 + [False]
        await client.aclose()
        return result

    assert_same(asyncio.run(main()), sync.predict(PATH[-1], [1]))


@over_grpc
def test_positions_queued_at_once_cost_one_decode(sync, computed):
    async def scenario(client):
        before = computed()
        tasks = [await client.predict_async(point, [1], session_id="s") for point in PATH]
        result = await tasks[-1][1]
        assert len({request_id for request_id, _ in tasks}) == 50
        assert client.get_session_status("s") == {
            "pending": 0,
            "running": 0,
            "completed": 1,
            "cancelled": 49,
            "failed": 0,
        }
        assert (client.requests_sent, computed() - before) == (1, 1)
        return result

    assert_same(speculate(sync, scenario), sync.predict(PATH[-1], [1]))


@over_grpc
def test_a_moving_mouse_sees_masks_and_never_more_than_its_share_in_flight(sync, computed):
    async def scenario(client):
        before, in_flight, tasks = computed(), 0, []
        while len(tasks) < 50 or client.get_session_status("s")["completed"] < 2:
            assert len(tasks) < 5000
            tasks.append(await client.predict_async(PATH[len(tasks) % 50], [1], session_id="s"))
            await asyncio.sleep(0.016)
            in_flight = max(in_flight, client.get_session_status("s")["running"])
        done = await all_ended(tasks)
        assert in_flight == 1
        assert sum(not task.cancelled() for task in done) == client.requests_sent == computed() - before
        return tasks[-1][1].result(), PATH[(len(tasks) - 1) % 50]

    result, point = speculate(sync, scenario)
    assert_same(result, sync.predict(point, [1]))


@over_grpc
def test_the_last_position_comes_after_at_most_two_decodes(sync, computed):
    """One that was on the wire before, and its own: the other positions of a moving mouse cost nothing."""

    async def scenario(client):
        before = computed()
        _, first = await client.predict_async(POINT, session_id="s")
        await until(lambda: client.get_session_status("s")["running"] == 1)
        for point in PATH:
            _, last = await client.predict_async(point, session_id="s")
        result = await last
        assert not first.cancelled()
        assert (client.requests_sent, computed() - before) == (2, 2)
        return result

    assert_same(speculate(sync, scenario), sync.predict(PATH[-1]))


@pytest.mark.parametrize(("url", "keep_latest"), [("http", False), ("grpc", False), ("grpc", True)], indirect=["url"])
def test_cancelling_a_session_frees_its_place_at_once(sync, keep_latest):
    async def scenario(client):
        first_id, first = await client.predict_async(POINT, session_id="s")
        await until(lambda: client.get_session_status("s")["running"] == 1)
        tasks = [(first_id, first), *await queue_multiple_requests(client, PATH, LABELS, "s")]
        assert client.cancel_session_requests("s", keep_latest) == (1 if keep_latest else 2)
        assert client.get_session_status("s")["running"] == int(keep_latest)
        with pytest.raises(asyncio.CancelledError):
            await first
        result = await wait_for_latest_result(tasks, client, "s")
        await all_ended(tasks)
        assert client.get_session_status("s")["completed"] == int(keep_latest)
        # The connection serves on.
        assert_same(await (await client.predict_async(POINT))[1], sync.predict(POINT))
        return result

    result = speculate(sync, scenario)
    if keep_latest:
        assert_same(result, sync.predict(PATH[-1], [1]))
    else:
        assert result is None


@over_grpc
def test_grpc_requests_cancelled_in_tritons_queue_are_not_computed(server, sync, computed):
    """Over HTTP, Triton computes what it has read."""
    many = [[[100 + n, 100]] for n in range(40)]  # objects: a decode that takes longer than five requests to arrive

    def queued():
        """Return the number of requests that wait in Triton for the decoder."""
        text = urllib.request.urlopen(server.metrics_url, timeout=60).read().decode()
        (count,) = re.findall(r'nv_inference_pending_request_count{model="sam2_decoder",version="1"} (\d+)', text)
        return int(count)

    async def scenario(client):
        before = computed()
        _, long = await client.predict_async(many, session_id="long")
        await until(lambda: client.get_session_status("long")["running"] == 1)
        tasks = [await client.predict_async(point, session_id=f"session {n}") for n, point in enumerate(PATH[:5])]
        await until(lambda: queued() == 5)
        assert not long.done()
        for _, task in tasks:
            task.cancel()
        await all_ended([("", long), *tasks])
        assert client.requests_sent == 6
        assert_same(await (await client.predict_async(POINT))[1], sync.predict(POINT))
        return computed() - before

    assert speculate(sync, scenario) == 3  # the long one, and the last two


@over_http
def test_a_task_or_an_id_cancels_its_request_alone(sync):
    async def scenario(client):
        _, by_task = await client.predict_async(POINT, session_id="a")
        by_id, second = await client.predict_async(POINT, session_id="b", request_id="mine")
        _, third = await client.predict_async(POINT, session_id="c")
        assert by_id == "mine"
        with pytest.raises(InputError, match="mine"):
            await client.predict_async(POINT, request_id="mine")
        by_task.cancel()
        assert client.cancel_request("mine")
        assert not client.cancel_request("mine")
        assert not client.cancel_request("unknown")
        await all_ended([("", by_task), ("", second)])
        assert by_task.cancelled()
        assert second.cancelled()
        assert [client.get_session_status(name)["cancelled"] for name in "abc"] == [1, 1, 0]
        return await third

    assert_same(speculate(sync, scenario), sync.predict(POINT))


@over_grpc
def test_requests_without_a_session_stand_alone(sync):
    async def scenario(client):
        tasks = [await client.predict_async(point) for point in PATH[:6]]
        return await asyncio.gather(*(task for _, task in tasks))

    for result, point in zip(speculate(sync, scenario), PATH, strict=False):
        assert_same(result, sync.predict(point))


@over_grpc
def test_every_kind_of_prompt(sync):
    prompts = [
        {"box": [90, 70, 310, 290]},
        {"coords": POINT, "labels": [1], "multimask_output": True},
        {"coords": POINT, "mask_input": np.zeros((256, 256))},
        {"coords": [[[200, 180]], [[520, 145]]], "labels": [[1], [1]]},
    ]

    async def scenario(client):
        return [await (await client.predict_async(**prompt))[1] for prompt in prompts]

    names = {"coords": "point_coords", "labels": "point_labels"}
    for result, prompt in zip(speculate(sync, scenario), prompts, strict=True):
        assert_same(result, sync.predict(**{names.get(key, key): value for key, value in prompt.items()}))


@over_http
def test_cancel_running_gives_the_place_to_the_newest(sync):
    async def scenario(client):
        _, first = await client.predict_async(POINT, session_id="s")
        await until(lambda: client.get_session_status("s")["running"] == 1)
        _, second = await client.predict_async(PATH[0], session_id="s")
        await asyncio.wait([first])
        assert first.cancelled()
        return await second

    assert_same(speculate(sync, scenario, cancel_running=True), sync.predict(PATH[0]))


@over_grpc
def test_sessions_are_independent_and_none_starves(sync, computed):
    names = [f"session {number}" for number in range(20)]
    paths = {name: [[p] for p in mouse_path(50, (800, 600), seed)] for seed, name in enumerate(names)}

    async def scenario(client):
        async def one(name):
            tasks = await queue_multiple_requests(client, paths[name], LABELS, name)
            client.cancel_session_requests(name)
            return await wait_for_latest_result(tasks, client, name)

        before = computed()
        results = await asyncio.gather(*map(one, names))
        assert computed() - before == 20
        return results

    for name, result in zip(names, speculate(sync, scenario), strict=True):
        assert_same(result, sync.predict(paths[name][-1], [1]))


@over_grpc
def test_threads_and_event_loops_share_one_client(sync):
    client = SpeculativeSAM2Client(sync.url)
    client.image_embeddings = sync.image_embeddings
    expected = sync.predict(POINT)

    async def in_a_loop(name):
        _, task = await client.predict_async(POINT, session_id=name)
        return await task

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(asyncio.run, in_a_loop(f"loop {number}")) for number in range(3)]
        jobs += [pool.submit(client.predict_sync, POINT, None, f"thread {number}") for number in range(3)]
        for job in jobs:
            assert_same(job.result(60), expected)
    client.close()
    client.close()
    with pytest.raises(ConfigurationError, match="closed"):
        client.predict_sync(POINT)


def test_predict_sync_is_cancelled_from_another_thread(server, sync):
    """The server is stopped, so that it cannot answer the first request before the second waits."""
    with (
        SpeculativeSAM2Client(sync.url, max_in_flight_total=1) as client,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        client.image_embeddings = sync.image_embeddings
        os.kill(server.pid, signal.SIGSTOP)
        try:
            jobs = []
            for status in ("running", "pending"):
                jobs.append(pool.submit(client.predict_sync, POINT, None, "s"))
                wait_until(lambda status=status: client.get_session_status("s")[status] == 1)
            assert client.cancel_session_requests("s", keep_latest=False) == 2
            for job in jobs:
                assert isinstance(job.exception(60), concurrent.futures.CancelledError)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert_same(client.predict_sync(POINT), sync.predict(POINT))
