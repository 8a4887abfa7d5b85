"""A forked child cannot disturb its parent: its HTTP clients connect anew, and the others raise an error."""

import asyncio
import contextlib
import os
import signal

import numpy as np
import pytest
from support.in_process import ImageServer
from support.socket_server import DONE, Server, always, client_of, infer

from triton_sam import SpeculativeSAM2Client
from triton_sam.errors import ConfigurationError
from triton_sam.transport.options import CLOSED

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
PIXELS = np.zeros((48, 64, 3), np.uint8)
POINT = [[3, 4]]
REFUSED = b"this client belongs to the process that made it: make a new client in this process"


def in_a_child(act):
    """Return the error that ``act`` raises in a forked child, or b"nothing"; fail if it does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        answer = b"nothing"
        try:
            act()
        except BaseException as error:
            answer = str(error).encode() if isinstance(error, ConfigurationError) else repr(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    assert os.waitpid(child, 0)[1] == 0, "the child did not end by itself"
    return answer


@pytest.fixture
def client(image_server):
    with SpeculativeSAM2Client(image_server.url) as client:
        client.set_image(PIXELS)
        client.predict_sync(POINT)
        yield client


def queue(client):
    async def main():
        await client.predict_async(POINT)

    asyncio.run(main())


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.predict_sync(POINT),
        lambda client: client.set_image(PIXELS),
        queue,
        lambda client: client.cancel_request("any"),
        lambda client: client.cancel_session_requests("any"),
        lambda client: client.get_session_status("any"),
        lambda client: client.cleanup_session("any"),
        lambda client: client.requests_sent,
    ],
)
def test_a_child_is_told_to_make_a_client_of_its_own(client, act):
    """The thread that sends the requests does not exist in the child: each call waited for ever."""
    assert in_a_child(lambda: act(client)) == REFUSED
    assert client.predict_sync(POINT)[0].shape == (1, 1, 256, 256)


def test_a_child_can_make_a_client_of_its_own(client):
    def act():
        with ImageServer() as server, SpeculativeSAM2Client(server.url) as own:
            own.set_image(PIXELS)
            assert own.predict_sync(POINT)[0].shape == (1, 1, 256, 256)

    assert in_a_child(act) == b"nothing"


def test_the_end_of_a_child_does_not_close_the_clients_of_its_parent(client):
    def leave():
        client.close()
        asyncio.run(client.aclose())

    assert in_a_child(leave) == b"nothing"
    assert client.predict_sync(POINT)[0].shape == (1, 1, 256, 256)


def test_a_fork_while_another_thread_holds_the_lock(client):
    """The lock stays held in the child for ever."""
    dispatcher = client._dispatcher
    with dispatcher._lock:  # re-entrant, but this thread stands for another one

        class HeldLock:
            def __enter__(self):
                signal.pause()

            def __exit__(self, *_): ...

        def act():
            dispatcher._lock = HeldLock()
            client.close()
            with contextlib.suppress(ConfigurationError):
                client.cleanup_session("any")
            client.predict_sync(POINT)

        assert in_a_child(act) == REFUSED


def test_a_request_under_way_stays_that_of_the_parent(image_server):
    async def main():
        async with SpeculativeSAM2Client(image_server.url) as client:
            await client.set_image_async(PIXELS)
            image_server.triton.gate.clear()
            _, task = await client.predict_async(POINT)
            await asyncio.sleep(0)
            assert client.requests_sent == 1
            assert in_a_child(client.close) == b"nothing"
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_a_synchronous_client_connects_anew_in_a_child():
    """Over one connection, a process read the answers to the requests of another, such as masks of other clicks."""
    with Server(always(DONE)) as server:
        client = client_of(server)
        infer(client)
        assert in_a_child(lambda: infer(client)) == b"nothing"
        infer(client)
        assert len(server.connections) == 2
        client.close()
        assert in_a_child(lambda: infer(client)) == CLOSED.encode()
