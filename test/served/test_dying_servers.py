"""A server that is killed while all clients work, the next one at its ports, and what `triton-sam health` says."""

import asyncio
import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import numpy as np
import psutil
import pytest
from support.conditions import PATIENCE, until, wait_until
from support.nginx_proxy import free_ports
from support.session_requests import serve

from triton_sam import SAM2TritonClient, ServerUnreachableError, SpeculativeSAM2Client
from triton_sam.cli import main

POINT = [[200, 180]]
PATH = [[[200 + number, 180]] for number in range(20)]
PROTOCOLS = ("http", "grpc")


def click_until_it_fails(client: SAM2TritonClient, clicks: list) -> Exception:
    try:
        while True:
            clicks.append(client.predict(POINT))
    except Exception as error:
        return error


async def queue_many(client: SpeculativeSAM2Client) -> list:
    return [(await client.predict_async(point, session_id=f"session {n}"))[1] for n, point in enumerate(PATH)]


@pytest.fixture(scope="module")
def killed(toy_repository, images):
    """Kill a server while clients over both protocols click; yield them, their errors, and the next server."""
    with contextlib.ExitStack() as stack:
        ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
        with serve(toy_repository, heal=False, **ports) as first:
            urls = {"http": first.http_url, "grpc": first.grpc_url}
            options = {"embeddings": "client", "retries": 0, "timeout": PATIENCE}
            clients = [stack.enter_context(SAM2TritonClient(urls[name], **options)) for name in PROTOCOLS]
            fast = [stack.enter_context(SpeculativeSAM2Client(urls[name], **options)) for name in PROTOCOLS]
            session = stack.enter_context(SAM2TritonClient(first.http_url))
            for client in (*clients, *fast, session):
                client.set_image(images / "shapes.jpg")
            expected, _ = session.predict(POINT)
            clicks: list[list] = [[], []]
            pool = stack.enter_context(ThreadPoolExecutor(2))
            jobs = [pool.submit(click_until_it_fails, *each) for each in zip(clients, clicks, strict=True)]
            wait_until(lambda: all(clicks) or any(job.done() for job in jobs))

            async def until_it_dies() -> list[set[type]]:
                await asyncio.gather(*[(await client.predict_async(POINT))[1] for client in fast])
                os.kill(first.pid, signal.SIGSTOP)  # otherwise it might answer all requests before it is killed
                queued = [await queue_many(client) for client in fast]
                await until(lambda: all(client.get_session_status("session 0")["running"] for client in fast))
                os.kill(first.pid, signal.SIGKILL)
                for tasks in queued:
                    await asyncio.wait(tasks)
                return [{type(task.exception()) for task in tasks} for tasks in queued]

            found = SimpleNamespace(clients=clients, fast=fast, session=session, expected=expected)
            found.outcomes = asyncio.run(until_it_dies())
            found.errors = [job.result(PATIENCE) for job in jobs]
        found.server = stack.enter_context(serve(toy_repository, heal=False, **ports))
        yield found


def test_each_call_under_way_fails_with_one_clear_error(killed):
    assert [type(error) for error in killed.errors] == [ServerUnreachableError] * 2
    assert killed.outcomes == [{ServerUnreachableError}] * 2


def test_all_clients_work_with_the_next_server(killed):
    """It does not have the image, which the session model's client sends again."""
    np.testing.assert_array_equal(killed.session.predict(POINT)[0], killed.expected)
    for call in (*(client.predict for client in killed.clients), *(client.predict_sync for client in killed.fast)):
        np.testing.assert_array_equal(call(POINT)[0], killed.expected)


@pytest.mark.slow
def test_health_finds_killed_models_that_triton_reports_as_ready(killed, images, capsys):
    """The last test of this file, because it kills the server's models."""
    server = killed.server
    command = ["health", "--url", server.http_url, "--timeout", "60"]
    assert main(command) == 0
    assert capsys.readouterr().err == "model pair sam2: works\nsession model sam2: works\n"
    assert main([*command, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    stubs = {stub.cmdline()[1].split("/")[-3]: stub for stub in psutil.Process(server.pid).children()}
    stubs["sam2_encoder"].kill()
    assert httpx.get(f"{server.http_url}/v2/health/ready", timeout=60).status_code == 200
    assert main(command) == 1
    said = capsys.readouterr()
    assert said.out.startswith("model pair sam2: sam2_encoder cannot answer: its process on ")
    assert said.out.count("\n") == 1
    assert said.err == "session model sam2: works\n"  # it has the image in its cache
    gone = r"its process .* is gone.*restart any other server"
    for client in killed.clients:
        with pytest.raises(ServerUnreachableError, match=gone):
            client.encode(images / "coffee.jpg")
        np.testing.assert_array_equal(client.predict(POINT)[0], killed.expected)  # the other models still work
    stubs["sam2"].kill()
    assert main(command) == 1
    assert "session model sam2: sam2 cannot answer" in capsys.readouterr().out
    server.stop()
    assert main(command) == 1
    assert f"nothing answers at {server.http_url} (Connection refused): start a server" in capsys.readouterr().err
