"""The speculative client against a real Triton: the newest wins, the rest is not computed, and its end leaves nothing.

The dispatcher knows no protocol. So the tests in which a transport cancels run over both, and the others over one.
test/unit/client/test_lanes.py tests the decisions of the lanes. No test compares times: `triton-sam speculative`
measures them.
"""

import asyncio
import concurrent.futures
import gc
import threading

import numpy as np
import psutil
import pytest
from support.conditions import until, wait_until
from support.custom_metrics import Scrape
from support.processes import stopped
from support.session_requests import decodes
from support.socket_server import refusing_port

from triton_sam import (
    ConfigurationError,
    InputError,
    NoImageError,
    PromptError,
    SAM2TritonClient,
    ServerUnreachableError,
    SpeculativeSAM2Client,
    queue_multiple_requests,
    wait_for_latest_result,
)
from triton_sam._common.bundle import bundled
from triton_sam.benchmark.speculative import mouse_path
from triton_sam.local_server import LocalServer
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

POINT = [[200, 180]]

over_http, over_grpc = (pytest.mark.parametrize("url", [protocol], indirect=True) for protocol in ("http", "grpc"))
PATH = [np.array([position]) for position in mouse_path(50, (800, 600))]
LABELS = [np.array([1])] * 50


def speculate(sync, scenario, **options):
    """Run ``scenario(client)`` with a client that shares the sync client's image."""

    async def main():
        async with SpeculativeSAM2Client(sync.url, **options) as client:
            client.image_embeddings = sync.image_embeddings
            return await scenario(client)

    return asyncio.run(main())


def assert_same(result, expected):
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


async def all_ended(tasks):
    done, pending = await asyncio.wait([task for _, task in tasks], timeout=60)
    assert not pending
    return done


pytestmark = pytest.mark.usefixtures("no_loose_ends")


@over_grpc
def test_the_newest_position_comes_after_at_most_two_decodes(server, sync, computed):
    """One that was on the wire before, and its own. The server is stopped until all positions are there."""

    async def scenario(client):
        before = computed()
        with stopped(server.pid):
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
def test_cancelling_a_session_frees_its_place_at_once(server, sync, keep_latest):
    async def scenario(client):
        with stopped(server.pid):
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


@pytest.fixture
def demo_triton():
    """A server with the demo model, for one test whose decodes need 1.2 GB, which a shared server would keep."""
    with LocalServer(bundled("model_repository"), models=["sam2"]) as server:
        yield server


def test_grpc_requests_cancelled_in_tritons_queue_are_not_computed(demo_triton, images):
    """Over HTTP, Triton computes what it has read. The demo model takes long enough for other requests to arrive."""
    many = [[[100 + n, 100]] for n in range(40)]
    transport = Transport(parse_url(demo_triton.grpc_url))

    def queued():
        """Return the number of requests that wait in Triton for the decoder."""
        return Scrape(demo_triton.metrics_url).total("nv_inference_pending_request_count", model="sam2_decoder")

    async def queue(client):
        """Let five requests wait behind a long one, which may end before they arrive, and cancel them."""
        _, long = await client.predict_async(many, session_id="long")
        await until(lambda: long.done() or client.get_session_status("long")["running"] == 1)
        tasks = [await client.predict_async(point, session_id=f"session {n}") for n, point in enumerate(PATH[:5])]
        await until(lambda: long.done() or queued() == 5)
        for _, task in tasks:
            task.cancel()
        await all_ended(tasks)
        await asyncio.to_thread(queued)  # sees an answer that came before Triton read the cancellations
        return long

    async def scenario(client):
        while True:
            before, sent = computed(), client.requests_sent
            long = await queue(client)
            if not long.done():
                break
        await long
        assert client.requests_sent - sent == 6
        assert_same(await (await client.predict_async(POINT))[1], expected)
        return computed() - before

    with SAM2TritonClient(demo_triton.grpc_url, embeddings="client") as sync:
        sync.set_image(images / "shapes.jpg")
        computed, expected = decodes(sync, transport), sync.predict(POINT)
        assert speculate(sync, scenario) == 2  # the long one, and the last one
    transport.close()


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


@over_http
def test_predict_sync_is_cancelled_from_another_thread(server, sync):
    """The server is stopped, so that it cannot answer the first request before the second waits."""
    with (
        SpeculativeSAM2Client(sync.url, max_in_flight_total=1) as client,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        client.image_embeddings = sync.image_embeddings
        with stopped(server.pid):
            jobs = []
            for status in ("running", "pending"):
                jobs.append(pool.submit(client.predict_sync, POINT, None, "s"))
                wait_until(lambda status=status: client.get_session_status("s")[status] == 1)
            assert client.cancel_session_requests("s", keep_latest=False) == 2
            for job in jobs:
                assert isinstance(job.exception(60), concurrent.futures.CancelledError)
        assert_same(client.predict_sync(POINT), sync.predict(POINT))


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
def test_a_failure_that_nobody_waits_for_is_silent(sync):
    async def main(address):
        async with SpeculativeSAM2Client(address, retries=0, timeout=60) as client:
            client.image_embeddings = sync.image_embeddings
            await client.predict_async(POINT, session_id="s")
            await until(lambda: client.get_session_status("s")["failed"] == 1)
            _, task = await client.predict_async(POINT, session_id="s")
            with pytest.raises(ServerUnreachableError, match=r"nothing answers|not available|broke"):
                await task

    with refusing_port() as port:
        asyncio.run(main(f"{sync.url.partition(':')[0]}://127.0.0.1:{port}"))


def test_closing_ends_every_task_and_every_connection(server, sync):
    """The server is stopped, so that it cannot answer all requests before the client closes."""
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

    with stopped(server.pid):
        tasks = speculate(sync, scenario)
    assert all(task.done() for _, task in tasks)
    assert tasks[-1][1].cancelled()
    wait_until(lambda: connections() <= before and threading.active_count() <= threads)


@over_grpc
def test_a_forgotten_client_closes_itself(sync):
    threads, before = threading.active_count(), set(threading.enumerate())
    client = SpeculativeSAM2Client(sync.url)
    client.image_embeddings = sync.image_embeddings
    client.predict_sync(POINT)
    assert set(threading.enumerate()) - before
    del client
    wait_until(lambda: (gc.collect(), threading.active_count())[1] <= threads)  # a thread may hold it for a moment
