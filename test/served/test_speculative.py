"""The speculative client against a real Triton, over both protocols: the newest wins, the rest is not computed.

Counts are strict. Times are not looked at, but for one generous ratio: `triton-sam speculative` measures those.
"""

import asyncio
import concurrent.futures
import gc
import os
import signal
import socket
import statistics
import threading
import time

import numpy as np
import psutil
import pytest

from triton_sam import (
    ConfigurationError,
    InputError,
    NoImageError,
    PromptError,
    SAM2TritonClient,
    ServerError,
    ServerUnreachableError,
    SpeculativeSAM2Client,
    queue_multiple_requests,
    wait_for_latest_result,
)
from triton_sam._common.bundle import bundled
from triton_sam.benchmark.mouse import mouse_path, stress
from triton_sam.client.session_image import LazyTensors, RemoteImage, SessionImage
from triton_sam.families import get_family
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url

POINT = [[200, 180]]
PATH = [np.array([position]) for position in mouse_path(50, (800, 600))]
LABELS = [np.array([1])] * 50


@pytest.fixture(scope="module")
def picture(images):
    return images / "shapes.jpg"


@pytest.fixture(scope="module")
def sync(url, picture):
    with SAM2TritonClient(url) as client:
        client.set_image(picture)
        yield client


@pytest.fixture(scope="module")
def computed(server):
    """Reads the server's own counter of decodes."""
    transport = Transport(parse_url(server.http_url))

    def read():
        counts = [-1]
        while len(counts) < 3 or counts[-1] != counts[-2]:  # Triton counts after it has answered
            time.sleep(0.3)
            counts.append(int(transport.statistics("sam2_decoder")["inference_count"]))
        return counts[-1]

    yield read
    transport.close()


@pytest.fixture(autouse=True)
def no_loose_ends(caplog):
    """Fail on what asyncio logs about tasks, futures and connections that were left alone."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record.getMessage() for record in records if record.name in ("asyncio", "concurrent.futures")] == []


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


async def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def test_documented_use(server, picture, sync):
    async def main():
        client = SpeculativeSAM2Client(server.http_url.removeprefix("http://"))
        client.set_image(picture)  # the sync call inside of a loop, as documented
        session_id = "user_session_1"
        tasks = await queue_multiple_requests(client, PATH, LABELS, session_id)
        client.cancel_session_requests(session_id)
        result = await wait_for_latest_result(tasks, client, session_id)
        await all_ended(tasks)
        assert [task.cancelled() for _, task in tasks] == [True] * 49 + [False]
        await client.aclose()
        return result

    assert_same(asyncio.run(main()), sync.predict(PATH[-1], [1]))


@pytest.mark.parametrize("ask", ["predict_async", "segment_async", "queue_multiple_requests"])
def test_the_loop_goes_on_while_the_embeddings_of_a_large_prompt_are_fetched(ask):
    """A session model takes no prompt of more than 1024 points: it goes to the decoder, with the embeddings."""
    goes_on = threading.Event()
    tensors = {name: np.zeros(1, np.float32) for name in get_family("sam2").encoder.output_names}

    def fetch():
        assert goes_on.wait(5)
        return tensors

    image = SessionImage("sam2", "sam2_encoder", (8, 8), LazyTensors(tuple(tensors), fetch), RemoteImage(b"x", "id"))
    points = np.ones((1025, 2))

    async def main():
        async with SpeculativeSAM2Client("127.0.0.1:9", retries=0) as client:
            client._embeddings = image
            asyncio.get_running_loop().call_later(0.05, goes_on.set)
            if ask == "queue_multiple_requests":
                ((_, task),) = await queue_multiple_requests(client, [points], [None], "s")
            elif ask == "predict_async":
                _, task = await client.predict_async(points)
            else:
                task = client.segment_async(points)
            await task

    with pytest.raises(ServerUnreachableError):
        asyncio.run(main())


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


def test_a_moving_mouse_sees_masks_and_never_more_than_its_share_in_flight(sync, computed):
    async def scenario(client):
        before, in_flight, tasks = computed(), 0, []
        for point in PATH * 2:
            tasks.append(await client.predict_async(point, [1], session_id="s"))
            await asyncio.sleep(0.016)
            in_flight = max(in_flight, client.get_session_status("s")["running"])
        result = await tasks[-1][1]
        done = await all_ended(tasks)
        answered = sum(not task.cancelled() for task in done)
        assert in_flight == 1
        assert answered >= 2
        assert answered == client.requests_sent == computed() - before
        return result

    assert_same(speculate(sync, scenario), sync.predict(PATH[-1], [1]))


def test_the_last_position_comes_after_at_most_two_decodes(sync):
    async def scenario(client):
        async def lone():
            start = time.perf_counter()
            await (await client.predict_async(POINT))[1]
            return time.perf_counter() - start

        async def busy():
            _, first = await client.predict_async(POINT, session_id="s")
            await until(lambda: client.get_session_status("s")["running"] == 1)
            for point in PATH:
                _, last = await client.predict_async(point, session_id="s")
            start = time.perf_counter()
            await last
            assert not first.cancelled()
            return time.perf_counter() - start

        await lone()
        pairs = [(await lone(), await busy()) for _ in range(5)]
        return [statistics.median(times) for times in zip(*pairs, strict=True)]

    lone, busy = speculate(sync, scenario)
    assert busy < 8 * lone  # 2 where nothing else runs; the naive client takes 51


@pytest.mark.parametrize("keep_latest", [True, False])
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


def test_grpc_requests_cancelled_in_tritons_queue_are_not_computed(server, sync, computed):
    if not sync.url.startswith("grpc"):
        pytest.skip("over HTTP, Triton computes what it has read")

    many = [[[100 + n, 100]] for n in range(100)]  # objects: a decode of seconds

    async def scenario(client):
        before = computed()
        _, long = await client.predict_async(many, session_id="long")
        await until(lambda: client.get_session_status("long")["running"] == 1)
        tasks = [await client.predict_async(point, session_id=f"session {n}") for n, point in enumerate(PATH[:5])]
        await asyncio.sleep(0.6)  # they are in Triton by now, behind the long one
        assert not long.done()
        for _, task in tasks:
            task.cancel()
        await all_ended([("", long), *tasks])
        assert client.requests_sent == 6
        assert_same(await (await client.predict_async(POINT))[1], sync.predict(POINT))
        return computed() - before

    assert speculate(sync, scenario) == 3  # the long one, and the last two


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


def test_requests_without_a_session_stand_alone(sync):
    async def scenario(client):
        tasks = [await client.predict_async(point) for point in PATH[:6]]
        return await asyncio.gather(*(task for _, task in tasks))

    for result, point in zip(speculate(sync, scenario), PATH, strict=False):
        assert_same(result, sync.predict(point))


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


def test_cancel_running_gives_the_place_to_the_newest(sync):
    async def scenario(client):
        _, first = await client.predict_async(POINT, session_id="s")
        await until(lambda: client.get_session_status("s")["running"] == 1)
        _, second = await client.predict_async(PATH[0], session_id="s")
        await asyncio.wait([first])
        assert first.cancelled()
        return await second

    assert_same(speculate(sync, scenario, cancel_running=True), sync.predict(PATH[0]))


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


def test_predict_sync_is_cancelled_from_another_thread(sync):
    many = [[[100 + n, 100]] for n in range(60)]  # objects: the first is not answered before the second comes
    with SpeculativeSAM2Client(sync.url, max_in_flight_total=1) as client:
        client.image_embeddings = sync.image_embeddings
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(client.predict_sync, many, None, "s") for _ in range(2)]
            while client.get_session_status("s")["pending"] == 0 and not any(job.done() for job in jobs):
                time.sleep(0.001)
            client.cancel_session_requests("s", keep_latest=False)
            for job in jobs:
                assert isinstance(job.exception(30), concurrent.futures.CancelledError)


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
    assert all(task.cancelled() for _, task in tasks)
    deadline = time.monotonic() + 5
    while (connections() > before or threading.active_count() > threads) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert connections() <= before
    assert threading.active_count() <= threads


def test_a_forgotten_client_closes_itself(sync):
    threads = threading.active_count()
    client = SpeculativeSAM2Client(sync.url)
    client.image_embeddings = sync.image_embeddings
    client.predict_sync(POINT)
    assert threading.active_count() > threads
    del client
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= threads


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_dies_in_mid_stream_and_comes_back(protocol, picture):
    local_server = pytest.importorskip("triton_sam.local_server")

    def start(http_port=0, grpc_port=0):
        models = ["sam2_encoder", "sam2_decoder"]
        return local_server.LocalServer(
            bundled("model_repository"), models=models, http_port=http_port, grpc_port=grpc_port
        )

    async def until_it_dies(client, pid):
        tasks = [await client.predict_async(point, session_id=f"session {n}") for n, point in enumerate(PATH[:10])]
        await asyncio.wait([task for _, task in tasks], return_when=asyncio.FIRST_COMPLETED)
        os.kill(pid, signal.SIGKILL)
        return [error for error in [task.exception() for task in await all_ended(tasks)] if error is not None]

    with start() as first:
        client = SpeculativeSAM2Client(first.http_url if protocol == "http" else first.grpc_url, timeout=30)
        client.set_image(picture)
        errors = asyncio.run(until_it_dies(client, first.pid))
        ports = [int(address.rpartition(":")[2]) for address in (first.http_url, first.grpc_url)]
    assert errors
    assert {type(error) for error in errors} == {ServerUnreachableError}
    with start(*ports):
        masks, _ = client.predict_sync(POINT)
    assert masks.shape == (1, 1, 256, 256)
    client.close()


@pytest.mark.slow
def test_the_stress_report_keeps_its_limits_on_counts(server, sync, picture):
    rows = asyncio.run(stress(sync.url, None, picture, positions=30, sessions=4, repeat=1))
    assert [(row.asked, row.sent, row.cancelled, row.computed) for row in rows if " in 2 s" not in row.scenario] == [
        (1, 1, 0, 1),
        (20, 20, 0, 20),  # a session model refuses more than 24 that wait
        (30, 1, 29, 1),
        (30, 1, 30, 0),
        (120, 4, 116, 4),
    ]
    assert [row.in_flight for row in rows] == [1, 20, 1, 1, 1, 1]
    assert not [missed for row in rows for missed in row.missed if "differs" in missed or "in flight" in missed]


@pytest.mark.slow
def test_ten_thousand_requests_leave_nothing_behind(sync):
    process = psutil.Process()

    async def scenario(client):
        async def batch(count):
            for _ in range(count // 50):
                tasks = await queue_multiple_requests(client, PATH, LABELS, "s")
                assert await wait_for_latest_result(tasks, client, "s") is not None
            gc.collect()
            return process.memory_info().rss

        await batch(2500)
        return [await batch(2500) for _ in range(4)]

    sizes = speculate(sync, scenario)
    assert max(sizes) - sizes[0] < 64 << 20
