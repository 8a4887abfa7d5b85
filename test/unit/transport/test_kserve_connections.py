"""The KServe client's connections: broken, closed, shared by threads, cancelled."""

import threading

import numpy as np
import pytest
from support.conditions import PATIENCE, wait_until
from support.socket_server import (
    DONE,
    LARGE,
    SMALL,
    Server,
    always,
    call,
    client_of,
    dribbles,
    echo,
    infer,
    reads_nothing,
    silent,
)
from urllib3.exceptions import HTTPError

from triton_sam.errors import ConfigurationError
from triton_sam.transport.threads import Threads, ended_by


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", DONE[:-1], b"nonsense\r\n\r\n"])
def test_a_connection_that_breaks_is_not_used_again_and_nothing_is_sent_twice(answer):
    def breaks(server, connection):
        if server.read(connection):
            connection.sendall(answer)
        connection.close()

    with Server(breaks) as server:
        client = client_of(server)
        with pytest.raises((HTTPError, OSError)) as caught:
            infer(client)
        assert not isinstance(caught.value, TimeoutError)
        assert len(server.requests) == 1
        server._serve = always(DONE)
        assert infer(client)["y"].tolist() == [97, 98]


def test_a_connection_that_the_server_closed_meanwhile_costs_nothing():
    def once(server, connection):
        server.read(connection)
        connection.sendall(DONE)
        connection.close()

    with Server(once) as server:
        client = client_of(server)
        for number in (1, 2, 3):
            infer(client)
            assert len(server.connections) == number
            # The server's close() may take effect only after its socket says that it is closed.
            wait_until(lambda: not client._pool.pool.queue[-1].is_connected)


def test_many_threads_share_one_client():
    with Server(echo) as server:
        client, wrong = client_of(server), []

        def ask(number):
            for _ in range(20):
                array = np.full(50_000, number, np.int32)
                if not np.array_equal(infer(client, {"x": array}, ["x"], 60)["x"], array):
                    wrong.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(server.connections) <= 8
        client.close()


@pytest.mark.parametrize("serve", [silent, reads_nothing, dribbles("body")], ids=["silent", "full", "body"])
def test_a_call_that_is_cancelled_ends_at_once_and_the_server_hears_of_it(serve):
    with Server(serve) as server:
        client, running, errors = client_of(server), call(600), []

        def ask():
            try:
                client.infer("model", LARGE, ["y"], running)
            except (OSError, HTTPError) as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: server.connections if serve is reads_nothing else server.requests)
        running.cancel()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert len(errors) == 1
        if serve is silent:
            assert server.ended.wait(PATIENCE)
        server.ended.set()
        server._serve = always(DONE)
        assert infer(client)["y"].tolist() == [97, 98]


def test_a_connection_in_use_while_another_thread_closes_is_closed_after_its_call():
    def slow(server, connection):
        server.read(connection)
        client.close()
        connection.sendall(DONE)
        server.read(connection)

    with Server(slow) as server:
        client = client_of(server)
        assert infer(client)["y"].tolist() == [97, 98]
        assert server.ended.wait(PATIENCE)
        with pytest.raises(ConfigurationError, match="closed"):
            infer(client)


def test_cancelling_a_call_that_has_ended_leaves_its_connection_to_others():
    with Server(always(DONE)) as server:
        client, ended = client_of(server), call()
        client.infer("model", SMALL, ["y"], ended)
        ended.cancel()
        infer(client)
        assert len(server.connections) == 1
        with pytest.raises(OSError, match="cancelled"):
            client.infer("model", SMALL, ["y"], ended)


def test_a_socket_that_was_shut_down_on_its_way_to_the_next_call_is_replaced():
    with Server(always(DONE)) as server:
        client = client_of(server)
        infer(client)
        (connection,) = [each for each in client._pool.pool.queue if each is not None]
        connection.sock.is_shut = True
        infer(client)
        assert len(server.connections) == 2


def call_threads():
    return [thread for thread in threading.enumerate() if thread.name == "triton-sam-call"]


def test_calls_run_in_threads_that_end_with_their_client():
    with Server(always(DONE)) as server:
        client, threads, before = client_of(server), Threads(), set(call_threads())

        def begin():
            return threads.submit(lambda: client.infer("model", SMALL, ["y"], call()))

        for _ in range(3):
            begin().result(PATIENCE)
        assert len(set(call_threads()) - before) == 1
        for future in [begin() for _ in range(8)]:
            future.result(PATIENCE)
        threads.close()
        wait_until(lambda: not set(call_threads()) - before)


def test_a_future_that_is_cancelled_closes_its_connection():
    with Server(silent) as server:
        client, threads = client_of(server), Threads()

        def ask():
            current = call(60)
            with ended_by(current.cancel):
                client.infer("model", SMALL, ["y"], current)

        future = threads.submit(ask)
        assert server.asked.wait(PATIENCE)
        future.cancel()
        assert server.ended.wait(PATIENCE)
        threads.close()


def test_a_call_that_is_cancelled_before_its_request_sends_none():
    threads, began, go_on, sent = Threads(), threading.Event(), threading.Event(), []

    def ask():
        began.set()
        go_on.wait(PATIENCE)
        with ended_by(lambda: None):
            sent.append("a request")

    future = threads.submit(ask)
    assert began.wait(PATIENCE)
    future.cancel()
    go_on.set()
    threads.close()
    assert sent == []
