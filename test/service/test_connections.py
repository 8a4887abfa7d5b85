"""Time limits of connections that send no head of a request, or read no answer."""

import asyncio
import contextlib
import socket
from unittest.mock import patch

import pytest
import uvicorn
from support.conditions import PATIENCE

from triton_sam.service import connections
from triton_sam.service.connections import Lingering, limited

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer(scope, receive, send):
    """Answer more than all buffers hold, piece by piece, where the path asks for it; else after a while."""
    assert scope["type"] == "http"
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    for _ in range(512 if scope["path"] == "/large" else 0):
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
    await send({"type": "http.response.body", "body": b"done"})


@contextlib.asynccontextmanager
async def connected(application=answer, seconds=0.2, sent=b""):
    """Yield the streams of a connection to a server whose limits are 0.2 s. Something is sent before they begin."""
    listening = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listening.getsockname())
    client.sendall(sent)
    config = uvicorn.Config(application, log_config=None, lifespan="off", http=limited(seconds))
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    with patch.object(connections, "HEAD_SECONDS", seconds):
        serving = asyncio.create_task(server.serve([listening]))
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


async def everything(reader):
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(1 << 20), PATIENCE):
            received += piece
    return received


@pytest.mark.parametrize(
    ("sent", "end"), [(b"", b""), (REQUEST[:-2], b""), (REQUEST, b"done")], ids=["nothing", "half a head", "a request"]
)
@pytest.mark.anyio
async def test_a_connection_without_a_request_is_aborted_and_a_slow_answer_is_not(sent, end):
    async with connected(sent=sent) as (reader, _):
        received = await everything(reader)
        assert end in received
        assert bool(received) is bool(end)


@pytest.mark.anyio
async def test_a_connection_that_reads_no_answer_is_aborted():
    ended = asyncio.Event()

    async def watched(scope, receive, send):
        try:
            await answer(scope, receive, send)
        finally:
            ended.set()

    async with connected(watched, sent=REQUEST.replace(b"/ ", b"/large ")) as (reader, _):
        await asyncio.wait_for(ended.wait(), PATIENCE)
        received = await everything(reader)
        assert b"200 OK" in received
        assert len(received) < 512 << 16


async def refuse(scope, receive, send):
    """Answer without reading the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.anyio
async def test_a_head_without_an_end_is_aborted(is_second):
    """h11 has the limit. The head of a second request follows a dropped body."""
    async with connected(refuse, seconds=PATIENCE) as (reader, writer):

        async def send():
            for _ in range(1024):
                writer.write(b"x" * (1 << 16))
                await writer.drain()

        if is_second:
            writer.write(REQUEST[:-2] + b"Content-Length: 4\r\n\r\n")
            await reader.readuntil(b"done")
            writer.write(b"body")
        writer.write(REQUEST[:-2] + b"X: ")
        with pytest.raises(ConnectionError):
            await send()


POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n"
CLOSE = b"Connection: close\r\n"


@contextlib.contextmanager
def lingering(seconds=4 * PATIENCE, pause=4 * PATIENCE):
    with patch.object(connections, "LINGER_SECONDS", seconds), patch.object(connections, "LINGER_PAUSE", pause):
        yield


@pytest.mark.anyio
async def test_a_client_that_still_sends_gets_its_answer_and_some_time():
    with lingering(seconds=0.5):
        async with connected(Lingering(refuse), seconds=PATIENCE) as (reader, writer):
            writer.write(POST + CLOSE + b"\r\n")
            await reader.readuntil(b"done")

            async def send():
                while True:
                    writer.write(bytes(1 << 20))
                    await writer.drain()

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(send(), PATIENCE)


@pytest.mark.parametrize(
    ("rest", "pause"), [(CLOSE + b"\r\nhalf", 0.2), (b"Expect: 100-continue\r\n\r\n", 4 * PATIENCE)]
)
@pytest.mark.anyio
async def test_a_connection_without_the_rest_of_a_body_ends(rest, pause):
    """A client that waits for 100 sends no body, so that the server waits for none."""
    with lingering(pause=pause):
        async with connected(Lingering(refuse), seconds=PATIENCE) as (reader, writer):
            writer.write(POST + rest)
            received = await everything(reader)
            assert received.endswith(b"done")
            assert CLOSE.lower() in received.lower()


@pytest.mark.anyio
async def test_a_server_that_stops_does_not_linger():
    async def run():
        async with connected(Lingering(refuse), seconds=PATIENCE) as (_, first):
            reader, writer = await asyncio.open_connection(*first.get_extra_info("peername"))
            writer.write(POST + b"\r\nhalf")
            await reader.readuntil(b"done")
        writer.close()

    with lingering():
        await asyncio.wait_for(run(), PATIENCE)


@pytest.mark.anyio
async def test_an_answer_without_a_length_ends_before_the_rest_of_the_body():
    async def stream(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    with lingering():
        async with connected(Lingering(stream), seconds=PATIENCE) as (reader, writer):
            writer.write(POST + b"\r\nhalf")
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), PATIENCE)
