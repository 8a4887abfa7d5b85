"""The speculative client's errors and its end: wrong use, closing, servers that die, many requests."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading

import numpy as np
import psutil
import pytest
from support.conditions import wait_until
from support.speculation import LABELS, PATH, POINT, all_ended, over_grpc, over_http, speculate, until

from triton_sam import (
    ConfigurationError,
    NoImageError,
    PromptError,
    ServerError,
    ServerUnreachableError,
    SpeculativeSAM2Client,
    queue_multiple_requests,
    wait_for_latest_result,
)
from triton_sam._common.bundle import bundled
from triton_sam.benchmark.mouse import stress

pytestmark = pytest.mark.usefixtures("no_loose_ends")


@pytest.fixture(scope="module")
def image_path(images):
    return images / "shapes.jpg"


@over_http
def test_wrong_use_is_one_clear_error(url, sync):
    async def scenario(client):
        with pytest.raises(PromptError, match="outside"):
            await client.predict_async([[9999, 1]])
        with pytest.raises(PromptError, match="coords_list has 2 positions, but labels_list has 1"):
            await queue_multiple_requests(client, PATH[:2], LABELS[:1], "s")
        assert await wait_for_latest_result([], client, "s") is None
        assert client.cancel_session_requests("unknown") == 0
        assert set(client.get_session_status("unknown").values()) == {0}
        assert client.cleanup_session("unknown") == 0

    speculate(sync, scenario)
    with SpeculativeSAM2Client(url) as client, pytest.raises(NoImageError, match="set_image"):
        client.predict_sync(POINT)
    for options in ({"model_type": "sam9"}, {"timeout": 0}, {"max_in_flight": 0}, {"max_in_flight_total": 0}):
        with pytest.raises(ConfigurationError):
            SpeculativeSAM2Client(url, **options)


@over_grpc
def test_a_model_that_is_not_loaded_fails_every_task_once(url, sync):
    async def main():
        async with SpeculativeSAM2Client(url, model_name="sam2.1_huge") as client:
            with pytest.raises(ServerError, match=r"sam2\.1_huge_encoder"):
                await client.set_image_async(np.zeros((8, 8, 3), np.uint8))

    asyncio.run(main())


def test_a_failure_that_nobody_waits_for_is_silent(sync):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"{sync.url.partition(':')[0]}://127.0.0.1:{probe.getsockname()[1]}"

    async def main():
        async with SpeculativeSAM2Client(address, retries=0, timeout=5) as client:
            client.image_embeddings = sync.image_embeddings
            await client.predict_async(POINT, session_id="s")
            await until(lambda: client.get_session_status("s")["failed"] == 1)
            _, task = await client.predict_async(POINT, session_id="s")
            with pytest.raises(ServerUnreachableError, match=r"nothing answers|not available|broke"):
                await task

    asyncio.run(main())


@over_http
def test_sessions_are_forgotten_and_cleaned_up(sync):
    async def scenario(client):
        _, task = await client.predict_async(POINT, session_id="s")
        assert client.cleanup_session("s") == 1
        await all_ended([("", task)])
        assert client.get_session_status("s")["cancelled"] == 0
        for number in range(2000):
            await client.predict_async(POINT, session_id=f"session {number}")
            client.cancel_session_requests(f"session {number}", keep_latest=False)
        await asyncio.sleep(0)
        assert client.requests_sent == 0
        remembered = [number for number in range(2000) if client.get_session_status(f"session {number}")["cancelled"]]
        assert remembered == list(range(2000 - 256, 2000))

    speculate(sync, scenario)


def test_closing_ends_every_task_and_every_connection(sync):
    process = psutil.Process()
    port = int(sync.url.rpartition(":")[2])

    def connections():
        return sum(c.raddr != () and c.raddr.port == port for c in process.net_connections("tcp"))

    sync.predict(POINT)
    before, threads = connections(), threading.active_count()

    async def scenario(client):
        tasks = [await client.predict_async(point, session_id=f"session {n}") for n, point in enumerate(PATH)]
        await until(lambda: connections() > before)
        return tasks

    tasks = speculate(sync, scenario)
    assert all(task.done() for _, task in tasks)
    assert tasks[-1][1].cancelled()  # on a busy machine, the first ones may have been answered before
    wait_until(lambda: connections() <= before and threading.active_count() <= threads)


def test_a_forgotten_client_closes_itself(sync):
    threads, before = threading.active_count(), set(threading.enumerate())
    client = SpeculativeSAM2Client(sync.url)
    client.image_embeddings = sync.image_embeddings
    client.predict_sync(POINT)
    assert set(threading.enumerate()) - before
    del client
    gc.collect()
    wait_until(lambda: threading.active_count() <= threads)


def test_a_server_that_dies_in_mid_stream_and_comes_back(image_path):
    """Each protocol has a client; both lose the same server, and find the next one at its ports."""
    local_server = pytest.importorskip("triton_sam.local_server")

    def start(http_port=0, grpc_port=0):
        models = ["sam2_encoder", "sam2_decoder"]
        return local_server.LocalServer(
            bundled("model_repository"), models=models, http_port=http_port, grpc_port=grpc_port, heal=False
        )

    async def until_it_dies(clients, pid):
        queued = [
            [await client.predict_async(point, session_id=f"session {n}") for n, point in enumerate(PATH[:20])]
            for client in clients
        ]
        for tasks in queued:
            await asyncio.wait([task for _, task in tasks], return_when=asyncio.FIRST_COMPLETED)
        os.kill(pid, signal.SIGKILL)
        return [{type(task.exception()) for task in await all_ended(tasks)} for tasks in queued]

    with contextlib.ExitStack() as stack:
        with start() as first:
            urls = (first.http_url, first.grpc_url)
            clients = [stack.enter_context(SpeculativeSAM2Client(url, timeout=30, retries=0)) for url in urls]
            for client in clients:
                client.set_image(image_path)
            outcomes = asyncio.run(until_it_dies(clients, first.pid))
        assert outcomes == [{type(None), ServerUnreachableError}] * 2
        with start(*(int(url.rpartition(":")[2]) for url in urls)):
            for client in clients:
                masks, _ = client.predict_sync(POINT)
                assert masks.shape == (1, 1, 256, 256)


@pytest.mark.slow
@over_grpc
def test_the_stress_report_keeps_its_limits_on_counts(server, sync, image_path):
    rows = asyncio.run(stress(sync.url, None, image_path, positions=30, sessions=4, repeat=1))
    assert [(row.asked, row.sent, row.cancelled, row.computed) for row in rows if " in 2 s" not in row.scenario] == [
        (1, 1, 0, 1),
        (20, 20, 0, 20),  # a session model refuses more than 24 that wait
        (30, 1, 29, 1),
        (30, 1, 30, 0),
        (120, 4, 116, 4),
    ]
    assert [row.in_flight for row in rows] == [1, 20, 1, 1, 1, 1]
    assert not [missed for row in rows for missed in row.missed if "differs" in missed or "in flight" in missed]


@pytest.mark.parametrize(
    "requests", [pytest.param(2000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.nightly)]
)
def test_many_requests_leave_nothing_behind(sync, requests):
    process = psutil.Process()

    async def scenario(client):
        async def batch(count):
            for _ in range(count // 50):
                tasks = await queue_multiple_requests(client, PATH, LABELS, "s")
                assert await wait_for_latest_result(tasks, client, "s") is not None
            gc.collect()
            return process.memory_info().rss

        await batch(requests // 4)
        return [await batch(requests // 4) for _ in range(4)]

    sizes = speculate(sync, scenario)
    assert max(sizes) - sizes[0] < 64 << 20
